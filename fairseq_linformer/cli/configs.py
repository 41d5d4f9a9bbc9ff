"""Print the folder of the configurations, for --config-dir.

fairseq-hydra-train --config-dir "$(linformer configs)/pretrain" --config-name tiny_512 task.data=DIR
"""

from ..files import CONFIGS
from .arguments import Parser


def add_arguments(parser: Parser) -> None:
    """Add nothing."""


def run() -> None:
    print(CONFIGS)
