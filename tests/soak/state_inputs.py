"""The files that one command leaves for another, mutated, and read by the functions that trust them."""

import json
import random
from argparse import Namespace
from pathlib import Path
from typing import Any

from benchmarking.store import STUDY_FILE, Store, digest

from fairseq_linformer.data.prepare.glue import SOURCES
from fairseq_linformer.data.tasks import SUMMARY_FILE, TASKS, read_summary
from fairseq_linformer.finetune.results import RESULTS_FILE, SCORES_FILE, best_checkpoints, write_results, write_scores
from fairseq_linformer.finetune.submission import check_submission
from fairseq_linformer.resolve import resolve_config
from fairseq_linformer.system.files import write_whole
from fairseq_linformer.training.launch import FINE_TUNING, RUN_FILE
from fairseq_linformer.training.provenance import Provenance

from .mutations import mutate, mutate_state

CHECKPOINT = "0" * 64  # the digest of the checkpoint that all runs start from
OPTIONS = {"optimization.lr": [0.01], "dataset.batch_size": 16, "common.seed": 1, "optimization.max_update": 6}
OPTIONS |= {"checkpoint.best_checkpoint_metric": "score"}
SETTINGS = {"study": "speed", "layers": 1, "lengths": [512]}


class StateFiles:
    """Summaries of prepared folders, runs, scores, results, submissions and studies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        counts = {"examples": 40, "tokens": 300, "long": 1, "unknown": 0}
        splits = {"train": counts, "valid": counts}
        self.summary = {"task": TASKS["RTE"].as_json(), "splits": splits, "long_length": 512}
        self.results = {"runs": [_run(task, seed) for task in ("MRPC", "RTE") for seed in (1, 2)]}
        rows = range(SOURCES["WNLI"].files["test"].rows)
        self.submission = "index\tprediction\n" + "".join(f"{number}\t{number % 2}\n" for number in rows)
        self.model = resolve_config(Namespace(encoder_layers=1), 16)
        self.run = folder / "runs" / "RTE" / "seed1"
        self.run.mkdir(parents=True, exist_ok=True)
        made = Provenance(FINE_TUNING, OPTIONS, "1" * 64, CHECKPOINT)
        write_whole(self.run / RUN_FILE, json.dumps({**made.as_json(), "complete": True}))
        write_whole(self.run / SUMMARY_FILE, json.dumps(self.summary))
        write_whole(self.run / "predictions-valid.tsv", "label\tprediction\n0\t0\n")
        write_scores(self.run, made, {"valid": {"accuracy": 80.5}})
        row = {"suite": "models", "group": "n=512", "model": "linformer", "note": "", "phase": "step", "n": 512}
        kept = [{**row, "d": 24, "k": 128, "rows": 1, "seconds": 0.5}]
        self.measured = {"made_of": {"cases": "0"}, "result": kept, "digest": digest(kept)}
        for place in ("study/models", "settings"):
            (folder / place).mkdir(parents=True, exist_ok=True)

    def attempt(self, chance: random.Random) -> str | None:
        kinds = (self._summary, self._results, self._submission, self._run_folder, self._study)
        return chance.choice(kinds)(chance)

    def _summary(self, chance: random.Random) -> str | None:
        content = _write(self.folder / "task.json", self.summary, chance)
        found = read_summary(self.folder)
        same = [*found.task.classes] == content["task"]["classes"] and found.task.scale == content["task"]["scale"]
        for split, counts in found.splits.items():
            said = content["splits"][split]
            same &= all(getattr(counts, name) == said[name] for name in ("examples", "tokens", "long"))
        return None if same and found.splits.keys() == content["splits"].keys() else f"the summary {found}"

    def _results(self, chance: random.Random) -> str | None:
        content = _write(self.folder / RESULTS_FILE, self.results, chance)
        found = best_checkpoints(self.folder)
        best: dict[str, tuple[float, Path]] = {}
        for run in content["runs"]:
            value = run["score"]
            if value is not None and (run["task"] not in best or value > best[run["task"]][0]):
                best[run["task"]] = value, self.folder / run["folder"] / "checkpoint_best.pt"
        return None if found == {task: path for task, (_, path) in best.items()} else f"the checkpoints {found}"

    def _submission(self, chance: random.Random) -> str | None:
        content = mutate(self.submission.encode(), chance)
        (self.folder / "WNLI.tsv").write_bytes(content)
        check_submission(self.folder)
        header, *rows = content.decode().removesuffix("\n").split("\n")
        right = header == "index\tprediction" and len(rows) == SOURCES["WNLI"].files["test"].rows
        right &= all(row in (f"{number}\t0", f"{number}\t1") for number, row in enumerate(rows))
        return None if right else "a submission that is not right was let through"

    def _run_folder(self, chance: random.Random) -> str | None:
        """What a run's folder says of it; results.json must say the same, or nothing."""
        path = self.run / chance.choice((RUN_FILE, SCORES_FILE))
        whole = path.read_bytes()
        try:
            _write(path, json.loads(whole), chance)
            write_results(self.folder / "runs", Path("a.pt"), CHECKPOINT, self.model, [], [])
            said = json.loads((self.run / SCORES_FILE).read_bytes()) if path.name == RUN_FILE else _parsed(path)
            for run in json.loads((self.folder / "runs" / RESULTS_FILE).read_text())["runs"]:
                if run["scores"] and run["scores"] != said["scores"]:
                    return f"the scores {run['scores']}"
        finally:
            path.write_bytes(whole)
        return None

    def _study(self, chance: random.Random) -> str | None:
        """The settings of a study, or one of its results."""
        if chance.random() < 0.5:
            content = _write(self.folder / "settings" / STUDY_FILE, SETTINGS, chance)
            Store(self.folder / "settings", SETTINGS)
            return None if {**content, **SETTINGS} == content else f"the settings {content}"
        content = _write(self.folder / "study" / "models" / "00 n=512-0.json", self.measured, chance)
        (found,) = Store(self.folder / "study", {}).all("models")
        return None if found == content["result"] else f"the rows {found}"


def _run(task: str, seed: int) -> dict[str, Any]:
    return {"task": task, "seed": seed, "folder": f"{task}/seed{seed}", "score": 80.5 + seed, "error": ""}


def _write(path: Path, whole: Any, chance: random.Random) -> Any:
    """Writes a state file, mutated, and returns what it says as Python reads it, None where it does not."""
    path.write_bytes(mutate_state(json.dumps(whole).encode(), chance))
    return _parsed(path)


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
