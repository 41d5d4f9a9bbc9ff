"""Docstrings of an installation: what is found, and that no split sees another's modules or texts."""

import os
import subprocess
import sys
from pathlib import Path

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

from tests.helpers import ROOT

LONG = "words " * 20
PACKAGES = ("alpha", "beta", "gamma", "delta", "small")


def write_module(root, name, *texts):
    """A module with one function a text, its docstring."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"def f{n}():\n    {text!r}\n\n\n" for n, text in enumerate(texts)), encoding="utf-8")


def found(root, **options) -> list[Docstring]:
    return list(collect_docstrings([root], **options))


@pytest.fixture(scope="module")
def many() -> list[Docstring]:
    """Five packages of 40 modules; text 0 of each module is in every package, and only "small" is small."""
    return [
        Docstring(package, f"{package}.m{module}", f"{LONG} {'' if text == 0 else package} {module} {text}")
        for package in PACKAGES
        for module in range(40)
        for text in range(2 if package == "small" else 11)
    ]


def test_every_kind_of_docstring_is_found_and_cleaned(tmp_path):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text(
        f'"""Module. {LONG}"""\n'
        f'class A:\n    """Class. {LONG}\n\n        indented\n    not\n    """\n'
        f'    async def f(self):\n        """Method. {LONG}"""\n'
        f'try:\n    def g():\n        r"""Func\\d. {LONG}"""\nexcept OSError:\n    pass\n'
        f'not_one = """Not a docstring. {LONG}"""\n'
    )
    texts = {(item.package, item.module, item.text) for item in found(tmp_path)}
    assert texts == {
        ("pkg", "pkg", f"Module. {LONG}".strip()),
        ("pkg", "pkg", f"Class. {LONG}\n\n    indented\nnot"),
        ("pkg", "pkg", f"Method. {LONG}".strip()),
        ("pkg", "pkg", f"Func\\d. {LONG}".strip()),
    }


def test_what_is_left_out(tmp_path, monkeypatch):
    write_module(tmp_path, "pkg/good.py", LONG, LONG, "Too short.")
    write_module(tmp_path, "pkg/test/a.py", f"test {LONG}")
    write_module(tmp_path, "pkg/sub/tests/a.py", f"tests {LONG}")
    write_module(tmp_path, "site-packages/other/a.py", f"another root {LONG}")
    write_module(tmp_path, "pkg/_vendor/copied/a.py", f"vendored {LONG}")
    write_module(tmp_path, "pkg/unprintable.py", f"null \0 {LONG}", f"surrogate \udc80 {LONG}", f"vertical \v {LONG}")
    (tmp_path / "pkg" / "broken.py").write_text(f'def f(:\n    """{LONG}"""\n')
    (tmp_path / "pkg" / "null.py").write_bytes(b'"""' + LONG.encode() + b'"""\n\0')
    (tmp_path / "pkg" / "latin.py").write_bytes(b'"""' + LONG.encode() + b'\xe9"""\n')
    (tmp_path / "pkg" / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    (tmp_path / "pkg" / "deep.py").write_text(f'"""deep {LONG}"""\nx = {"-" * 100_000}1\n')  # MemoryError
    write_module(tmp_path, "pkg/locked.py", f"locked {LONG}")
    read = Path.read_bytes

    def read_if_allowed(path):
        if path.name == "locked.py":
            raise PermissionError(path)
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_if_allowed)
    assert [(item.module, item.text) for item in found(tmp_path)] == [("pkg.good", LONG.strip())]


def test_sources_are_not_run(tmp_path):
    (tmp_path / "evil.py").write_text(f'"""{LONG}"""\nopen({str(tmp_path / "run")!r}, "w")\n')
    assert len(found(tmp_path)) == 1
    assert not (tmp_path / "run").exists()


def test_packages_are_named_as_installed(tmp_path):
    write_module(tmp_path, "json/decoder.py", f"of json {LONG}")
    write_module(tmp_path, "single.py", f"of single {LONG}")
    write_module(tmp_path, "pkg/sub/deep.py", f"of deep {LONG}")
    assert {(item.package, item.module) for item in found(tmp_path)} == {
        (STANDARD_LIBRARY, "json.decoder"),
        ("single", "single"),
        ("pkg", "pkg.sub.deep"),
    }


def test_limits_on_packages_and_bytes(tmp_path):
    for module in range(10):
        (tmp_path / "large").mkdir(exist_ok=True)
        (tmp_path / "large" / f"m{module}.py").write_text(f'"""{LONG} {module}"""\n')
    (tmp_path / "first.py").write_text(f'"""{LONG}"""\n' + "x = 1\n" * 10_000)  # long, but little text
    assert {item.package for item in found(tmp_path, packages=1)} == {"large"}
    one = len(f"{LONG} 0")
    limited = [item for item in found(tmp_path, package_bytes=2 * one + 1) if item.package == "large"]
    assert len(limited) == 3
    assert [item.module for item in limited] != ["large.m0", "large.m1", "large.m2"]  # a sample, not the first


def test_splits_share_no_module_and_no_text(many):
    splits = split_by_module(many)
    for attribute in ("module", "text"):
        train, valid = ({getattr(item, attribute) for item in splits[split]} for split in ("train", "valid"))
        assert train and valid and not train & valid
    texts = [item.text for split in splits.values() for item in split]
    assert sorted(texts) == sorted({item.text for item in many})  # each once, none lost
    assert 0.05 < len(splits["valid"]) / len(texts) < 0.25


def test_the_labelled_task_is_honest(many):
    pretraining = split_by_module(many)
    examples = package_examples(many, classes=6, train_per_class=100, valid_per_class=20)
    texts = {split: {row.text for row in rows} for split, rows in examples.items()}
    assert not texts["train"] & texts["valid"]
    assert texts["valid"] <= {item.text for item in pretraining["valid"]}
    assert texts["train"] <= {item.text for item in pretraining["train"]}
    owners = {item.text: item.package for item in many if not item.text.endswith(" 0")}
    assert all(owners[row.text] == row.label for rows in examples.values() for row in rows)  # shared texts are absent
    for split, limit in {"train": 100, "valid": 20}.items():
        counts = [sum(row.label == package for row in examples[split]) for package in PACKAGES]
        assert all(0 < count <= limit for count in counts)


def test_classes_are_the_largest_packages(many):
    examples = package_examples(many, classes=4, train_per_class=100)
    assert {row.label for row in examples["train"]} == {"alpha", "beta", "gamma", "delta"}
    examples = package_examples(many, train_per_class=200)  # "small" has fewer than 50
    assert {row.label for row in examples["train"]} == {"alpha", "beta", "gamma", "delta"}
    few = [item for item in many if item.package in {"alpha", "beta", "gamma"}]
    with pytest.raises(ValueError, match=r"3 packages have 25 docstrings or more .*alpha \d+.*at least 4"):
        package_examples(few, train_per_class=100)


def test_text_for_pretraining(tmp_path):
    docstrings = [Docstring("p", "p.a", "First.\n\n    indented\n   \nlast"), Docstring("p", "p.b", "Möbius")]
    size = write_text(docstrings, tmp_path / "text")
    assert (tmp_path / "text").read_text(encoding="utf-8") == "First.\n    indented\nlast\n\nMöbius\n\n"
    assert size == len("First.\n    indented\nlast\n\nMöbius\n\n".encode())


@pytest.mark.slow
def test_every_process_finds_the_same(tmp_path):
    for package in PACKAGES:
        for module in range(10):
            write_module(tmp_path, f"{package}/m{module}.py", *(f"{LONG} {package} {module} {n}" for n in range(4)))
    program = (
        "import sys, pathlib; from docstrings import *;"
        "found = list(collect_docstrings([pathlib.Path(sys.argv[1])], packages=4, package_bytes=2000));"
        "print(split_by_module(found, 30), package_examples(found, train_per_class=8, valid_percent=30))"
    )
    other_seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    path = os.pathsep.join(map(str, (ROOT, ROOT / "scripts")))
    other = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": other_seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    here = found(tmp_path, packages=4, package_bytes=2000)
    expected = split_by_module(here, 30), package_examples(here, train_per_class=8, valid_percent=30)
    assert other == f"{expected[0]} {expected[1]}\n"


def test_this_installation_has_text():
    assert any((root / "json" / "decoder.py").is_file() for root in installation_roots())
    assert any((root / "fairseq" / "__init__.py").is_file() for root in installation_roots())
