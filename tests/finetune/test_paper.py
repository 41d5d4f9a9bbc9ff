"""The paper's figures, and beside which results they stand."""

import pytest

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.data.tasks import official_rows
from fairseq_linformer.finetune.paper import PAPER, paper_score
from fairseq_linformer.model.config import ResolvedConfig


def model(**options):
    given = {"max_positions": 512, "projected_length": [128] * 2, "sharing": "layerwise", "attention": "linformer"}
    return ResolvedConfig(**{**given, **options})


def test_what_the_paper_has():
    assert paper_score("SST-2", "accuracy", model(), official_rows("SST-2")) == "93.2"
    assert (
        paper_score("QQP", "accuracy", model(max_positions=1024, projected_length=[256]), official_rows("QQP"))
        == "90.5"
    )
    assert paper_score("IMDB", "accuracy", model(attention="softmax"), official_rows("IMDB")) == "94.1"
    assert paper_score("IMDB", "accuracy", model(projected_length=[64]), official_rows("IMDB")) == "93.4 to 94.2", (
        "all Linformers'"
    )
    assert paper_score("IMDB", "accuracy", model(projected_length=[128, 64]), official_rows("IMDB")) == "93.4 to 94.2"
    assert paper_score("QQP", "f1", model(), official_rows("QQP")) == paper_score("CoLA", "mcc", model(), 8551) == ""


@pytest.mark.parametrize(
    "options",
    [
        *({"attention": name} for name in ATTENTIONS if name not in ("linformer", "softmax")),
        {"attention": "softmax", "max_positions": 1024},
        {"projection": "conv"},
        {"projection": "mean-pool"},
        {"projection": "random"},
        {"freeze_projection": True},
    ],
    ids=str,
)
def test_the_papers_column_is_empty_beside_what_it_did_not_train(options):
    assert paper_score("IMDB", "accuracy", model(**options), official_rows("IMDB")) == ""


def test_averages_of_the_paper():
    """Table 2 gives the average of each row, which a figure copied wrong would change."""
    averages = [92.25, 91.75, 91.85, 91.83, 92.08, 92.03, 92.30, 91.90, 91.83, 92.18]
    assert [sum(row) / 4 for row in PAPER.values()] == pytest.approx(averages, abs=0.0076)
