"""Docstrings of an installation: texts, and splits that share neither modules nor texts."""

import pytest
from docstrings import (
    STANDARD_LIBRARY,
    Docstring,
    collect_docstrings,
    installation_roots,
    package_examples,
    split_by_module,
    write_text,
)

LONG = "words " * 20
PACKAGES = ("alpha", "beta", "gamma", "delta", "small")


def write_module(root, name, *texts):
    """Write a module with one function per text, its docstring."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"def f{n}():\n    {text!r}\n\n\n" for n, text in enumerate(texts)), encoding="utf-8")


@pytest.fixture(scope="module")
def docstrings() -> list[Docstring]:
    """Five packages of 40 modules; text 0 of each module is in every package, and only "small" is small."""
    return [
        Docstring(package, f"{package}.m{module}", f"{LONG} {'' if text == 0 else package} {module} {text}")
        for package in PACKAGES
        for module in range(40)
        for text in range(2 if package == "small" else 11)
    ]


def test_docstrings_are_collected_by_package_and_cleaned(tmp_path):
    write_module(tmp_path, "json/decoder.py", f"of json {LONG}")
    write_module(tmp_path, "single.py", f"of single {LONG}")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text(
        f'"""Module. {LONG}"""\n'
        f'class A:\n    """Class. {LONG}\n\n        indented\n    not\n    """\n'
        f'    async def f(self):\n        """Method. {LONG}"""\n'
    )
    assert {(item.package, item.module, item.text) for item in collect_docstrings([tmp_path])} == {
        (STANDARD_LIBRARY, "json.decoder", f"of json {LONG}".strip()),
        ("single", "single", f"of single {LONG}".strip()),
        ("pkg", "pkg", f"Module. {LONG}".strip()),
        ("pkg", "pkg", f"Class. {LONG}\n\n    indented\nnot"),
        ("pkg", "pkg", f"Method. {LONG}".strip()),
    }


def test_tests_vendored_packages_and_unreadable_files_are_skipped(tmp_path):
    write_module(tmp_path, "pkg/good.py", LONG, LONG, "Too short.")
    for name in ("pkg/test/a.py", "pkg/sub/tests/a.py", "site-packages/other/a.py", "pkg/_vendor/copied/a.py"):
        write_module(tmp_path, name, f"{name} {LONG}")
    write_module(tmp_path, "pkg/unprintable.py", f"null \0 {LONG}", f"surrogate \udc80 {LONG}", f"vertical \v {LONG}")
    (tmp_path / "pkg" / "broken.py").write_text(f'def f(:\n    """{LONG}"""\n')
    (tmp_path / "pkg" / "null.py").write_bytes(b'"""' + LONG.encode() + b'"""\n\0')
    (tmp_path / "pkg" / "latin.py").write_bytes(b'"""' + LONG.encode() + b'\xe9"""\n')
    (tmp_path / "pkg" / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "pkg" / "deep.py").write_text(f'"""deep {LONG}"""\nx = {"-" * 100_000}1\n')  # MemoryError
    assert [(item.module, item.text) for item in collect_docstrings([tmp_path])] == [("pkg.good", LONG.strip())]


def test_packages_and_their_texts_are_limited_to_a_sample(tmp_path):
    for module in range(10):
        write_module(tmp_path, f"large/m{module}.py", f"{LONG} {module}")
        path = tmp_path / f"large/m{module}.py"
        path.write_text(path.read_text().replace("'", '"""'))
    (tmp_path / "first.py").write_text(f'"""{LONG}"""\n' + "x = 1\n" * 10_000)  # long, but little text
    assert {item.package for item in collect_docstrings([tmp_path], packages=1)} == {"large"}
    limited = collect_docstrings([tmp_path], packages=1, package_bytes=2 * len(f"{LONG} 0") + 1)
    modules = [item.module for item in limited]
    assert len(modules) == 3 and modules != ["large.m0", "large.m1", "large.m2"]


def test_splits_share_no_module_and_no_text(docstrings):
    splits = split_by_module(docstrings)
    for attribute in ("module", "text"):
        train, valid = ({getattr(item, attribute) for item in splits[split]} for split in ("train", "valid"))
        assert train and valid and not train & valid
    texts = [item.text for split in splits.values() for item in split]
    assert sorted(texts) == sorted({item.text for item in docstrings})  # each once, none lost
    assert 0.05 < len(splits["valid"]) / len(texts) < 0.25


def test_the_labelled_task_has_the_splits_of_pretraining_and_the_largest_packages(docstrings):
    pretraining = split_by_module(docstrings)
    examples = package_examples(docstrings, classes=4, train_per_class=100, valid_per_class=20)
    texts = {split: {row.text for row in rows} for split, rows in examples.items()}
    assert not texts["train"] & texts["valid"]
    owners = {item.text: item.package for item in docstrings if not item.text.endswith(" 0")}  # else shared
    for split, limit in {"train": 100, "valid": 20}.items():
        assert texts[split] <= {item.text for item in pretraining[split]}
        assert all(owners[row.text] == row.label for row in examples[split])
        counts = [sum(row.label == package for row in examples[split]) for package in PACKAGES]
        assert all(0 < count <= limit for count in counts[:4]) and counts[4] == 0
    with pytest.raises(ValueError, match="at least 4"):
        package_examples([item for item in docstrings if item.package < "c"], train_per_class=100)


def test_text_for_pretraining(tmp_path):
    docstrings = [Docstring("p", "p.a", "First.\n\n    indented\n   \nlast"), Docstring("p", "p.b", "Möbius")]
    size = write_text(docstrings, tmp_path / "text")
    text = (tmp_path / "text").read_bytes()
    assert text.decode() == "First.\n    indented\nlast\n\nMöbius\n\n" and size == len(text)


def test_this_installation_has_text():
    for module in ("json/decoder.py", "fairseq/__init__.py"):
        assert any((root / module).is_file() for root in installation_roots())
