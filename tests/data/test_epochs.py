"""The place of a run in its data, when it resumes on another number of ranks, or with batches of another size."""

import itertools

import numpy as np
import pytest
from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator, GroupedIterator

from fairseq_linformer.data.epochs import NO_LIMITS, ElasticBatchIterator
from fairseq_linformer.errors import UserError

ROWS = 23


class Rows(FairseqDataset):
    """Their numbers; each is as many tokens long as ``sizes`` says."""

    sizes = np.ones(ROWS, int)

    def __len__(self):
        return ROWS

    def __getitem__(self, index):
        return index

    def num_tokens(self, index):
        return self.sizes[index]

    def num_tokens_vec(self, indices):
        return self.sizes[indices]


def iterators(ranks, rows=1, update_freq=(1,), **options):
    """One iterator per rank, over batches of so many rows."""
    dataset, limits = Rows(), {**NO_LIMITS, "max_sentences": rows}

    def batches_of(limits):
        return dataset.batch_by_size(np.arange(ROWS), **limits)

    options |= {"dataset": dataset, "collate_fn": list, "seed": 5, "num_shards": ranks}
    options["batch_sampler"] = batches_of(limits)
    return [
        ElasticBatchIterator.of(EpochBatchIterator(**options, shard_id=rank), limits, batches_of, update_freq)
        for rank in range(ranks)
    ]


def consumed(ranks, steps):
    """The rows that the ranks take in so many steps of the current epoch, in the order of one rank."""
    epochs = [rank.next_epoch_itr() for rank in ranks]
    taken = [list(itertools.islice(epoch, steps)) for epoch in epochs]
    return [int(row) for step in zip(*taken, strict=True) for batch in step for row in batch]


def rest(ranks):
    return consumed(ranks, ROWS)


def resumed(stopped, ranks, rows=1, **options):
    """Others, which go on where those stopped: all ranks read the state that the first saved."""
    others = iterators(ranks, rows, **options)
    for other in others:
        other.load_state_dict(stopped[0].state_dict())
    return others


@pytest.mark.parametrize("steps", [(3, 1, 2), (1, 1, 1), (5, 0, 1)])
@pytest.mark.parametrize("ranks", [(1, 2, 1, 3), (2, 4, 4, 1), (3, 2, 2, 2)])
def test_each_batch_is_seen_once_and_in_order_whatever_the_number_of_ranks(ranks, steps):
    """Also where the batches that were seen are no multiple of the new number of ranks, and then once more."""
    expected = rest(iterators(1))
    assert sorted(expected) == list(range(ROWS)) != expected
    current, seen = iterators(ranks[0]), []
    for number, taken in zip(ranks[1:], steps, strict=True):
        seen += consumed(current, taken)
        current = resumed(current, number)
    assert seen + rest(current) == expected
    assert all(rank.end_of_epoch() for rank in current)


@pytest.mark.parametrize("ranks", [(1, 1, 1, 1), (1, 2, 1, 3)])
@pytest.mark.parametrize("rows", [(1, 4, 2, 2), (5, 2, 5, 4)])
def test_each_row_is_seen_once_and_in_order_whatever_the_size_of_the_batches(rows, ranks):
    """Three times within an epoch; the order is that of its first batches. The next epoch is one of the last size."""
    expected = rest(iterators(1, rows[0]))
    assert sorted(expected) == list(range(ROWS)) != expected
    current, seen = iterators(ranks[0], rows[0]), []
    for number, size, taken in zip(ranks[1:], rows[1:], (2, 1, 1), strict=True):
        seen += consumed(current, taken)
        current = resumed(current, number, size)
    assert seen + rest(current) == expected
    again = iterators(1, rows[-1])
    rest(again)
    assert rest(current) == rest(again) and rest(resumed(current, 1, rows[-1])) == rest(again)


@pytest.mark.parametrize(("ranks", "per_update"), [(2, 2), (2, 3), (4, 2), (3, 5), (1, 4), (4, 1)])
def test_no_rank_ends_an_update_with_an_empty_batch(ranks, per_update):
    """By it fairseq's trainer takes the rank's other batches of that update for empty. All have as many updates."""
    updates = [
        list(GroupedIterator(rank.next_epoch_itr(), per_update)) for rank in iterators(ranks, update_freq=[per_update])
    ]
    for batches in itertools.chain(*updates):
        assert [] not in batches or batches == [[]]
    assert {len(own) for own in updates} == {-(-ROWS // (ranks * per_update))}
    assert sorted(itertools.chain(*itertools.chain(*itertools.chain(*updates)))) == list(range(ROWS))


@pytest.mark.parametrize(("taken", "before", "after"), [(1, 1, 4), (5, 1, 4), (22, 1, 4), (2, 3, 4), (3, 4, 1)])
def test_a_run_goes_on_with_another_number_of_batches_per_update(taken, before, after):
    """In fairseq's own the epoch ends early, and is trained again, or has no update, which is a traceback."""
    expected = rest(iterators(1))
    stopped = iterators(1, update_freq=[before])
    updates = itertools.islice(GroupedIterator(stopped[0].next_epoch_itr(), before), taken)
    seen = [row for batches in updates for (row,) in batches]
    (other,) = resumed(stopped, 1, update_freq=[after])
    updates = GroupedIterator(other.next_epoch_itr(), after)
    assert seen + [row for batches in updates for (row,) in batches] == expected and other.end_of_epoch()


def test_each_epoch_has_its_number_of_batches_per_update():
    _, last = iterators(2, update_freq=[1, 2])
    assert [len(list(last.next_epoch_itr())) for _ in range(3)] == [12, 11, 11], "with an empty one, and without"


def test_a_place_in_other_rows_is_refused_and_between_epochs_there_is_none():
    one = iterators(1)
    consumed(one, 8)
    within = {**one[0].state_dict(), "rows": 40}
    with pytest.raises(UserError, match="reset_dataloader"):
        iterators(1)[0].load_state_dict(within)
    rest(one)
    (other,) = iterators(1)
    other.load_state_dict({**one[0].state_dict(), "rows": 40})
    assert len(rest([other])) == ROWS


def test_the_next_epoch_is_whole():
    one = iterators(1)
    first = consumed(one, 3)
    two = resumed(one, 2)
    assert first + rest(two) != (second := rest(two))
    assert sorted(second) == list(range(ROWS))
    state = two[0].state_dict()
    assert (state["epoch"], state["batches_in_epoch"]) == (3, 0)


def test_a_state_of_fairseq_counts_the_batches_of_a_rank():
    one = iterators(1)
    seen = consumed(one, 4)
    state = EpochBatchIterator.state_dict(one[0])
    (other,) = iterators(1)
    other.load_state_dict(state)
    assert seen + rest([other]) == rest(iterators(1))


def test_an_order_that_depends_on_the_number_of_ranks_is_not_resumed_on_another():
    one = iterators(1, grouped_shuffling=True)
    consumed(one, 4)
    with pytest.raises(UserError, match="grouped_shuffling=true"):
        resumed(one, 2, grouped_shuffling=True)
    with pytest.raises(UserError, match="grouped_shuffling=true"):
        resumed(one, 1, 2, grouped_shuffling=True)
    resumed(one, 1, grouped_shuffling=True)
