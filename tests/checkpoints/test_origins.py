"""What a checkpoint says that its model was converted from; tests/hf/test_card.py has whole chains of trainings."""

import pytest

from fairseq_linformer.checkpoints.origins import ORIGINS, carried_origins
from fairseq_linformer.errors import UserError

ORIGIN = {"source": "roberta-base", "sha256": "0af3"}


@pytest.mark.parametrize(
    "found", [None, 3, "x", [3], [{"source": "a"}], [{**ORIGIN, "sha256": 3}], [{**ORIGIN, "a": "b"}]]
)
def test_origins_that_no_conversion_wrote_are_refused(found):
    with pytest.raises(UserError, match="has a converted_from that no conversion wrote: it was edited by hand"):
        carried_origins({ORIGINS: found})


@pytest.mark.parametrize("state", [None, {}, {ORIGINS: []}, 3])
def test_most_checkpoints_have_none(state):
    assert carried_origins(state) == []


def test_all_are_given():
    assert carried_origins({ORIGINS: [ORIGIN, ORIGIN], "vocabulary": {}}) == [ORIGIN, ORIGIN]
