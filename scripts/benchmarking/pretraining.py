"""The small pretraining that comparisons share: configs/pretrain/tiny_512 at another width, four rows per update."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_linformer.training.commands import override
from fairseq_linformer.training.launch import Training

CONFIG = "pretrain/tiny_512"


def pretrain(data: Path, folder: Path, updates: int, embed_dim: int, overrides: Sequence[str]) -> list[dict[str, Any]]:
    """Trains in `folder`, or resumes there; a complete run is not repeated.

    The arguments are those of ``planned``.

    Returns:
        The rows that fairseq logged, as ``Training.run`` returns them.

    Raises:
        UserError: the folder holds another run, or an override is not allowed.
        OSError: the data does not exist, or the training failed.
    """
    return planned(data, folder, updates, embed_dim, overrides).run()


def planned(data: Path, folder: Path, updates: int, embed_dim: int, overrides: Sequence[str]) -> Training:
    """A training that is not begun.

    Args:
        data: a prepared corpus, as an absolute path.
        folder: of the run, as an absolute path.
        embed_dim: d; the feed-forward network has 4 d.
        overrides: Hydra's, of tiny_512 with four rows per update.
    """
    sizes = [f"model.encoder_embed_dim={embed_dim}", f"model.encoder_ffn_embed_dim={4 * embed_dim}"]
    settings = [override("task.data", data), *sizes, "dataset.batch_size=4", *overrides]
    return Training(CONFIG, tuple(settings), folder, updates)
