"""Reading the Long Range Arena's archive: tiny files of the shape of the official ones."""

import numpy as np
import pytest
from benchmarking.long_documents import OF_VARIANT
from benchmarking.long_tasks import make_rows
from benchmarking.rows_of_text import BEGIN, END, FIRST, PAD, Request
from benchmarking.variants import published_arena, read_data
from PIL import Image

TREE = "( ( ( [MAX 4 ) ( ( ( [MED 2 ) 7 ) ] ) ) ] )"  # brackets of the binary tree, and the operators' own


@pytest.fixture
def release(tmp_path):
    """lra_release with four rows of each table and eleven pictures, the second of which is empty."""
    root = tmp_path / "lra_release"
    for folder in ("listops-1000", "tsv_data"):
        (root / folder).mkdir(parents=True)
    for split in ("train", "val", "test"):
        rows = [f"{TREE}\t4", *(f"( ( ( [SM {n} ) {n} ) ] )\t{2 * n}" for n in range(3))]
        (root / f"listops-1000/basic_{split}.tsv").write_text("Source\tTarget\r\n" + "\r\n".join(rows) + "\r\n")
    for split in ("train", "eval", "test"):
        rows = [f"{n % 2}.0\tA00-1\tB00-2\tfirst '{split}' \\n {n}\tsecond \"é {n}" for n in range(4)]
        (root / f"tsv_data/new_aan_pairs.{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    base = root / "pathfinder32/curv_contour_length_14"
    for part, count in ((0, 9), (10, 1), (2, 1)):
        (base / f"imgs/{part}").mkdir(parents=True)
        (base / "metadata").mkdir(exist_ok=True)
        lines = []
        for number in range(count):
            levels = np.full((32, 32), 20 * part + number, dtype=np.uint8)
            levels[0, 1] = 255
            file = base / f"imgs/{part}/sample_{number}.png"
            Image.fromarray(levels).save(file)
            if (part, number) == (0, 1):
                file.write_bytes(b"")
            lines.append(f"imgs/{part} sample_{number}.png {number} {number % 2} 1.8 6 2 14 0.8")
        (base / f"metadata/{part}.npy").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.parametrize("inside", ["..", ".", "listops-1000"])
def test_expressions_lose_the_brackets_of_the_tree_and_keep_their_own(release, inside):
    data = make_rows("lra-listops", Request(12, 100, 2, source=release / inside))
    assert data.classes == 10 and len(data.train) == 4 and len(data.valid) == len(data.test) == 2
    found = dict(zip(data.train.texts, data.train.labels.tolist(), strict=True))
    assert found["[MAX 4 [MED 2 7 ] ]"] == 4 and found["[SM 2 2 ]"] == 4 and len(found) == 4
    (row,) = (row for row, text in zip(data.train.tokens.tolist(), data.train.texts, strict=True) if "MED" in text)
    symbols = [*map(str, range(10)), "[MIN", "[MAX", "[MED", "[SM", "]"]
    assert [symbols[token - FIRST] for token in row[1:8]] == ["[MAX", "4", "[MED", "2", "7", "]", "]"]
    assert row[0] == BEGIN and row[8:] == [END, PAD, PAD, PAD]


def test_an_expression_is_cut_in_its_words_as_in_its_row(release):
    data = make_rows("lra-listops", Request(5, 100, 2, source=release))
    assert sorted(data.train.texts) == ["[MAX 4 [MED", "[SM 0 0", "[SM 1 1", "[SM 2 2"]
    assert (data.train.tokens[:, 4] == END).all()


def test_both_papers_of_a_pair_are_in_the_row(release):
    data = make_rows("lra-retrieval", Request(21, 100, 100, source=release))
    assert data.classes == 2 and len(data.train) == 4
    for row, label, text in zip(data.train.tokens.tolist(), data.train.labels.tolist(), data.train.texts, strict=True):
        assert row[0] == BEGIN and row[-1] == END and row[10] == FIRST + 256, "9 bytes of each"
        assert bytes(token - FIRST for token in row[1:10]) == b"first 'tr"
        assert bytes(token - FIRST for token in row[11:20]) == 'second "é'.encode()[:9]
        assert text == "first 'tr second \"" and label in (0, 1)
    assert sorted(data.train.labels.tolist()) == [0, 0, 1, 1]


def test_pictures_are_read_in_the_order_of_their_metadata_without_the_empty_one(release):
    data = make_rows("lra-pathfinder", Request(1030, 100, 100, source=release / "pathfinder32"))
    assert (len(data.train), len(data.valid), len(data.test)) == (8, 1, 1)
    levels = [row[3].item() - FIRST for row in data.train.tokens]
    assert sorted(levels) == [0, *range(2, 9)], "of metadata 0, then 2, then 10"
    assert data.valid.tokens[0, 3] == FIRST + 40 and data.test.tokens[0, 3] == FIRST + 200
    assert all((level % 2) == label for level, label in zip(levels, data.train.labels.tolist(), strict=True))
    row = data.test.tokens[0].tolist()
    assert row[2] == FIRST + 255 and row[1025:] == [END, PAD, PAD, PAD, PAD]
    assert data.test.texts[0].split()[:2] == ["p0l6", "p1l7"]


@pytest.mark.parametrize(
    ("name", "length", "file", "content", "said"),
    [
        ("lra-listops", 64, "listops-1000/basic_val.tsv", "Source\tTarget\n[WHAT 3 ]\t3\n", "line 2 is not as in"),
        ("lra-listops", 64, "listops-1000/basic_val.tsv", None, r"holds no basic_val\.tsv, nor listops-1000/basic_val"),
        ("lra-retrieval", 64, "tsv_data/new_aan_pairs.test.tsv", "1.0\ta\tb\ttext\n", "line 1 is not as in"),
        ("lra-pathfinder", 1030, "pathfinder32/curv_contour_length_14/metadata/2.npy", "imgs/2 x.png\n", "line 1 is"),
        ("lra-pathfinder", 1030, "pathfinder32/curv_contour_length_14/imgs/0/sample_0.png", "no PNG", "not a picture"),
        ("lra-pathfinder", 1025, "unused", "", "lengths=1025 is not allowed: it must be at least 1026"),
    ],
)
def test_what_is_not_as_in_the_archive_is_named(release, name, length, file, content, said):
    if content is None:
        (release / file).unlink()
    else:
        (release / file).write_text(content)
    with pytest.raises((ValueError, OSError), match=said):
        make_rows(name, Request(length, 100, 100, source=release))


def test_what_was_published_is_named_by_model_and_task():
    assert published_arena("ListOps")["Linformer"] == 35.70 and published_arena("Pathfinder")["Performer"] == 77.05
    table = read_data("published")["long_range_arena"]
    assert set(OF_VARIANT.values()) <= set(table) and {len(row) for row in table.values()} == {4}
    # The paper's means are over these and Image, e.g. 53.46 for Longformer with 42.22 and 54.39 with 42.44.
    assert round((sum(table["Longformer"].values()) + 42.22) / 5, 2) == 53.46
    assert round((sum(table["Transformer"].values()) + 42.44) / 5, 2) == 54.39
