"""What a training is made of, as its checkpoints carry it: no folder is continued, or called complete, for another.

``config.yaml`` shows the whole configuration to people.
"""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fairseq.models import ARCH_MODEL_REGISTRY
from omegaconf import DictConfig, OmegaConf

from ..errors import UserError
from ..model import LinformerRobertaModel
from ..resolve import resolve_config
from ..system.files import write_whole
from .checkpoint_files import Progress
from .provenance import Provenance, digest_data, digest_file, start_of, typed_command

CONFIG_FILE = "config.yaml"  # in a run's folder: the configuration of the training that made its checkpoints


def is_in(folder: Path, file: Path) -> bool:
    """Whether a file lies in that very folder."""
    return file.absolute().parent.resolve() == folder.resolve()


class Record:
    """What a training that begins now is made of.

    Args:
        cfg: its whole configuration.

    Raises:
        FileNotFoundError: there is no such data.
    """

    def __init__(self, cfg: DictConfig) -> None:
        self._cfg = cfg
        self._folder = Path(cfg.checkpoint.save_dir)
        start = start_of(cfg.checkpoint)
        # A run goes on where the checkpoint that it started from is gone, and from an earlier one of its own.
        self._knows_start = start is None or (start.is_file() and not is_in(self._folder, start))
        options: Any = OmegaConf.to_container(cfg, enum_to_str=True)
        if issubclass(ARCH_MODEL_REGISTRY.get(options["model"]["_name"], object), LinformerRobertaModel):
            # Complete, as its flags and Hydra's options leave other parts of it to the architecture.
            options["model"] = vars(resolve_config(cfg.model, cfg.task.get("tokens_per_sample")))
        digest = digest_file(start) if start is not None and self._knows_start else None
        self._made_of = Provenance.of_training(options, digest_data(cfg.task.data), digest)
        self._is_written = False

    def as_state(self) -> dict[str, Any]:
        """What a checkpoint of this training says of it."""
        return {**self._made_of.as_json(), "command": typed_command()}

    def check_same(self, checkpoint: Path, progress: Progress) -> None:
        """Compares this training with the one that a checkpoint in its folder is of.

        Raises:
            UserError: they differ in more than what may change (``provenance.Provenance.of_training``).
        """
        names = [field.name for field in fields(Provenance)]
        if not progress.made_of.keys() >= set(names):
            return  # it was written by fairseq alone
        recorded = Provenance(*(progress.made_of[name] for name in names))
        if not self._knows_start:
            self._made_of = replace(self._made_of, checkpoint=recorded.checkpoint)
        if changes := recorded.changes(self._made_of):
            raise UserError(
                f"{self._folder} holds a run with other settings ({changes}): name another checkpoint.save_dir, with "
                f"checkpoint.restore_file={checkpoint} to go on from this run there"
            )

    def write(self) -> None:
        """Writes config.yaml, once; called when it is sure that the folder's checkpoints are this training's."""
        if not self._is_written:
            write_whole(self._folder / CONFIG_FILE, OmegaConf.to_yaml(self._cfg))
            self._is_written = True
