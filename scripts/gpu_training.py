"""Trainings of the base model on a GPU, and the CUDA tests; what scripts/gpu.py measures beside speed."""

import os
import re
import shutil
import statistics
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from gpu_speed import Row, Rows

ROOT = Path(__file__).resolve().parents[1]
RESIDUAL = "model.value_residual=true"  # which the presets have
FLEX = "model.flex_attention=true"
VARIANTS = {  # the third is the first two's window without low rank; the last has nothing to choose from
    "fetch": ["+preset=fetch", FLEX],
    "near_and_far": ["+preset=near_and_far", FLEX],
    "window-and-mean": ["+preset=near_and_far", FLEX, "model.projection=mean-pool", "model.projected_length=1"],
    "softmax": [RESIDUAL, "model.attention=softmax"],
    "longformer": [RESIDUAL, FLEX, "model.attention=longformer", "model.longformer_window=256"],
    "control": [RESIDUAL, "model.projection=mean-pool", "model.projected_length=1"],
}
UPDATES = 1200  # of a training
# Pre-norm, a convolution and Muon: without them a model sits near the unigram loss for longer than it trains here.
RECIPE = [
    "model.encoder_normalize_before=true",
    "model.local_conv=9",
    "model.attention_dropout=0",
    "task.mask_prob=0.25",
]
RECIPE += ["optimizer=muon", "optimizer.weight_decay=0.1", "optimization.lr=[0.005]"]
RECIPE += ["optimization.clip_norm=1.0", "optimization.update_freq=[1]"]
RECIPE += ["dataset.disable_validation=true", "common.log_format=json", "common.log_interval=10"]
TINY = ["model.encoder_layers=2", "model.encoder_embed_dim=32", "model.encoder_ffn_embed_dim=64"]
TINY += ["model.encoder_attention_heads=2", "model.max_positions=64", "common.fp16=false", "dataset.num_workers=0"]
TINY += ["common.log_interval=2", "common.cpu=true"]
PROGRAM = "import sys; sys.argv[0] = 'fairseq-hydra-train'; from fairseq_cli.hydra_train import cli_main; cli_main()"
# Which need nothing but pytest beside the package, the processes that run them, and updates, to see how fast they are.
TESTS = ["tests/test_devices.py", "tests/test_flex.py", "tests/test_model.py", "tests/training/test_muon.py"]
PROCESSES = 4
TRIED = 60  # updates, to see how fast they are


def run_tests(dry: bool) -> Rows:
    """The tests that compute on a GPU; a dry run only collects them.

    Raises:
        RuntimeError: some fail.
    """
    words = ["-m", "cuda", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    side_by_side = ["-n", str(PROCESSES)] if find_spec("xdist") else []
    words += ["--collect-only", TESTS[0]] if dry else [*side_by_side, *TESTS]
    command = [sys.executable, "-m", "pytest", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout + done.stderr, file=sys.stderr)
    lines = done.stdout.strip().splitlines() or ["pytest said nothing"]
    counts = {what: int(number) for number, what in re.findall(r"(\d+)(?:/\d+ tests)? (\w+)", lines[-1])}
    failures = [line[:200] for line in lines if line.startswith(("FAILED", "ERROR"))]
    yield "tests", {"counts": counts, "failures": failures[:20]}
    if done.returncode:
        raise RuntimeError(lines[-1])


@dataclass(frozen=True)
class Trainings:
    """Trainings in a folder of their own, which resume where they were ended.

    Attributes:
        work: the folder.
        dry: tiny sizes on the CPU.
    """

    work: Path
    dry: bool

    @property
    def stages(self) -> tuple[int, int]:
        """n, first and last."""
        return (32, 64) if self.dry else (512, 2048)

    def data(self, corpus: str) -> Path:
        """Where it is prepared, by this program or by hand."""
        own = ROOT / "data-bin" / corpus
        return own if (own / "dict.txt").is_file() and not self.dry else self.work / f"data-{corpus}"

    def prepare(self, corpus: str) -> Rows:
        """The sources of this Python, or the books of LINFORMER_DATA, in 4,000 pieces."""
        data, text = self.data(corpus), self.work / f"text-{corpus}"
        if not (data / "dict.txt").is_file():
            if corpus == "python":
                _run([ROOT / "scripts/python_sources.py", "--out", text])
                files = [text / f"{split}.txt" for split in ("train", "valid")]
            else:
                books = Path(os.environ.get("LINFORMER_DATA", ROOT.parent / "shared/data")) / corpus
                files = [books / f"{split}.txt.xz" for split in ("train", "valid")]
            if self.dry:
                for file in files:
                    file.write_text(file.read_text()[:100_000])
            split = ["--train", files[0], "--valid", files[1], "--vocab-size", 400 if self.dry else 4000]
            _run([ROOT / "scripts/clone.py", "prepare", "corpus", *split, "--out", data])
        yield "data", {"MB": round((data / "train.bin").stat().st_size / 1e6, 2), "python": sys.version.split()[0]}

    def quality(self, corpus: str, name: str) -> Rows:
        """A training in rows of one n, then of another, and its perplexities by where the answer stands."""
        folder, updates = self.work / f"{corpus}-{name}", 8 if self.dry else UPDATES
        self._train(corpus, name, folder, updates, f"checkpoint.save_interval_updates={updates // 4}")
        yield name, {"variant": name, "corpus": corpus, "updates": updates, **self._perplexities(corpus, folder)}
        shutil.rmtree(folder)

    def _perplexities(self, corpus: str, folder: Path) -> Row:
        from benchmarking.masked_text import WINDOW, MaskedText, perplexity, read_split

        from fairseq_linformer import LinformerRobertaModel
        from fairseq_linformer.checkpoints.files import LAST

        n, data = self.stages[1], self.data(corpus)
        roberta = LinformerRobertaModel.from_pretrained(str(folder), LAST, str(data))
        roberta.to("cpu" if self.dry else "cuda")
        text = MaskedText.of_stream(read_split(data, "valid", n)[: 2000 if self.dry else None])
        losses = text.token_losses(roberta, n)
        found = text.by_distance(losses, n).coarser([*(limit for limit in WINDOW if limit < n), n])
        return {"perplexity": perplexity(losses), "classes": [one.figures() for one in found.classes()]}

    @property
    def _rows(self) -> int:
        """Of the last n in an update."""
        return 2 if self.dry else 8

    def _words(self, corpus: str, name: str, folder: Path, updates: int) -> list[str]:
        first, last = self.stages
        lengths = f"task.lengths=[{first}:0.67,{last}:0.33]"
        words = ["--config-dir", str(ROOT / "configs/pretrain"), "--config-name", "base_2048", *VARIANTS[name], *RECIPE]
        words += [f"task.data={self.data(corpus)}", f"checkpoint.save_dir={folder}", lengths]
        words += [f"dataset.batch_size={self._rows}", f"optimization.max_update={updates}"]
        words = [word for word in words if word != FLEX] if self.dry else words
        words += [f"lr_scheduler.warmup_updates={max(2, updates // 10)}"]
        k = [] if any("projected_length" in word for word in VARIANTS[name]) else ["model.projected_length=16"]
        return [*words, *TINY, *k] if self.dry else [*words, "+precision=bf16"]

    def _train(self, corpus: str, name: str, folder: Path, updates: int, *more: str) -> str:
        """What fairseq logs of a training now; it goes on where an earlier one was ended."""
        return _run(["-c", PROGRAM, *self._words(corpus, name, folder, updates), *more])

    def scaling(self) -> Rows:
        """Tokens per second on 1, 2, 4, … GPUs.

        Raises:
            RuntimeError: there is one.
        """
        number = 2 if self.dry else torch.cuda.device_count()
        if number < 2:
            raise RuntimeError("there is one GPU")
        for ranks in (ranks for ranks in (1, 2, 4, 8) if ranks <= number and (ranks > 1 or not self.dry)):
            launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "--no-python"]
            words = self._words("python", "near_and_far", self.work / "scaling", 8 if self.dry else TRIED)
            words += ["checkpoint.no_save=true", "+distributed=torchrun"]
            log = _run([*launcher, sys.executable, "-c", PROGRAM, *words])
            yield f"{ranks} processes", {"ranks": ranks, "tokens per second": _rate(log, "wps")}


def _run(words: list[Any]) -> str:
    """What a Python program prints on standard output; the rest goes into the log.

    Raises:
        OSError: it fails.
    """
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    print(done.stdout, file=sys.stderr)
    if done.returncode:
        lines = done.stdout.strip().splitlines()[-1:] or ["see log.txt"]
        raise OSError(f"status {done.returncode}: {lines[0]}")
    return done.stdout


def _rate(log: str, what: str) -> float:
    """The mean of a logged rate over time, without the first two rows, which read the data and warm up.

    Raises:
        OSError: nothing is left.
    """
    from fairseq_linformer.training.launch import logged_rows

    values = [row[what] for row in logged_rows(log.splitlines()) if row.get(what)][2:]
    if not values:
        raise OSError("the training logged no speed")
    return statistics.harmonic_mean(values)
