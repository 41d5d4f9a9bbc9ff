"""How the command lines are parsed: numbers within bounds, lists, what several verbs share, and one-line mistakes."""

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from .old_names import OLD_FLAGS

Item = TypeVar("Item")
Number = TypeVar("Number", int, float)

# These repeat what the package knows, so that --help need not import it. tests/cli/test_arguments.py compares them.
FORMATS = ("txt", "csv", "tsv", "jsonl", "conll")
KINDS = ("single-label", "multi-label", "regression", "token-label")
RATES = (1e-5, 2e-5, 3e-5)
NARROW, NARROW_RATES = 384, (1e-4, 5e-4, 2e-3)
BATCH_SIZES = (16, 32)
EXTENSIONS = ("tile", "interpolate")
IMDB_ADDRESS = "http://ai.stanford.edu/~amaas/data/sentiment"
VOCAB_SIZE = 8000
SAMPLE_CHARACTERS = 10_000_000

_OVERRIDE = re.compile(r"(\+\+?|~)?[A-Za-z_][\w./@:-]*=|~[A-Za-z_][\w./@:-]*$")  # Hydra's grammar of a key


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


def item_of(parse: Callable[[str], Item]) -> Callable[[str], Item]:
    """An argparse type for one item of a list, which `parse` reads; commas once separated them, and are refused."""

    def parse_item(text: str) -> Item:
        if "," in text:
            spaced = " ".join(filter(None, text.split(",")))
            raise argparse.ArgumentTypeError(f"{text} is not allowed: a list is separated by spaces: {spaced}")
        return parse(text)

    return parse_item


class Distinct(argparse.Action):
    """Stores a list in which nothing is named twice."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if len(set(values)) < len(values):
            named = " ".join(map(str, values))
            raise argparse.ArgumentError(self, f"{named} is not allowed: it must name each once")
        setattr(namespace, self.dest, values)


# What several verbs have: what `add_argument` is told, beside what a verb says itself.
SHARED: dict[str, dict[str, Any]] = {
    "model": {"metavar": "MODEL", "type": Path, "help": "checkpoint, or the folder of its run (its best checkpoint)"},
    "--out": {"metavar": "DIR", "type": Path, "required": True, "help": "folder to make; must not exist, or be empty"},
    "--data": {"metavar": "DIR", "type": Path},
    "--tokenizer": {
        "metavar": "DIR|FILE",
        "type": Path,
        "required": True,
        "help": "the model's vocabulary: its prepared corpus, the model itself (checkpoint or folder of its run), or "
        "a .model file of sentencepiece, with the dict.txt beside it if any",
    },
    "--source": {"metavar": "DIR|ARCHIVE|URL", "required": True},
    "--tasks": {"metavar": "TASK", "nargs": "+", "type": item_of(str), "action": Distinct},
    "--text": {"metavar": "COLUMN", "help": "text's column, key, CoNLL number (default: as prepared, else text or 0)"},
    "--from": {"dest": "format"},
    "--second": {"metavar": "COLUMN", "help": "column or key of a pair's second text (default: as prepared)"},
    "--seeds": {
        "metavar": "N",
        "nargs": "+",
        "type": item_of(number(int, least=0)),
        "action": Distinct,
        "default": [1, 2, 3],
    },
}


class Help(argparse.RawDescriptionHelpFormatter):
    """Shows every default in one way."""

    def _get_help_string(self, action: argparse.Action) -> str:
        said = action.help or ""
        if action.default in (None, False, argparse.SUPPRESS) or action.default == [] or "(default: " in said:
            return said
        several = isinstance(action.default, list | tuple)
        shown = " ".join(map(str, action.default)) if several else str(action.default)
        return f"{said} (default: {shown})".strip().replace("%", "%%")


class Parser(argparse.ArgumentParser):
    """A parser whose mistakes end in one line, with status 2.

    Args:
        command: that is typed, "linformer finetune".
        about: what --help begins with.
    """

    def __init__(self, command: str | None, about: str | None) -> None:
        super().__init__(prog=command, description=about, formatter_class=Help, allow_abbrev=False)
        self._positionals.title = "arguments"
        self._overrides: dict[str, Any] = {}
        self._rules: list[tuple[Callable[[Mapping[str, Any]], object], str]] = []
        self._old = OLD_FLAGS.get(self.prog.removeprefix("linformer "), {})

    def share(self, name: str, **own: Any) -> None:
        """Adds an argument of `SHARED`, with what this verb says of it."""
        self.add_argument(name, **{**SHARED[name], **own})

    def take_overrides(self, metavar: str, help: str) -> None:
        """Lets Hydra's overrides follow all flags; they become `overrides`."""
        self._overrides = {"metavar": metavar, "nargs": "*", "help": help}

    def rule(self, holds: Callable[[Mapping[str, Any]], object], message: str) -> None:
        """Refuses values that do not go together: where `holds` is false of them, with a message of them, {name}."""
        self._rules.append((holds, message))

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        words = list(sys.argv[1:] if args is None else args)
        needed = [action for action in self._actions if action.required]
        self.usage = self.usage or self._usage(needed)
        self._check_flags(words)
        words, overrides = self._split(words) if self._overrides else (words, [])
        for action in needed:
            action.required = False  # what is typed wrong is said before what is missing
        found, unknown = self.parse_known_args(words, namespace)
        if unknown:
            self.error(self._unexpected(unknown[0]))
        if missing := [_as_typed(action) for action in needed if getattr(found, action.dest) is None]:
            self.error(f"missing: {', '.join(missing)}{'' if missing[0][0] == '-' else '; it stands before the flags'}")
        for holds, message in self._rules:
            if not holds(vars(found)):
                self.error(message.format(**vars(found)))
        if self._overrides:
            found.overrides = overrides
        return found

    def format_help(self) -> str:
        if self._overrides:  # here alone: as an argument they would take what stands behind the model
            self.add_argument("overrides", **self._overrides)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"error: {' '.join(message.splitlines())}\n")

    def _usage(self, needed: Sequence[argparse.Action]) -> str:
        """What is typed: what stands first, the flags that are needed, others, and overrides."""
        first = [action for action in self._actions if not action.option_strings]
        flags = [action for action in needed if action.option_strings]
        others = len(self._actions) > len(first) + len(flags) + 1  # --help
        last = ["[options]"] * others + ([f"[{self._overrides['metavar']} ...]"] if self._overrides else [])
        return " ".join(["%(prog)s", *map(_as_typed, [*first, *flags]), *last])

    def _check_flags(self, words: Sequence[str]) -> None:
        known = self._option_string_actions
        for word in words:
            flag = word.partition("=")[0]
            if flag == "--":
                return
            if flag in self._old and flag not in known:
                self.error(f"{flag} is now {self._old[flag]}")
            if flag.startswith("--") and flag not in known:
                self.error(f"{flag}: there is no such flag{nearest(flag, known, f'{self.prog} --help lists them')}")

    def _split(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """The words without the overrides at their end, and these."""
        free = [i for i, word in enumerate(words) if is_override(word) and not self._takes_one(words[i - 1 : i])]
        end = len(words)
        while free and free[-1] == end - 1:
            end = free.pop()
        if free:
            self.error(f"{words[free[0]]}: overrides stand at the end, after all flags")
        return list(words[:end]), list(words[end:])

    def _takes_one(self, before: Sequence[str]) -> bool:
        """Whether the word before is a flag whose value follows it."""
        return any(
            word in self._option_string_actions and self._option_string_actions[word].nargs != 0 for word in before
        )

    def _unexpected(self, word: str) -> str:
        if "" in self._old:  # where a second word had a meaning
            return f"{word}: {self._old['']} {word}"
        what = f"no override of Hydra's, {self._overrides['metavar']}" if self._overrides else "one word too many"
        return f"{word} is {what}: {self.prog} --help says what may be typed"


def is_override(word: str) -> bool:
    """Whether it is a NAME=VALUE of Hydra's; the folder of a run may look like one (runs/lr=0.1), and is none."""
    return _OVERRIDE.match(word) is not None and not os.path.exists(word)


def nearest(name: str, names: Iterable[str], otherwise: str) -> str:
    """The end of a message: the most similar of `names`, or what to do `otherwise`."""
    by_word = {known.lstrip("-"): known for known in names}
    found = get_close_matches(name.lstrip("-"), list(by_word), n=1)
    return f"; did you mean {by_word[found[0]]}?" if found else f"; {otherwise}"


def _as_typed(action: argparse.Action) -> str:
    choices = f"{{{','.join(map(str, action.choices or ()))}}}"
    shown = str(action.metavar or choices)
    several = {"+": f"{shown} [{shown} ...]", "?": f"[{shown}]", "*": f"[{shown} ...]"}
    return " ".join([*action.option_strings[:1], several.get(str(action.nargs), shown)])


def make_parser(about: str | None) -> Parser:
    """The parser of a script that is no verb."""
    return Parser(None, about)
