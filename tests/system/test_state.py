"""State files are checked as they are read: whatever was damaged is named, in words."""

import json
from pathlib import Path
from typing import TypedDict

import pytest

from fairseq_linformer.system.state import parse_json, read_state


class Optionals(TypedDict, total=False):
    note: str | None


class Content(Optionals):
    name: str
    counts: dict[str, int]
    means: list[float]
    done: bool


WHOLE = {"name": "a", "counts": {"train": 3}, "means": [1.5, 2], "done": True}


def written(folder, content) -> Path:
    (folder / "state.json").write_text(json.dumps(content), encoding="utf-8")
    return folder / "state.json"


def test_what_has_the_shape_is_returned_as_it_is(tmp_path):
    for content in (WHOLE, WHOLE | {"note": None}, WHOLE | {"note": "b", "later": 7}, WHOLE | {"counts": {}}):
        assert read_state(written(tmp_path, content), Content) == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": None}, "/name is null, it must be text"),
        ({"counts": [3]}, "/counts is a list, it must be an object"),
        ({"counts": {"train": 3.5}}, "/counts/train is 3.5, it must be a 64-bit integer"),
        ({"counts": {"train": True}}, "/counts/train is true, it must be a 64-bit integer"),
        ({"counts": {"train": 2**63}}, f"/counts/train is {2**63}, it must be a 64-bit integer"),
        ({"means": {}}, "/means is an object, it must be a list"),
        ({"means": [1, "2"]}, '/means/1 is "2", it must be a finite number'),
        ({"means": [10**400]}, "/means/0 is 10+, it must be a finite number"),
        ({"done": 1}, "/done is 1, it must be true or false"),
        ({"note": 0}, "/note is 0, it must be text"),
    ],
)
def test_what_has_another_shape_is_named(tmp_path, change, message):
    with pytest.raises(ValueError, match=rf"state\.json is damaged: {message}$"):
        read_state(written(tmp_path, WHOLE | change), Content)


def test_what_is_missing_is_named(tmp_path):
    del (content := {**WHOLE})["done"]
    with pytest.raises(ValueError, match=r"damaged: its content has no done$"):
        read_state(written(tmp_path, content), Content)
    with pytest.raises(ValueError, match=r"damaged: its content is a list, it must be an object"):
        read_state(written(tmp_path, [content]), Content)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"not JSON \(Expecting value, at character 1\)"),
        (b'{"name": "a",\n', r"not JSON \(.*, at line 2, character 1\)"),
        (b"\xff{}", "not UTF-8"),
        (b"[" * 100_000, r"not JSON that can be read \(its brackets are nested too deeply\)"),
        (b'{"a":' * 100_000, r"not JSON that can be read \(its brackets are nested too deeply\)"),
        (b"1" * 10_000, r"not JSON that can be read \(.*digits"),
    ],
)
def test_what_is_no_json_is_named(tmp_path, content, message):
    (tmp_path / "state.json").write_bytes(content)
    with pytest.raises(ValueError, match=rf"state\.json: {message}"):
        read_state(tmp_path / "state.json", Content)


def test_a_text_says_where_it_stands():
    with pytest.raises(ValueError, match=r"^FILE, line 3: not JSON \(Expecting value, at character 2\)$"):
        parse_json("[", "FILE, line 3")
