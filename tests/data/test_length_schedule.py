"""Stages of a training, and sequences cut into parts: every token, target and position, and the loss."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss

from fairseq_linformer.data.length_schedule import as_text, cut_rows, read_stages, stage_of
from fairseq_linformer.errors import UserError
from tests.helpers.models import Task, small, tokens

BOS, PAD = 0, 1
POOLED = {"projection": "split-pool", "linformer_window": 8, "adaptive_length": True, "value_residual": True}
T = 30  # a target is its token and this


def sample(rows, masked):
    """Return a batch of rows; `masked` are its masked positions, (row, position)."""
    width = max(map(len, rows))
    whole = torch.tensor([[*row, *[PAD] * (width - len(row))] for row in rows])
    target = torch.full_like(whole, PAD)
    for position in masked:
        target[position] = whole[position] + T
    lengths = torch.tensor([len(row) for row in rows])
    inputs = {"src_tokens": whole, "src_lengths": lengths, "padded": bool(whole.eq(PAD).any())}
    inputs |= {"src_id": torch.arange(len(rows)), "masked_positions": target.ne(PAD).flatten().nonzero().flatten()}
    numbers = {"ntokens": int(lengths.sum()), "nsentences": len(rows)}
    return {"id": 7 + torch.arange(len(rows)), "net_input": inputs, "target": target, **numbers}


def test_full_rows():
    before = sample([[0, 11, 12, 13, 14, 2], [0, 21, 22, 23, 24, 25]], masked=[(0, 0), (0, 3), (0, 4), (1, 2)])
    copies = before["net_input"]["src_tokens"].clone(), before["target"].clone()
    cut = cut_rows(before, 3, BOS, PAD)
    inputs = cut["net_input"]
    assert inputs["src_tokens"].tolist() == [[0, 11, 12], [0, 14, 2], [0, 21, 22], [0, 24, 25]]
    assert cut["target"].tolist() == [[T, 1, 1], [1, 14 + T, 1], [1, 1, 22 + T], [1, 1, 1]]
    assert inputs["first_positions"].tolist() == [0, 3, 0, 3] and inputs["padded"] is False
    assert inputs["src_lengths"].tolist() == [3, 3, 3, 3] and inputs["src_id"].tolist() == [0, 0, 1, 1]
    assert cut["id"].tolist() == [7, 7, 8, 8] and (cut["nsentences"], cut["ntokens"]) == (4, 12)
    assert "masked_positions" not in inputs, "one is masked no more"
    assert before["net_input"]["src_tokens"].equal(copies[0]) and before["target"].equal(copies[1])
    assert cut_rows(before, 6, BOS, PAD) is before


def test_padded_rows():
    """Their lengths are no multiples of the part's; parts of padding alone are left out."""
    rows = [[0, 11, 12, 13, 14, 15, 16], [0, 21], [0, 31, 32, 33]]
    cut = cut_rows(sample(rows, masked=[(0, 6), (2, 2)]), 3, BOS, PAD)
    inputs = cut["net_input"]
    expected = [[0, 11, 12], [0, 14, 15], [0, 1, 1], [0, 21, 1], [0, 31, 32], [0, 1, 1]]
    assert inputs["src_tokens"].tolist() == expected and inputs["padded"] is True
    assert [row for row in cut["target"].tolist() if row != [1, 1, 1]] == [[1, 1, 32 + T]]
    assert inputs["first_positions"].tolist() == [0, 3, 6, 0, 0, 3]
    assert inputs["src_lengths"].tolist() == [3, 3, 1, 2, 3, 1] and cut["id"].tolist() == [7, 7, 7, 8, 9, 9]
    assert (cut["nsentences"], cut["ntokens"]) == (6, 13)


@pytest.mark.parametrize(("options", "padding"), [({}, 20), (POOLED, 20), ({"attention": "softmax"}, 0)])
@torch.no_grad()
def test_the_loss_is_that_of_its_parts_one_by_one(options, padding):
    """Compare with a model for each part, whose table of positions begins at the part's first position."""
    model, task = small(**options).eval().double(), SimpleNamespace(target_dictionary=Task().source_dictionary)
    rows = tokens(rows=3, length=64).tolist()
    rows[-1] = rows[-1][: 64 - padding]
    batch = sample(rows, masked=[(0, 5), (0, 16), (0, 17), (1, 40), (2, 43), (2, 33)])
    batch["target"] -= T * batch["target"].gt(T)  # ids of the vocabulary
    loss, size, _ = MaskedLmLoss(MaskedLmConfig(tpu=False), task)(model, cut_rows(batch, 16, BOS, PAD))
    positions, expected = model.encoder.sentence_encoder.embed_positions.weight.data, 0.0
    for number, first in [(0, 0), (0, 16), (1, 32), (2, 32)]:
        part = torch.tensor([rows[number][first : first + 16]])
        part[0, 0] = part[0, 0] if first == 0 else BOS
        before = positions.clone()
        positions[PAD + 1 :][:16] = before[PAD + 1 + first :][:16]
        scores = model(part)[0][0].log_softmax(-1)
        positions.copy_(before)
        for index, target in enumerate(batch["target"][number, first : first + 16].tolist()):
            if target != PAD and index + first != 16:
                expected -= scores[index, target]
    assert size == 5, "the first token of a part is no target"
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)


def test_stages_are_shares_of_the_updates():
    for option in ("4:0.5,8:0.25,16:0.25", ["4:0.5", "8:0.25", "16:0.25"], {4: 0.5, 8: 0.25, 16: 0.25}):
        stages = read_stages(as_text(option), 10, 16)
        assert stages == [(4, 5), (8, 8), (16, 10)]
    assert [stage_of(stages, done)[0] for done in range(11)] == [4] * 5 + [8] * 3 + [16] * 3


@pytest.mark.parametrize(
    "stages",
    [
        "512",
        "512:0.6;2048:0.4",
        30720.6,  # YAML's value of 512:0.6
        "512:0.6,1024:0.4",
        "500:0.6,2048:0.4",
        "512:0.6,2048:0.5",
        "512:1.5,2048:-0.5",
        "512:nan,2048:0.5",
    ],
)
def test_invalid_stages_are_rejected(stages):
    with pytest.raises(UserError, match=f"^lengths={stages} "):
        read_stages(as_text(stages), 100, 2048)
