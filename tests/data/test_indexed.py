"""The streaming writer against fairseq's own builder."""

from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, make_builder

from fairseq_linformer.data import indexed
from fairseq_linformer.data.indexed import indexed_writer


def fairseq_writes(prefix, items, vocab_size):
    builder = make_builder(f"{prefix}.bin", "mmap", vocab_size)
    for item in items:
        builder.add_item(torch.from_numpy(item))
    builder.finalize(f"{prefix}.idx")


def same_files(first, second) -> bool:
    return all(Path(f"{first}{end}").read_bytes() == Path(f"{second}{end}").read_bytes() for end in (".bin", ".idx"))


@pytest.mark.parametrize("vocab_size", [65_499, 65_500])
def test_files_are_those_of_fairseq(tmp_path, monkeypatch, vocab_size):
    """Both widths of ids, at their border; the offsets run on over the chunks in which the index is written."""
    monkeypatch.setattr(indexed, "_INDEX_CHUNK", 7)
    random = np.random.default_rng(0)
    items = [random.integers(0, vocab_size, size=size, dtype=np.int32) for size in random.integers(0, 9, size=40)]
    with indexed_writer(tmp_path / "ours", vocab_size) as write:
        for item in items[:5]:
            write(item, np.array([item.size]))
        for some in (items[5:6], items[6:33], items[33:]):
            write(np.concatenate(some), np.array([item.size for item in some]))
    fairseq_writes(tmp_path / "theirs", items, vocab_size)
    assert same_files(tmp_path / "ours", tmp_path / "theirs")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours.bin", "ours.idx", "theirs.bin", "theirs.idx"]
    read = MMapIndexedDataset(str(tmp_path / "ours"))
    assert [read[row].tolist() for row in range(len(read))] == [item.tolist() for item in items]


def test_an_error_leaves_no_index(tmp_path):
    """Without an index fairseq finds no dataset, so a half-written one cannot be trained on."""
    with pytest.raises(RuntimeError, match="disk"), indexed_writer(tmp_path / "ours", 10) as write:
        write(np.array([1, 2]), np.array([2]))
        raise RuntimeError("disk")
    assert not MMapIndexedDataset.exists(str(tmp_path / "ours"))
