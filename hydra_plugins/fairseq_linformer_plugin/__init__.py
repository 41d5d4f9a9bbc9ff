"""What happens while Hydra composes: the names of runs, and what is said of mistakes in a command line.

fairseq-hydra-train has not read ``common.user_dir`` and imported ``fairseq_linformer`` by then: only a plugin of
Hydra's can do anything. Hydra looks for plugins in the namespace package ``hydra_plugins`` alone, which is why this
folder lies beside the package. Every program that uses Hydra imports it, so it is small: it adds one resolver, and does
nothing else but in fairseq-hydra-train with a --config-dir.

``${folder_name:PATH}`` is the last part of a path: ``${folder_name:${task.data}}`` is SST-2 for data-bin/tasks/SST-2/.
"""

import os
import sys
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from types import TracebackType

from hydra._internal.utils import get_args  # as fairseq-hydra-train itself reads its command line
from hydra.core.config_search_path import ConfigSearchPath
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

OmegaConf.register_new_resolver("folder_name", lambda path: Path(os.path.abspath(path)).name, replace=True)


class FairseqLinformerPlugin(SearchPathPlugin):
    """Adds no search path: this is the one kind of plugin that Hydra asks before it composes."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        if Path(*sys.argv[:1]).stem != "fairseq-hydra-train":
            return
        args = get_args()
        if asks_for_cpu(args.overrides):
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # with a GPU in sight fairseq clips and joins processes there
        if args.config_dir is None:
            return
        if args.config_name is not None:
            check_config_name(Path(args.config_dir), args.config_name)
        if sys.excepthook is sys.__excepthook__ and os.environ.get("HYDRA_FULL_ERROR") != "1":
            os.environ["HYDRA_FULL_ERROR"] = "1"  # as in fairseq_linformer.errors, which is slow to import
            sys.excepthook = _report


def asks_for_cpu(overrides: list[str]) -> bool:
    """Whether the last word about it says common.cpu=true."""
    said = [word.partition("=")[2].lower() for word in overrides if word.lstrip("+").startswith("common.cpu=")]
    return bool(said) and said[-1] in ("true", "yes", "on", "1")


def check_config_name(folder: Path, name: str) -> None:
    """Ends the program where neither the folder nor fairseq has a configuration of that name.

    fairseq-hydra-train registers its schema under whatever name it is given: Hydra would go on with that alone.
    """
    file = f"{name.removesuffix('.yaml')}.yaml"
    if not folder.is_dir() or (folder / file).is_file() or (files("fairseq.config") / file).is_file():
        return
    if (folder / "recipe" / file).is_file():
        recipe = Path(file).stem
        sys.exit(f"error: --config-name {name}: {recipe} is a recipe, given as --config-name finetune recipe={recipe}")
    # Files that begin with a package are parts of others.
    names = sorted(path.stem for path in folder.glob("*.yaml") if not path.read_text().startswith("# @package"))
    nearest = get_close_matches(name, names, n=1)
    question = f"; did you mean {nearest[0]}?" if nearest else ""
    sys.exit(f"error: --config-name {name}: {folder} has no {file}{question} ({', '.join(names)})")


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from fairseq_linformer.errors import report

    report(kind, error, trace)
