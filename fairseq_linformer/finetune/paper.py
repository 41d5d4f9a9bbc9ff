"""What Linformer's paper reports, beside which results stand."""

from collections.abc import Mapping

from ..data.tasks import is_whole
from ..model.config import ResolvedConfig

# Wang et al. 2020, table 2: accuracy on the dev sets (IMDB: test) by (n, k, sharing); k None: RoBERTa-base, softmax.
PAPER_TASKS = ("SST-2", "IMDB", "QNLI", "QQP")
PAPER: Mapping[tuple[int, int | None, str | None], tuple[float, ...]] = {
    (512, None, None): (93.1, 94.1, 90.9, 90.9),
    (512, 128, "headwise"): (92.4, 94.0, 90.4, 90.2),
    (512, 128, "key-value"): (93.4, 93.4, 90.3, 90.3),
    (512, 128, "layerwise"): (93.2, 93.8, 90.1, 90.2),
    (512, 256, "headwise"): (93.2, 94.0, 90.6, 90.5),
    (512, 256, "key-value"): (93.3, 93.6, 90.6, 90.6),
    (512, 256, "layerwise"): (93.1, 94.1, 91.2, 90.8),
    (1024, 256, "headwise"): (93.0, 93.8, 90.4, 90.4),
    (1024, 256, "key-value"): (93.0, 93.6, 90.3, 90.4),
    (1024, 256, "layerwise"): (93.2, 94.2, 90.8, 90.5),
}


def paper_score(task: str, metric: str, config: ResolvedConfig, rows: int) -> str:
    """What table 2 of the paper has for a task with a model's attention, n, k and sharing; empty where it has nothing.

    `rows` are those of train: beside a part of the official ones the paper's figure compares nothing, and is left out.
    The figure is full attention at n=512, and Linformer with learned matrices: at another n, k or sharing the range
    over all that the paper has.
    """
    if metric != "accuracy" or task not in PAPER_TASKS or not is_whole(task, rows):
        return ""
    column = PAPER_TASKS.index(task)
    if config.attention == "softmax":
        row = PAPER.get((config.max_positions, None, None))
        return "" if row is None else str(row[column])
    if config.attention != "linformer" or config.projection != "linear" or config.freeze_projection:
        return ""
    setting = (config.max_positions, config.projected_length[0], config.sharing)
    if len(set(config.projected_length)) == 1 and setting in PAPER:
        return str(PAPER[setting][column])
    scores = [row[column] for (_, k, _), row in PAPER.items() if k is not None]
    return f"{min(scores)} to {max(scores)}"
