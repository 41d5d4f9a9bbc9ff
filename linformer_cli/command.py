"""`linformer VERB`: finds the verb, reads the words after it, and runs it."""

import importlib
import importlib.metadata
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from .arguments import Parser, nearest
from .old_names import OLD_VERBS

# The verbs, and their modules: here one with a docstring, whose first line is the summary, and `add_arguments`; in
# fairseq_linformer/cli one with `run`.
VERBS = {
    "prepare corpus": "prepare_corpus",
    "prepare glue": "prepare_glue",
    "prepare imdb": "prepare_imdb",
    "prepare table": "prepare_table",
    "finetune": "finetune",
    "predict": "predict",
    "export": "export",
    "import": "import_",
    "convert": "convert",
    "analyze": "analyze",
    "configs": "configs",
}
ABOUT = """\
usage: linformer VERB ...
       linformer --version

From text to a Linformer, and what is done with a trained one. `linformer VERB --help` says more.

{}

Pretraining is a command of fairseq's:
  fairseq-hydra-train --config-dir "$(linformer configs)/pretrain" --config-name tiny_512 task.data=DIR"""


def main(words: Sequence[str] | None = None) -> None:
    """Runs what is typed after `linformer`."""
    words = list(sys.argv[1:] if words is None else words)
    verb, rest = find_verb(words)
    options = vars(parser_of(verb).parse_args(rest))
    try:  # here, as it takes seconds, for which a mistake need not wait
        from fairseq_linformer.cli.program import program
    except KeyboardInterrupt:  # which `program` takes from then on
        print("interrupted", file=sys.stderr)
        sys.exit(130)
    with program():
        importlib.import_module(f"fairseq_linformer.cli.{VERBS[verb]}").run(**options)


def find_verb(words: Sequence[str]) -> tuple[str, list[str]]:
    """The verb that `words` begin with, and those after it; where there is none, the program ends here."""
    for length in (2, 1):
        if (verb := " ".join(words[:length])) in VERBS:
            return verb, list(words[length:])
    first = " ".join(words[:1])
    below = [verb for verb in VERBS if verb.startswith(f"{first} ")]
    if not words or first in ("-h", "--help") or (below and words[1:2] in ([], ["-h"], ["--help"])):
        print(overview(below or list(VERBS)))
        sys.exit(0)
    if first == "--version":
        print("linformer", importlib.metadata.version("fairseq-linformer"))
        sys.exit(0)
    typed = " ".join(words[: 2 if below else 1])
    _refuse(typed, below)


def parser_of(verb: str) -> Parser:
    """The parser of a verb."""
    module = _module(verb)
    parser = Parser(f"linformer {verb}", module.__doc__)
    module.add_arguments(parser)
    return parser


def overview(verbs: Sequence[str]) -> str:
    """What --help prints without a verb: a line for each."""
    width = max(map(len, verbs))
    summaries = ((_module(verb).__doc__ or "").partition("\n")[0].rstrip(".") for verb in verbs)
    return ABOUT.format("\n".join(f"  {verb:{width}}  {said}" for verb, said in zip(verbs, summaries, strict=True)))


def _module(verb: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{VERBS[verb]}")


def _refuse(typed: str, below: Sequence[str]) -> NoReturn:
    """Ends the program: there is no such verb. `below`: those that begin with its first word."""
    if new := OLD_VERBS.get(typed.replace("_", "-").removeprefix("linformer-")):
        said = f"{typed} is now linformer {new}"
    else:
        names = below or {name for verb in VERBS for name in (verb, verb.partition(" ")[0])}
        said = f"{typed}: there is no such verb{nearest(typed, names, 'linformer --help lists them')}"
    print(f"error: {said}", file=sys.stderr)
    sys.exit(2)
