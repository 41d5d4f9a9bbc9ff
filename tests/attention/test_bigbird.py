"""The random blocks of BigBird; test_contract.py and test_peers.py have the rest."""

from fairseq_linformer.attention.bigbird import NO_BLOCK, draw_random_blocks


def test_random_blocks_are_distinct_and_new_to_their_queries():
    blocks, heads, count = 11, 4, 3
    drawn = draw_random_blocks(blocks, heads, count)
    assert drawn.shape == (blocks, heads, count)
    for block in range(blocks):
        unseen = set(range(1, blocks - 1)) - {block - 1, block, block + 1}
        for chosen in drawn[block].tolist():
            assert len(set(chosen)) == count
            assert set(chosen) <= unseen
    assert len({tuple(chosen) for chosen in drawn[5].tolist()}) > 1, "heads draw for themselves"


def test_where_too_few_blocks_are_left_all_of_them_are_taken():
    drawn = draw_random_blocks(6, 2, 3)
    assert [sorted(chosen) for chosen in drawn[1].tolist()] == [[NO_BLOCK, 3, 4]] * 2
    assert [sorted(chosen) for chosen in drawn[2].tolist()] == [[NO_BLOCK, NO_BLOCK, 4]] * 2
