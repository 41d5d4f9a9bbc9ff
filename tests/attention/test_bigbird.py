"""The random blocks of BigBird; test_contract.py and test_peers.py have the rest."""

from fairseq_linformer.attention.bigbird import NO_BLOCK, draw_random_blocks


def test_random_blocks_are_distinct_and_differ_from_local_and_global_ones():
    blocks, heads, count = 11, 4, 3
    drawn = draw_random_blocks(blocks, heads, count)
    assert drawn.shape == (blocks, heads, count)
    for block in range(blocks):
        remaining = set(range(1, blocks - 1)) - {block - 1, block, block + 1}
        for chosen in drawn[block].tolist():
            assert len(set(chosen)) == count
            assert set(chosen) <= remaining
    assert len({tuple(chosen) for chosen in drawn[5].tolist()}) > 1, "heads draw different blocks"


def test_all_remaining_blocks_are_drawn_if_they_are_too_few():
    drawn = draw_random_blocks(6, 2, 3)
    assert [sorted(chosen) for chosen in drawn[1].tolist()] == [[NO_BLOCK, 3, 4]] * 2
    assert [sorted(chosen) for chosen in drawn[2].tolist()] == [[NO_BLOCK, NO_BLOCK, 4]] * 2
