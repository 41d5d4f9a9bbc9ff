"""Prints the folder of the installed configurations, for --config-dir.

fairseq-hydra-train --config-dir "$(linformer-configs)/pretrain" --config-name tiny_512 task.data=DIR
"""

from collections.abc import Sequence

from ..training.configuration import CONFIGS
from .arguments import make_parser


def main(words: Sequence[str] | None = None) -> None:
    make_parser(__doc__).parse_args(words)
    print(CONFIGS)
