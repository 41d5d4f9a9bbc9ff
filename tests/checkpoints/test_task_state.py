"""What a checkpoint says beside its weights; tests/hf/test_card.py has whole chains of trainings."""

import pytest
import torch

from fairseq_linformer.checkpoints.task_state import read_task_state
from fairseq_linformer.errors import UserError

ORIGIN = {"source": "roberta-base", "sha256": "0af3"}
MADE_OF = {"config": "", "configuration": {}, "data": "1", "checkpoint": None}


@pytest.mark.parametrize("found", [None, 3, "x", [3], [{"source": "a"}], [{**ORIGIN, "sha256": torch.ones(2)}]])
def test_origins_that_no_conversion_wrote_are_refused(found):
    with pytest.raises(UserError, match=r"^the checkpoint's task_state is damaged: /converted_from.* (must be|no) \S+"):
        read_task_state({"converted_from": found})


@pytest.mark.parametrize("found", [3, {}, {**MADE_OF, "data": 3}, {"command": ["fairseq-train"]}])
def test_what_no_training_is_made_of_is_refused(found):
    with pytest.raises(UserError, match=r"^the checkpoint's task_state is damaged: /made_of"):
        read_task_state({"made_of": found})


@pytest.mark.parametrize("state", [None, {}, {"converted_from": []}, {"made_of": {**MADE_OF, "command": ["train"]}}])
def test_most_checkpoints_have_no_origin(state):
    assert read_task_state(state)["converted_from"] == [] and read_task_state(state)["vocabulary"] == {}


@pytest.mark.parametrize("state", [3, "x", [], torch.ones(2), torch.zeros(0), float("nan")])
def test_what_no_task_saved_is_refused(state):
    with pytest.raises(UserError, match=r"^the checkpoint's task_state is damaged: "):
        read_task_state(state)


def test_all_are_given():
    assert read_task_state({"converted_from": [ORIGIN, ORIGIN], "vocabulary": {}})["converted_from"] == [ORIGIN, ORIGIN]
