"""How the command lines parse their arguments: numbers within bounds, and lists separated by commas."""

import argparse
import contextlib
import math
import re
from collections.abc import Callable
from typing import TypeVar

from .program import typed

Item = TypeVar("Item")
Number = TypeVar("Number", int, float)


def make_parser(about: str | None) -> argparse.ArgumentParser:
    """A parser whose --help begins with `about`, a module's docstring, with examples as this program is typed."""
    about = re.sub(r"python scripts/(\w+)\.py", lambda script: typed(script[1]), about or "")
    return argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)


def number(
    kind: type[Number], *, least: float = -math.inf, above: float = -math.inf, most: float = math.inf
) -> Callable[[str], Number]:
    """An argparse type: a finite number from `least` to `most`, and above `above`."""
    bounds = {"at least {:g}": least, "above {:g}": above, "at most {:g}": most}
    wanted = " and ".join(words.format(bound) for words, bound in bounds.items() if math.isfinite(bound))
    allowed = f"a {'whole number' if kind is int else 'number'} {wanted}".rstrip()

    def parse(text: str) -> Number:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if least <= value <= most and above < value < math.inf:
                return value
        raise argparse.ArgumentTypeError(f"{text} is not allowed: it must be {allowed}")

    return parse


def comma_list(parse: Callable[[str], Item]) -> Callable[[str], list[Item]]:
    """An argparse type: different items, separated by commas, each parsed with `parse`."""

    def parse_all(text: str) -> list[Item]:
        values = [parse(word) for word in text.split(",")]
        if len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"{text} is not allowed: it must name each once")
        return values

    return parse_all
