"""Command line `linformer VERB`: selection, parsing and execution of a verb."""

import importlib
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

from .arguments import Parser
from .program import program

VERBS = {  # modules of this folder
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
OVERVIEW = """\
usage: linformer VERB ...
       linformer --version

Train a Linformer on your text, and use it. `linformer VERB --help` describes a verb.

{}

For pretraining there is a command of fairseq:
  fairseq-hydra-train --config-dir "$(linformer configs)/pretrain" --config-name tiny_512 task.data=DIR"""


def main(words: Sequence[str] | None = None) -> None:
    """Run a command line, by default that of this process."""
    words = sys.argv[1:] if words is None else words
    verb, arguments = split_verb(words)
    options = vars(parser_of(verb).parse_args(arguments))
    with program():
        module_of(verb).run(**options)


def split_verb(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the verb and the words after it; without a verb, exit with the overview or an error."""
    for length in (2, 1):
        if (verb := " ".join(words[:length])) in VERBS:
            return verb, list(words[length:])
    if words[:1] == ["--version"]:
        from importlib.metadata import version  # slow

        print("linformer", version("fairseq-linformer"))
        sys.exit(0)
    arguments = [word for word in words if word not in ("-h", "--help")]
    verbs = [verb for verb in VERBS if arguments in ([], [verb.partition(" ")[0]])]
    if not verbs:
        print(f"error: {' '.join(words[:2])}: there is no such verb; linformer --help lists them", file=sys.stderr)
        sys.exit(2)
    print(OVERVIEW.format("\n".join(summaries(verbs))))
    sys.exit(0)


def parser_of(verb: str) -> Parser:
    module = module_of(verb)
    parser = Parser(f"linformer {verb}", module.__doc__)
    module.add_arguments(parser)
    return parser


def summaries(verbs: Iterable[str]) -> list[str]:
    """Return a line for each verb, with the first line of its module's docstring."""
    width = max(map(len, VERBS))
    return [f"  {verb:{width}}  {str(module_of(verb).__doc__).splitlines()[0].rstrip('.')}" for verb in verbs]


def module_of(verb: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{VERBS[verb]}")
