"""Plugin of Hydra: names of runs, a launcher, and messages about mistakes in a command line.

While Hydra composes a configuration, fairseq-hydra-train has not read ``common.user_dir`` and imported
``fairseq_linformer`` yet: only a plugin of Hydra can act. Hydra finds plugins only in the namespace package
``hydra_plugins``, hence this separate folder. Every program that uses Hydra imports it, so it is small: it adds two
resolvers and a launcher. Everything else applies only to fairseq-hydra-train with a --config-dir.

``${folder_name:PATH}`` is the last part of a path: ``${folder_name:${task.data}}`` is SST-2 for data-bin/tasks/SST-2/.

``${run_name:NAME,${hydra:overrides.task}}`` adds the choices of a command line to a name: tiny_512-softmax for
``model.attention=softmax``.

``hydra/launcher=processes`` runs each job of a ``--multirun`` in a separate process.
"""

import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from types import TracebackType

from hydra._internal.utils import get_args  # as fairseq-hydra-train itself reads its command line
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.utils import JobReturn, JobStatus
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf

# Overrides in a run's name: choices from groups, and the attention. Others are compared when the run resumes. The name
# is the same on any number of GPUs.
_NAME_OVERRIDES = re.compile(r"(?!(recipe|distributed)$)[a-z_]+$|model\.attention$")
_OF_MULTIRUN = re.compile(r"[+~]*hydra[./](mode|launcher|sweeper|sweep)\b")  # options that a single job does not need
_NUMBERS = re.compile(r"(optimization\.(?:lr|update_freq)=)([\d.e+,-]+)")  # fairseq wants a list


def run_name(name: str, overrides: Sequence[str]) -> str:
    """Return the folder name of a run: `name`, the choices from groups, and the value of ``model.attention``."""
    pairs = [override.lstrip("+~").partition("=") for override in overrides]
    values = [value for key, _, value in pairs if _NAME_OVERRIDES.match(key)]
    return "-".join([name, *filter(None, (re.sub(r"[^\w.]+", "_", value).strip("_.") for value in values))])


OmegaConf.register_new_resolver("folder_name", lambda path: Path(os.path.abspath(path)).name, replace=True)
OmegaConf.register_new_resolver("run_name", run_name, replace=True)


def complete_command(words: Sequence[str]) -> list[str]:
    """Return a command line with numbers of list options in brackets, and without warm-up for schedules without it."""
    words = [_NUMBERS.sub(lambda word: word[1] + re.sub(r"[^,]+", r"[\g<0>]", word[2]), word) for word in words]
    no_warmup = "~lr_scheduler.warmup_updates"
    return [*words, no_warmup] if no_warmup not in words and let_recipes_warm_up().intersection(words) else words


def let_recipes_warm_up() -> set[str]:
    """Let recipes set ``warmup_updates`` of all schedules of fairseq; return the choices of schedules without it."""
    choices = set()
    for name, schedule in ConfigStore.instance().repo.get("lr_scheduler", {}).items():
        if schedule.node.get("warmup_updates") is None:
            options = OmegaConf.to_container(schedule.node)
            schedule.node = OmegaConf.create({**options, "warmup_updates": None})  # a dataclass would forbid it
            choices.add(f"lr_scheduler={name.removesuffix('.yaml')}")
    return choices


class ProcessLauncher(Launcher):
    """Launcher that runs the jobs of a ``--multirun`` one after the other, each as a separate command.

    Hydra's launcher calls fairseq repeatedly in one process, which keeps the best loss, the open TensorBoard files and
    the locks of the previous job.
    """

    def setup(self, *, hydra_context: object, task_function: object, config: DictConfig) -> None:
        args = get_args()
        overrides = [word for word in config.hydra.overrides.hydra if not _OF_MULTIRUN.match(word)]
        self._command = [*sys.argv[:1], "--config-dir", args.config_dir, "--config-name", args.config_name, *overrides]
        self._added = {"HYDRA_FULL_ERROR"} if sys.excepthook is _report else set()  # it makes a job print its traceback

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        if initial_job_idx + len(job_overrides) > 1 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            # The store of torchrun outlives a job (github.com/pytorch/pytorch/issues/135712): the next job's processes
            # would read the previous job's addresses.
            advice = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in the environment, and no static rendezvous (--master-port)"
            sys.exit(f"error: several jobs of --multirun under torchrun need {advice}")
        failed_jobs, common_overrides = [], set.intersection(*map(set, job_overrides))
        environment = {name: value for name, value in os.environ.items() if name not in self._added}
        signal.signal(signal.SIGINT, lambda number, frame: None)  # the job receives it, too, and saves
        for number, overrides in enumerate(job_overrides, 1):
            job_name = shlex.join(word for word in overrides if word not in common_overrides)
            print(f"job {number} of {len(job_overrides)}: {job_name}", flush=True)
            command = [sys.executable, *self._command, *overrides]
            status = subprocess.run(command, check=False, env=environment).returncode
            if status in (128 + signal.SIGINT, -signal.SIGINT):
                sys.exit(128 + signal.SIGINT)
            if status:
                failed_jobs.append(job_name)
        if failed_jobs:
            sys.exit(f"error: {len(failed_jobs)} of {len(job_overrides)} jobs failed: {'; '.join(failed_jobs)}")
        return [JobReturn(overrides=overrides, status=JobStatus.COMPLETED) for overrides in job_overrides]


ConfigStore.instance().store(
    group="hydra/launcher",
    name="processes",
    node={"_target_": f"{__name__}.{ProcessLauncher.__name__}"},
    provider="fairseq_linformer",
)


class ErrorReport(Callback):
    """Callback that ends a job on its error as Hydra does, but without the line of all overrides."""

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **kwargs: object) -> None:
        if job_return.status == JobStatus.FAILED:
            error = job_return._return_value
            sys.excepthook(type(error), error, error.__traceback__)
            sys.exit(1)


class FairseqLinformerPlugin(SearchPathPlugin):
    """Search path plugin that adds no path: Hydra calls no other type of plugin before it composes."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        let_recipes_warm_up()
        if Path(*sys.argv[:1]).stem != "fairseq-hydra-train":
            return
        if (words := complete_command(sys.argv[1:])) != sys.argv[1:]:  # Hydra has already read its command line
            os.execv(sys.executable, [sys.executable, sys.argv[0], *words])
        args = get_args()
        warnings.filterwarnings("ignore", r"\s*'.*' is validated against ConfigStore schema")  # caused by fairseq
        if asks_for_cpu(args.overrides):
            os.environ["CUDA_VISIBLE_DEVICES"] = ""  # else fairseq clips and joins processes on a GPU
        if args.config_name is not None and args.config_path is None:
            check_config_name(args.config_dir, args.config_name)
        if args.config_dir is None:
            return
        if sys.excepthook is sys.__excepthook__ and os.environ.get("HYDRA_FULL_ERROR") != "1":
            os.environ["HYDRA_FULL_ERROR"] = "1"  # as in cli/fairseq_errors.py, which is slow to import
            sys.excepthook = _report


def asks_for_cpu(overrides: list[str]) -> bool:
    """Return True if the last override of ``common.cpu`` is true."""
    values = [word.partition("=")[2].lower() for word in overrides if word.lstrip("+").startswith("common.cpu=")]
    return bool(values) and values[-1] in ("true", "yes", "on", "1")


def check_config_name(config_dir: str | None, name: str) -> None:
    """Exit with an error if neither the folder nor fairseq has a configuration of that name.

    fairseq-hydra-train registers its schema under any name that it gets: Hydra would compose that schema alone.
    """
    file, folder = f"{name.removesuffix('.yaml')}.yaml", Path(config_dir or "")
    if (files("fairseq.config") / file).is_file() or (config_dir and (folder / file).is_file()):
        return
    if config_dir is None or not folder.is_dir():
        sys.exit(f'error: --config-dir is {config_dir}, it must be a folder such as "$(linformer configs)"/pretrain')
    # Files that begin with a package are parts of other configurations.
    names = sorted(path.stem for path in folder.glob("*.yaml") if not path.read_text().startswith("# @package"))
    sys.exit(f"error: --config-name {name}: {folder} has no {file} ({', '.join(names)})")


def _report(error_type: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from fairseq_linformer.cli.fairseq_errors import report

    report(error_type, error, trace)
