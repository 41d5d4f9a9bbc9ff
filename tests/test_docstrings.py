"""Docstrings of an installation: texts, and splits without common modules or texts."""

import pytest
from docstrings import (
    STANDARD_LIBRARY,
    Docstring,
    collect_docstrings,
    package_examples,
    split_by_module,
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
    write_module(tmp_path, "json/decoder.py", f"of json {LONG}", f"of json {LONG}", "Too short.")
    write_module(tmp_path, "single.py", f"null \0 {LONG}", f"surrogate \udc80 {LONG}", f"vertical \v {LONG}")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text(
        f'"""Module. {LONG}"""\n'
        f'class A:\n    """Class. {LONG}\n\n        indented\n    not\n    """\n'
        f'    async def f(self):\n        """Method. {LONG}"""\n'
    )
    for name in ("pkg/test/a.py", "pkg/sub/tests/a.py", "site-packages/other/a.py", "pkg/_vendor/copied/a.py"):
        write_module(tmp_path, name, f"{name} {LONG}")
    unreadable = {"broken": f'def f(:\n    """{LONG}"""\n', "null": f'"""{LONG}"""\n\0'}
    unreadable |= {
        "latin": f'"""{LONG}\udce9"""\n',
        "deep": f'"""deep {LONG}"""\nx = {"-" * 100_000}1\n',
    }  # MemoryError
    for name, text in unreadable.items():
        (tmp_path / "pkg" / f"{name}.py").write_bytes(text.encode("utf-8", "surrogateescape"))
    (tmp_path / "pkg" / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    assert sorted((item.package, item.module, item.text) for item in collect_docstrings([tmp_path])) == [
        ("pkg", "pkg", f"Class. {LONG}\n\n    indented\nnot"),
        ("pkg", "pkg", f"Method. {LONG}".strip()),
        ("pkg", "pkg", f"Module. {LONG}".strip()),
        (STANDARD_LIBRARY, "json.decoder", f"of json {LONG}".strip()),
    ]


def test_packages_and_their_texts_are_limited_to_a_sample(tmp_path):
    for module in range(10):
        write_module(tmp_path, f"large/m{module}.py", f"{LONG} {module}")
        path = tmp_path / f"large/m{module}.py"
        path.write_text(path.read_text().replace("'", '"""'))
    (tmp_path / "first.py").write_text(f'"""{LONG}"""\n' + "x = 1\n" * 10_000)  # long, but little text
    limited = collect_docstrings([tmp_path], packages=1, package_bytes=2 * len(f"{LONG} 0") + 1)
    modules = [item.module for item in limited]
    assert len(modules) == 3 and set(modules) < {f"large.m{module}" for module in range(10)}
    assert modules != ["large.m0", "large.m1", "large.m2"]


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
