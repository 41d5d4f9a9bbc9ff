"""The place of a run in its data, when it resumes on another number of ranks."""

import itertools

import pytest
from fairseq.data import ListDataset
from fairseq.data.iterators import EpochBatchIterator

from fairseq_linformer.data.epochs import ElasticBatchIterator
from fairseq_linformer.errors import UserError

BATCHES = 23


def iterators(ranks, **options):
    """One iterator per rank, over as many batches of one row each."""
    dataset = ListDataset(range(BATCHES))
    rows = [[row] for row in range(BATCHES)]
    options |= {"dataset": dataset, "collate_fn": list, "batch_sampler": rows, "seed": 5, "num_shards": ranks}
    return [ElasticBatchIterator.of(EpochBatchIterator(**options, shard_id=rank)) for rank in range(ranks)]


def consumed(ranks, steps):
    """The rows that the ranks take in so many steps of the current epoch, in the order of one rank."""
    epochs = [rank.next_epoch_itr() for rank in ranks]
    taken = [list(itertools.islice(epoch, steps)) for epoch in epochs]
    return [row for step in zip(*taken, strict=True) for batch in step for row in batch]


def rest(ranks):
    return consumed(ranks, BATCHES)


def resumed(stopped, ranks, **options):
    """Others, which go on where those stopped: all ranks read the state that the first saved."""
    others = iterators(ranks, **options)
    for other in others:
        other.load_state_dict(stopped[0].state_dict())
    return others


@pytest.mark.parametrize("steps", [(3, 1, 2), (1, 1, 1), (5, 0, 1)])
@pytest.mark.parametrize("ranks", [(1, 2, 1, 3), (2, 4, 4, 1), (3, 2, 2, 2), (2, 2, 2, 2)])
def test_each_batch_is_seen_once_and_in_order_whatever_the_number_of_ranks(ranks, steps):
    """Also where the batches that were seen are no multiple of the new number of ranks, and then once more."""
    expected = rest(iterators(1))
    assert sorted(expected) == list(range(BATCHES)) != expected
    current, seen = iterators(ranks[0]), []
    for number, taken in zip(ranks[1:], steps, strict=True):
        seen += consumed(current, taken)
        current = resumed(current, number)
    assert seen + rest(current) == expected
    assert all(rank.end_of_epoch() for rank in current)


def test_the_next_epoch_is_whole():
    one = iterators(1)
    first = consumed(one, 3)
    two = resumed(one, 2)
    assert first + rest(two) != (second := rest(two))
    assert sorted(second) == list(range(BATCHES))
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
    with pytest.raises(UserError, match=r"grouped_shuffling=true .* 1 when .* now 2: resume with 1"):
        resumed(one, 2, grouped_shuffling=True)
    resumed(one, 1, grouped_shuffling=True)
