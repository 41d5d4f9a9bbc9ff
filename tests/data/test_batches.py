"""Descriptions of batches, and the position of a run in its data.

The latter after a resumption on another number of ranks, or with batches of another size.
"""

import itertools

import numpy as np
import pytest
import torch
from fairseq.data import BaseWrapperDataset, FairseqDataset, ListDataset
from fairseq.data.iterators import EpochBatchIterator, GroupedIterator

from fairseq_linformer.data.batches import NO_LIMITS, ElasticBatchIterator, TrainingDataset
from fairseq_linformer.errors import UserError

PAD = 1
ROWS = 23


class Collated(BaseWrapperDataset):
    """Batches that are collated already."""

    def collater(self, samples):
        (batch,) = samples or [{}]
        return batch


def described(tokens, target, masked=True):
    batch = {"net_input": {"src_tokens": torch.tensor(tokens)}, "target": torch.tensor(target)}
    return TrainingDataset(Collated(ListDataset([batch])), PAD, masked).collater([batch])["net_input"]


@pytest.mark.parametrize(("tokens", "padded"), [([[0, 5, 2], [0, 6, 2]], False), ([[0, 5, 2], [0, 2, 1]], True)])
def test_batches_have_padding_and_masked_positions(tokens, padded):
    target = [[PAD, 7, PAD], [9, PAD, PAD]]
    inputs = described(tokens, target)
    assert inputs["padded"] is padded
    assert torch.tensor(target).flatten()[inputs["masked_positions"]].tolist() == [7, 9]
    assert "masked_positions" not in described([[0, 5, 2]], [[PAD] * 3])
    assert "masked_positions" not in described([[0, 5, 2]], [[3, 4, 5]], masked=False)
    assert TrainingDataset(Collated(ListDataset([])), PAD, masked=True).collater([]) == {}


class Rows(FairseqDataset):
    """Numbers, of one token each."""

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return index

    def num_tokens(self, index):
        return 1


def iterators(ranks, rows=1, update_freq=(1,), **options):
    """One iterator per rank, over batches of so many rows."""
    dataset, limits = Rows(), {**NO_LIMITS, "max_sentences": rows}

    def batches_of(limits):
        return dataset.batch_by_size(np.arange(ROWS), **limits)

    options |= {"dataset": dataset, "collate_fn": list, "seed": 5, "num_shards": ranks}
    options["batch_sampler"] = batches_of(limits)
    return [
        ElasticBatchIterator(EpochBatchIterator(**options, shard_id=rank), limits, batches_of, update_freq)
        for rank in range(ranks)
    ]


def consumed(ranks, steps=ROWS):
    """The rows that the ranks take in so many steps of the current epoch, in the order of one rank."""
    epochs = [rank.next_epoch_itr() for rank in ranks]
    taken = [list(itertools.islice(epoch, steps)) for epoch in epochs]
    return [int(row) for step in zip(*taken, strict=True) for batch in step for row in batch]


def resumed(state, ranks, rows=1, **options):
    """New iterators with a saved state: all ranks read the state of rank 0."""
    resumed = iterators(ranks, rows, **options)
    for iterator in resumed:
        iterator.load_state_dict(state)
    return resumed


@pytest.mark.parametrize(
    ("ranks", "rows"),
    [
        *itertools.product([(1, 2, 1, 3), (2, 4, 4, 1), (3, 2, 2, 2)], [(1, 1, 1, 1)]),
        *itertools.product([(1, 1, 1, 1), (1, 2, 1, 3)], [(1, 4, 2, 2), (5, 2, 5, 4)]),
    ],
)
@pytest.mark.parametrize("steps", [(2, 1, 1), (1, 1, 1), (2, 0, 1)])
def test_each_row_is_read_once_and_in_order(ranks, rows, steps):
    """An epoch with three resumptions, on other numbers of ranks and with batches of other sizes.

    The batches that were read need not be a multiple of the number of ranks. The next epoch has the last size.
    """
    expected = consumed(iterators(1, rows[0]))
    assert sorted(expected) == list(range(ROWS)) != expected
    current, read = iterators(ranks[0], rows[0]), []
    for number, size, taken in zip(ranks[1:], rows[1:], steps, strict=True):
        read += consumed(current, taken)
        current = resumed(current[0].state_dict(), number, size)
    assert read + consumed(current) == expected and all(rank.end_of_epoch() for rank in current)
    state = current[0].state_dict()
    assert (state["epoch"], state["batches_in_epoch"]) == (2, 0)
    again = iterators(1, rows[-1])
    consumed(again)
    assert consumed(current) == consumed(resumed(state, 1, rows[-1])) == consumed(again)


@pytest.mark.parametrize(("ranks", "per_update"), [(2, 2), (2, 3), (4, 2), (3, 5), (1, 4), (4, 1)])
def test_no_rank_ends_an_update_with_an_empty_batch(ranks, per_update):
    """fairseq's trainer would take all batches of the rank in that update for empty. All ranks have as many updates."""
    updates = [
        list(GroupedIterator(rank.next_epoch_itr(), per_update)) for rank in iterators(ranks, update_freq=[per_update])
    ]
    for batches in itertools.chain(*updates):
        assert [] not in batches or batches == [[]]
    assert {len(of_rank) for of_rank in updates} == {-(-ROWS // (ranks * per_update))}
    assert sorted(itertools.chain(*itertools.chain(*itertools.chain(*updates)))) == list(range(ROWS))


@pytest.mark.parametrize(("taken", "before", "after"), [(1, 1, 4), (5, 1, 4), (22, 1, 4), (2, 3, 4), (3, 4, 1)])
def test_a_run_continues_with_another_number_of_batches_per_update(taken, before, after):
    """With fairseq's iterator the epoch ends early and is repeated, or has no update, which is an error."""
    expected = consumed(iterators(1))
    (stopped,) = iterators(1, update_freq=[before])
    updates = itertools.islice(GroupedIterator(stopped.next_epoch_itr(), before), taken)
    read = [row for batches in updates for (row,) in batches]
    (iterator,) = resumed(stopped.state_dict(), 1, update_freq=[after])
    updates = GroupedIterator(iterator.next_epoch_itr(), after)
    assert read + [row for batches in updates for (row,) in batches] == expected and iterator.end_of_epoch()


def test_each_epoch_has_its_number_of_batches_per_update():
    _, last = iterators(2, update_freq=[1, 2])
    assert [len(list(last.next_epoch_itr())) for _ in range(3)] == [12, 11, 11], "with an empty one, and without"


def test_a_position_in_other_data_is_rejected_within_an_epoch():
    one = iterators(1)
    consumed(one, 8)
    with pytest.raises(UserError, match="reset_dataloader"):
        resumed({**one[0].state_dict(), "rows": 40}, 1)
    consumed(one)
    assert len(consumed(resumed({**one[0].state_dict(), "rows": 40}, 1))) == ROWS


def test_a_state_of_fairseq_counts_the_batches_of_a_rank():
    one = iterators(1)
    read = consumed(one, 4)
    state = EpochBatchIterator.state_dict(one[0])
    assert read + consumed(resumed(state, 1)) == consumed(iterators(1))


def test_an_order_that_depends_on_the_number_of_ranks_is_not_resumed_on_another():
    one = iterators(1, grouped_shuffling=True)
    consumed(one, 4)
    for changed in ({"ranks": 2}, {"ranks": 1, "rows": 2}):
        with pytest.raises(UserError, match="grouped_shuffling=true"):
            resumed(one[0].state_dict(), **changed, grouped_shuffling=True)
    resumed(one[0].state_dict(), 1, grouped_shuffling=True)
