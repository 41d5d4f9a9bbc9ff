"""The streaming writer against fairseq's own builder."""

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, make_builder

from fairseq_linformer.data import indexed
from fairseq_linformer.data.indexed import indexed_writer


@pytest.mark.parametrize("vocab_size", [65_499, 65_500])
def test_files_are_those_of_fairseq(tmp_path, monkeypatch, vocab_size):
    """Both widths of ids, at their border; offsets continue over the chunks of the index."""
    monkeypatch.setattr(indexed, "_INDEX_CHUNK", 7)
    random = np.random.default_rng(0)
    items = [random.integers(0, vocab_size, size=size, dtype=np.int32) for size in random.integers(0, 9, size=40)]
    with indexed_writer(tmp_path / "ours", vocab_size) as write:
        for item in items[:5]:
            write(item, np.array([item.size]))
        for part in (items[5:6], items[6:33], items[33:]):
            write(np.concatenate(part), np.array([item.size for item in part]))
    builder = make_builder(f"{tmp_path}/theirs.bin", "mmap", vocab_size)
    for item in items:
        builder.add_item(torch.from_numpy(item))
    builder.finalize(f"{tmp_path}/theirs.idx")
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.bin", "ours.idx", "theirs.bin", "theirs.idx"]
    read = MMapIndexedDataset(str(tmp_path / "ours"))
    assert [read[row].tolist() for row in range(len(read))] == [item.tolist() for item in items]


def test_an_error_leaves_no_index(tmp_path):
    """Without an index fairseq finds no dataset, so a half-written one cannot be trained on."""
    with pytest.raises(RuntimeError, match="disk"), indexed_writer(tmp_path / "ours", 10) as write:
        write(np.array([1, 2]), np.array([2]))
        raise RuntimeError("disk")
    assert not MMapIndexedDataset.exists(str(tmp_path / "ours"))
