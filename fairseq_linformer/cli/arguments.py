"""Arguments of command lines: numbers within bounds, arguments of several verbs, Hydra's overrides."""

import argparse
import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)

# Copies of names from modules that import fairseq; tests/cli/test_arguments.py compares them.
FORMATS = ("txt", "csv", "tsv", "jsonl", "conll")
KINDS = ("single-label", "multi-label", "regression", "token-label")
EXTENSIONS = ("tile", "interpolate")

_OVERRIDE = re.compile(r"(\+\+?|~)?[A-Za-z_][\w./@:-]*=|~[A-Za-z_][\w./@:-]*$")  # Hydra's grammar of a key


def number(
    number_type: type[Number], *, minimum: float = -math.inf, above: float = -math.inf, maximum: float = math.inf
) -> Callable[[str], Number]:
    """Return an argparse type for finite numbers from `minimum` to `maximum`, and greater than `above`."""
    bounds = {"at least {:g}": minimum, "above {:g}": above, "at most {:g}": maximum}
    limits = " and ".join(words.format(bound) for words, bound in bounds.items() if math.isfinite(bound))
    allowed = f"a {'whole number' if number_type is int else 'number'} {limits}".rstrip()

    def parse(text: str) -> Number:
        with contextlib.suppress(ValueError):
            value = number_type(text)
            if minimum <= value <= maximum and above < value < math.inf:
                return value
        raise argparse.ArgumentTypeError(f"{text} is not allowed: it must be {allowed}")

    return parse


class Distinct(argparse.Action):
    """Action that stores a list and rejects repeated items."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if len(set(values)) < len(values):
            items = " ".join(map(str, values))
            raise argparse.ArgumentError(self, f"{items} is not allowed: each may be given only once")
        setattr(namespace, self.dest, values)


# Arguments of several verbs: defaults of the arguments of `add_argument`.
SHARED: dict[str, dict[str, Any]] = {
    "model": {"metavar": "MODEL", "type": Path, "help": "checkpoint, or the folder of its run (its best checkpoint)"},
    "--out": {"metavar": "DIR", "type": Path, "required": True, "help": "folder to make, new or empty"},
    "--data": {"metavar": "DIR", "type": Path},
    "--tokenizer": {
        "metavar": "DIR|FILE",
        "type": Path,
        "required": True,
        "help": "the model's vocabulary: its prepared corpus, the model itself (checkpoint or folder of its run), or "
        "a .model file of sentencepiece, with the dict.txt in its folder if any",
    },
    "--source": {"metavar": "DIR|ARCHIVE|URL", "required": True},
    "--tasks": {"metavar": "TASK", "nargs": "+", "action": Distinct},
    "--text": {"metavar": "COLUMN", "help": "column, key or number of the text (default: as prepared, else text or 0)"},
    "--from": {"dest": "format"},
    "--seeds": {"metavar": "N", "nargs": "+", "type": number(int, minimum=0), "action": Distinct, "default": [1, 2, 3]},
    "--second": {"metavar": "COLUMN", "help": "column or key of the second text of a pair (default: as prepared)"},
}


class Help(argparse.RawDescriptionHelpFormatter):
    """Formatter of help with every default."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if action.default in (None, False, argparse.SUPPRESS, []) or "(default: " in text:
            return text
        values = action.default if isinstance(action.default, list) else [action.default]
        return f"{text} (default: {' '.join(map(str, values))})"


class Parser(argparse.ArgumentParser):
    """Parser of a command line that may end with Hydra's overrides.

    Args:
        command: words before the arguments, such as "linformer finetune".
        description: the beginning of --help.
    """

    def __init__(self, command: str | None, description: str | None) -> None:
        super().__init__(prog=command, description=description, formatter_class=Help, allow_abbrev=False)
        self._takes_overrides = False

    def add_shared(self, name: str, **changes: Any) -> None:
        """Add an argument of `SHARED` with the changes of this verb."""
        self.add_argument(name, **{**SHARED[name], **changes})

    def take_overrides(self, usage: str) -> None:
        """Accept Hydra's overrides after all flags, as `overrides`."""
        self.usage = f"%(prog)s {usage}"
        self._takes_overrides = True

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        args = sys.argv[1:] if args is None else args
        if not self._takes_overrides:
            return super().parse_args(args, namespace)
        end = len(args)
        while end > 1 and is_override(args[end - 1]) and not self._takes_value(args[end - 2]):
            end -= 1
        return super().parse_args(args[:end], argparse.Namespace(overrides=list(args[end:])))

    def _takes_value(self, word: str) -> bool:
        return word in self._option_string_actions and self._option_string_actions[word].nargs != 0


def is_override(word: str) -> bool:
    """Return True for NAME=VALUE of Hydra, except an existing path such as runs/lr=0.1."""
    return _OVERRIDE.match(word) is not None and not os.path.exists(word)
