"""JSON that a user or another command wrote: parsed safely, and checked before it is trusted.

msgspec would save forty lines here, but its messages name neither the key of an object nor the value that was found.
"""

import json
import types
import typing
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, cast

from ..errors import UserError

Shape = TypeVar("Shape")

SCALARS = {str: "text", int: "a 64-bit integer", float: "a finite number", bool: "true or false"}
LARGEST_INTEGER, LARGEST_FLOAT = 2**63 - 1, 1e308  # JSON itself has no limit


def parse_json(text: str, where: str) -> Any:
    """The value that a text in JSON stands for.

    Args:
        text: JSON.
        where: the file, or the place in it: the message begins with it.

    Raises:
        UserError: it is not JSON, or is nested too deeply for Python's parser (about a thousand brackets).
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = "" if error.lineno == 1 else f"line {error.lineno}, "
        raise UserError(f"{where}: not JSON ({error.msg}, at {line}character {error.colno})") from error
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{where}: not JSON that can be read ({error})") from error
    except RecursionError as error:
        raise UserError(f"{where}: not JSON that can be read (its brackets are nested too deeply)") from error


def read_state(path: Path, shape: type[Shape]) -> Shape:
    """The content of a JSON file that one command leaves for another.

    Args:
        path: the file.
        shape: what it must be: ``dict[str, int]``, ``list[str]``, ``str | None``, a TypedDict of such, and so on.
            Allowed are also keys that a TypedDict does not name, an integer in place of a ``float``, and anything where
            the shape has ``Any``.

    Raises:
        OSError: the file cannot be read.
        UserError: it is not JSON, or has another shape. The message names the file, the place and what is there.
    """
    return parse_state(path.read_bytes(), str(path), shape)


def parse_state(content: bytes, where: str, shape: type[Shape]) -> Shape:
    """As `read_state`, of what was read from `where`."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{where}: not UTF-8 ({error})") from error
    return check_state(parse_json(text, where), where, shape)


def check_state(content: Any, where: str, shape: type[Shape]) -> Shape:
    """As `read_state`, of a value."""
    try:
        _check(content, shape, "")
    except ValueError as error:
        raise UserError(f"{where} is damaged: {error}") from None
    return cast(Shape, content)


def check_plain(options: Any, where: str) -> None:
    """Refuses options from a file that refer to something: OmegaConf would look it up here, ``${oc.env:HOME}`` say.

    Args:
        options: plain data, in which a Namespace may stand; wherever OmegaConf finds text in it.
        where: the file: the message begins with it.

    Raises:
        UserError: one holds ``${``.
    """
    try:
        for name, text in _texts(options, ""):
            if "${" in text:
                shown = f"{name}={text!r:.100}"
                raise UserError(f"{where}: {shown} is not allowed: a file's option must be a value, not a reference")
    except RecursionError as error:
        raise UserError(f"{where}: its options are nested too deeply") from error


def _texts(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Every text among options, with the dotted name of its option."""
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item, name)
    elif isinstance(value, str):
        yield name, value


def _check(value: Any, shape: Any, place: str) -> None:
    """Checks a value against a shape; `place` is the path to it, empty for the whole.

    Raises:
        UserError: it has another shape.
    """
    kind, parts = typing.get_origin(shape) or shape, typing.get_args(shape)
    if shape is Any:
        return
    if kind in (types.UnionType, typing.Union):
        (some,) = (part for part in parts if part is not types.NoneType)
        if value is not None:
            _check(value, some, place)
    elif typing.is_typeddict(shape):
        _expect(isinstance(value, dict), value, place, "an object")
        for key, hint in typing.get_type_hints(shape).items():
            if key in value:
                _check(value[key], hint, f"{place}/{key}")
            elif key in shape.__required_keys__:
                raise UserError(f"{place or 'its content'} has no {key}")
    elif kind in (list, dict):
        _expect(isinstance(value, kind), value, place, "a list" if kind is list else "an object")
        for index in range(len(value)) if kind is list else value:
            _check(value[index], parts[-1], f"{place}/{index}")
    else:  # by type, as isinstance takes true and false for integers
        number = type(value) is kind or (kind is float and type(value) is int)
        most = {int: LARGEST_INTEGER, float: LARGEST_FLOAT}.get(kind)
        _expect(number and (most is None or not abs(value) > most), value, place, SCALARS[kind])


def _expect(holds: bool, value: Any, place: str, expected: str) -> None:
    if not holds:
        found = json.dumps(value, default=repr)
        if isinstance(value, dict | list):
            found = "an object" if isinstance(value, dict) else "a list"
        raise UserError(f"{place or 'its content'} is {found[:100]}, it must be {expected}")
