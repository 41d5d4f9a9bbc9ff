"""Configurations: the typed command, composition by Hydra, checks of option names, and the part of a task."""

import re
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from fairseq.dataclass import FairseqDataclass
from fairseq.dataclass.configs import FairseqConfig
from fairseq.dataclass.initialize import hydra_init
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from ..errors import UserError, did_you_mean
from ..files import CONFIGS

CONFIG_FILE = "config.yaml"  # in a run's folder: the configuration of the training that made its checkpoints

_composing = threading.Lock()  # Hydra's state is global to the process


def typed_command() -> list[str]:
    """Return the program's name and arguments of this process, or of the job that Hydra started in it."""
    if not HydraConfig.initialized():  # fairseq-train, or one of several processes started by fairseq
        return [Path(*sys.argv[:1]).name, *sys.argv[1:]]
    hydra = HydraConfig.get()
    folders = [source.path for source in hydra.runtime.config_sources if source.schema == "file"]
    config_dir = ["--config-dir", folders[0]] if folders else []
    return ["fairseq-hydra-train", *config_dir, "--config-name", str(hydra.job.config_name), *hydra.overrides.task]


def typed_options(group: str) -> set[str]:
    """Return the options of a group that have a value on the command line, in Hydra's or fairseq-train's notation."""
    # Hydra: GROUP.NAME=VALUE, where null is no value; fairseq-train: --some-name.
    matches = (re.match(rf"(?:\+*{group}\.|--)([\w-]+)(?:=(?!null$)|$)", argument) for argument in typed_command()[1:])
    return {match[1].replace("-", "_") for match in matches if match}


def compose_configuration(config: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the resolved configuration that fairseq-hydra-train composes from a YAML of configs/ and overrides.

    Raises:
        UserError: Hydra cannot compose it, or nothing would read an option.
    """
    folder, name = config.split("/")
    hydra_overrides = ["hydra.searchpath=[pkg://fairseq.config]", f"hydra.job.config_name={name}", *overrides]
    try:
        with _composing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Hydra's, about older options that fairseq uses
            hydra_init(name)
            GlobalHydra.instance().clear()
            with initialize_config_dir(str(CONFIGS / folder), job_name=name, version_base="1.1"):
                cfg = compose(name, overrides=hydra_overrides, return_hydra_config=True)
            HydraConfig.instance().set_config(cfg)  # ${hydra:…} is resolved from it
            options: Any = OmegaConf.to_container(cfg, enum_to_str=True)
            del options["hydra"]
            check_groups(options)
            return OmegaConf.to_container(OmegaConf.create(options), resolve=True)  # type: ignore[return-value]
    except (HydraException, OmegaConfBaseException, UserError) as error:
        text = explain_composition(error) if isinstance(error, HydraException) else str(error).strip().splitlines()[0]
        raise UserError(f"{text} ({' '.join([config, *overrides])})") from error


def check_groups(options: Iterable[str]) -> None:
    """Reject names added by ``+NAME=VALUE`` that nothing would read.

    Raises:
        UserError: a name is not a group of fairseq's options, such as a mistyped ``+precison=bf16``.
    """
    group_names = {group.name for group in fields(FairseqConfig)} | {"job_logging_cfg"}  # added by fairseq-hydra-train
    for name in options:
        if name not in group_names:
            raise UserError(no_such_option(name, group_names))


def explain_composition(error: HydraException) -> str:
    """Return a message for an error of Hydra's composition."""
    if isinstance(error, MissingConfigException) and error.options:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        question = did_you_mean(name, error.options)
        return f"{group}={name}: there is no such choice{question} ({', '.join(error.options)})"
    cause = error.__cause__
    unknown_option = re.match(r"Could not override '(.+)'", str(error))
    if unknown_option and isinstance(cause, OmegaConfBaseException) and isinstance(cause.parent_node, DictConfig):
        options = cast(dict[str, Any], OmegaConf.to_container(cause.parent_node._get_root()))
        return no_such_option(unknown_option[1], [*options, *(name for name, _ in flat(options))])
    if repeated := re.match(r"Multiple values for (\w+)\. To override a value use 'override .*: (.*)'", str(error)):
        return f"+{repeated[1]}={repeated[2]}: this configuration has a {repeated[1]}, so type it without +"
    message = str(error).partition("\nSee http")[0].partition("\n\n")[0]
    causes = [] if cause is None else [str(cause).partition("\n")[0]]
    return " ".join(": ".join(filter(None, [*message.splitlines(), *causes])).split())


def no_such_option(name: str, options: Iterable[str]) -> str:
    """Return the message for an option that is not one of `options`."""
    return f"{name}: there is no such option{did_you_mean(name, options)}"


def flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every option of a configuration."""
    for name, value in options.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def whole_config(cfg: FairseqDataclass | DictConfig) -> DictConfig | None:
    """Return the whole configuration of the run or checkpoint that contains a task's; None if there is none."""
    root = cfg._get_root() if isinstance(cfg, DictConfig) else None
    return root if isinstance(root, DictConfig) and {"checkpoint", "optimization", "model"} <= root.keys() else None


def set_options(cfg: FairseqDataclass | DictConfig, **values: Any) -> None:
    """Set options of a task, also in the configuration of the whole run, which checkpoints contain."""
    for name, value in values.items():
        setattr(cfg, name, value)
    if (whole := whole_config(cfg)) is not None:
        with open_dict(whole):
            whole.task.update(values)


def length_of_model(cfg: FairseqDataclass | DictConfig) -> int | None:
    """Return the maximum length of the run's model in tokens; None if it is not set."""
    whole = whole_config(cfg)
    return getattr(whole and whole.model, "max_positions", None)
