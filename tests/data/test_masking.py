"""Fewer masks as a training goes on: how many stay, which, and what becomes of the others."""

import pytest
import torch

from fairseq_linformer.data.masking import share_of_masks, thin_masks

PAD, MASK = 1, 99


def batch(rows=64, length=200):
    """Every third position masked; the tokens under the masks, and the rows' numbers."""
    torch.manual_seed(0)
    whole = torch.randint(4, 90, (rows, length))
    masked = torch.rand(rows, length) < 1 / 3
    return whole, whole.masked_fill(masked, MASK), whole.masked_fill(~masked, PAD), torch.arange(rows) + 1000


@pytest.mark.parametrize("kept", [0.0, 0.25, 0.5, 1.0])
def test_so_many_stay_and_the_others_show_their_token(kept):
    whole, tokens, targets, rows = batch()
    thinned, left = thin_masks(tokens, targets, rows, kept, seed=3, pad=PAD)
    masked, before = left.ne(PAD), targets.ne(PAD)
    assert abs(masked.sum() / before.sum() - kept) < 0.03, "4,267 masks: a standard deviation is below 0.008"
    assert torch.equal(thinned, whole.masked_fill(masked, MASK))
    assert torch.equal(left, targets.masked_fill(~masked, PAD)) and not (masked & ~before).any()
    assert (masked.float().mean(0) - kept / 3).abs().max() < 0.35, "at no position all or none of 64 rows, say"


def test_which_ones_depends_on_row_and_seed_and_not_on_the_batch():
    _, tokens, targets, rows = batch()
    _, all_rows = thin_masks(tokens, targets, rows, 0.5, seed=3, pad=PAD)
    order = torch.randperm(64)[:10]
    _, some = thin_masks(tokens[order], targets[order], rows[order], 0.5, seed=3, pad=PAD)
    assert torch.equal(some, all_rows[order])
    for other in ({"rows": rows + 1, "seed": 3}, {"rows": rows, "seed": 4}, {"rows": rows, "seed": -3}):
        _, changed = thin_masks(tokens, targets, kept=0.5, pad=PAD, **other)
        of_masks = targets.ne(PAD)
        alike = (changed == all_rows)[of_masks].float().mean()
        assert abs(alike - 0.5) < 0.03, f"{other}: independent choices agree on one half"


def test_neighbouring_positions_are_chosen_independently():
    _, tokens, targets, rows = batch(length=400)
    everything = torch.ones_like(targets) * 5
    _, left = thin_masks(tokens, everything, rows, 0.5, seed=3, pad=PAD)
    masked = left.ne(PAD).double() - 0.5
    for lag in (1, 2, 3, 64):
        assert (masked[:, lag:] * masked[:, :-lag]).mean().abs() < 0.01
    assert (masked[1:] * masked[:-1]).mean().abs() < 0.01, "nor are neighbouring rows alike"


def test_the_share_falls_linearly_and_stays():
    assert [share_of_masks(0.3, 0.1, update, 100) for update in (0, 50, 100, 120)] == pytest.approx(
        [0.3, 0.2, 0.1, 0.1]
    )
