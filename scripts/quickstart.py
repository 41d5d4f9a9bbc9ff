#!/usr/bin/env python3
"""From text to a fine-tuned classifier, offline and in minutes: the program of `make quickstart`.

The text is the documentation that every Python installation includes, or your own:

    python scripts/quickstart.py
    python scripts/quickstart.py --corpus FILE_OR_FOLDER ...

It pretrains configs/pretrain/tiny_512.yaml with +preset=fast and two layers of d=128, and reports masked-LM perplexity
before and after. Then it fine-tunes on "which package is this docstring from?" and compares with fine-tuning from
random weights and with TF-IDF (your own text has no labels, so this part is left out). Last, it fills masks and draws
the losses. Every step is an ordinary command. An interrupted run resumes.
"""

import json
import math
import random
import statistics
from functools import partial
from pathlib import Path

import numpy as np
import torch
from copy_distance import token_stream
from docstrings import (
    collect_docstrings,
    installation_roots,
    package_examples,
    split_by_module,
    write_text,
)
from fairseq.criterions.masked_lm import MaskedLmConfig, MaskedLmLoss
from fairseq.models import BaseFairseqModel
from fairseq.models.roberta import RobertaHubInterface
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.utils import move_to_cuda

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.checkpoint_files import BEST
from fairseq_linformer.cli.arguments import Parser, number
from fairseq_linformer.cli.program import program
from fairseq_linformer.data.prepare.corpus import prepare_corpus, unigram_perplexity
from fairseq_linformer.data.prepare.examples import Example
from fairseq_linformer.data.prepare.labelled_folder import write_labelled
from fairseq_linformer.data.prepare.text_files import find_files, read_chunks
from fairseq_linformer.data.prepare.vocabulary_training import check_vocab_size
from fairseq_linformer.data.subword_models import load_tokenizer
from fairseq_linformer.data.task_record import own_task
from fairseq_linformer.digests import digest_file
from fairseq_linformer.errors import UserError
from fairseq_linformer.files import check_data_path, read_json, staged_folder
from fairseq_linformer.finetune.baseline import fit_baselines
from fairseq_linformer.plotting import picture, scale_log, style_of
from fairseq_linformer.training.launch import FINE_TUNING, Training, command_line, override, side_by_side

# Smaller than tiny_512: in the same time it trains on four times as much text, which matters more than its size.
SIZES = ["model.encoder_layers=2", "model.encoder_embed_dim=128", "model.encoder_ffn_embed_dim=512"]
RECIPE = ["+preset=fast", "dataset.batch_size=4", "optimization.lr=[0.005]", "lr_scheduler.warmup_updates=150"]
RECIPE += ["checkpoint.save_interval_updates=500"]  # validates as often; every 200 updates it would add 5 % of time
# Any word may determine the package, hence the mean.
FINE_TUNING_RECIPE = ["recipe=docstrings", "optimizer=muon", "model.classifier_pooling=mean"]
FINE_TUNING_RECIPE += ["optimizer.embedding_lr_multiplier=10"]  # as in +preset=fast
# 3,200 of 6,000 rows, each once: dropout would have nothing to prevent.
FINE_TUNING_RECIPE += ["model.dropout=0", "model.attention_dropout=0"]
JOBS = 2  # fine-tunings at a time: on two cores, the start and the validation of one overlap with updates of the other
CHARACTERS = 400  # of each docstring to classify, so that it takes minutes
VALID_BYTES = 300_000  # of validation text, for the same reason
SAMPLE = 3_000_000  # characters to train the vocabulary on, a third of the documentation: all take 8 seconds more
SENTENCES = (
    "Return a new <mask> with the same values.",
    "If the file does not exist, an error is <mask>.",
    "The default <mask> is None.",
)
OWN_SENTENCES = ("It was the <mask> of the day.", "There is no <mask> here.", "This is the first <mask>.")


def write_own_text(files: list[Path], out: Path) -> None:
    """Write train.txt and valid.txt from the user's files: of every 20 blocks of 10 lines, the last validates.

    Raises:
        UserError: the files have fewer than 200 lines.
    """
    number = 0
    with (
        (out / "train.txt").open("w", encoding="utf-8") as train_file,
        (out / "valid.txt").open("w", encoding="utf-8") as valid_file,
    ):
        for chunk in read_chunks(find_files(files)):
            for line in chunk.lines:
                (valid_file if number // 10 % 20 == 19 else train_file).write(f"{line}\n")
                number += 1
    if number < 200:
        raise UserError(f"{', '.join(map(str, files))}: {number} lines are too few; at least 200 are needed")


def write_docstrings(out: Path) -> None:
    """Write train.txt, valid.txt and the labelled examples, from the docstrings of this Python installation."""
    docstrings = list(collect_docstrings(installation_roots()))
    splits = split_by_module(docstrings)
    random.Random(1).shuffle(splits["valid"])  # sorted by package
    valid, size = [], 0
    for docstring in splits["valid"]:
        size += len(docstring.text.encode())
        valid += [docstring] if size < VALID_BYTES else []
    for name, part in (("train", splits["train"]), ("valid", valid)):
        print(f"{name}: {len(part):,} docstrings, {write_text(part, out / f'{name}.txt') / 1e6:.1f} MB")
    examples = package_examples(docstrings)
    rows = {split: [(example.text[:CHARACTERS], example.label) for example in part] for split, part in examples.items()}
    (out / "examples.json").write_text(json.dumps(rows))


def collect_text(corpus: list[Path], text: Path, vocab_size: int) -> None:
    """Write the folder of texts, unless an earlier run wrote it from the same files for the same vocabulary.

    Raises:
        UserError: an earlier run wrote it from others.
    """
    files = {str(file.absolute()): digest_file(file) for file in find_files(corpus)}
    source = {"corpus": files, "vocab_size": vocab_size}
    if not text.is_dir():
        print("collecting text", flush=True)
        with staged_folder(text, "source.json") as (folder, mark):
            write_own_text(corpus, folder) if corpus else write_docstrings(folder)
            json.dump(source, mark)
    elif read_json(text / "source.json") != source:
        raise UserError(
            f"{text.parent} holds a run on another text or vocabulary: remove it, or name another folder with --out"
        )


def pretrain(data: Path, out: Path, updates: int) -> list[dict]:
    return Training("pretrain/tiny_512", [*SIZES, *RECIPE, override("task.data", data)], out, updates).run()


def fine_tune(data: Path, checkpoint: Path | None, out: Path, seed: int, updates: int) -> list[dict]:
    """Fine-tune a checkpoint, or random weights if it is None."""
    start = (
        override("checkpoint.finetune_from_model", checkpoint) if checkpoint else "checkpoint.finetune_from_model=null"
    )
    overrides = [*FINE_TUNING_RECIPE, "model=tiny_512", *SIZES, override("task.data", data), start]
    return Training(FINE_TUNING, [*overrides, f"common.seed={seed}"], out, updates).run()


def compare_fine_tuning(folder: Path, checkpoint: Path, seeds: list[int], updates: int) -> dict[str, list[list[dict]]]:
    """Fine-tune the checkpoint, and random weights, with each seed. Print the accuracies and return the logs."""
    rows_of_splits = read_json(folder / "text" / "examples.json")
    splits = {split: [Example(text, label) for text, label in rows] for split, rows in rows_of_splits.items()}
    data = folder / "data-classification"
    if not data.is_dir():
        write_labelled(data, own_task("docstrings", "single-label"), splits, load_tokenizer(folder / "data"))
    words, majority = (metrics["valid"]["accuracy"] for metrics in fit_baselines(data))
    initial_checkpoints = {"pretrained": checkpoint, "random weights": None}
    calls = [
        partial(fine_tune, data, initial, folder / f"fine-tuned-{name.replace(' ', '-')}-{seed}", seed, updates)
        for name, initial in initial_checkpoints.items()
        for seed in seeds
    ]
    runs: list[list[dict]] = []
    for log in side_by_side(calls, JOBS):
        if isinstance(log, Exception):
            raise log
        runs.append(log)
    logs = {"pretrained": runs[: len(seeds)], "random weights": runs[len(seeds) :]}
    rows, packages = splits["valid"], sorted({example.label for example in splits["valid"]})
    print(f"\nwhich of {len(packages)} packages is a docstring from? ({', '.join(packages)})")
    print(f"  majority class  {majority:5.1f} % of {len(rows):,}")
    print(f"  TF-IDF + SVM    {words:5.1f} %")
    for name, runs in logs.items():
        accuracies = [[row["valid_accuracy"] for row in run if "valid_accuracy" in row][-1] for run in runs]
        spread = f" ± {statistics.stdev(accuracies):.1f} over {len(seeds)} seeds" if len(seeds) > 1 else ""
        print(f"  {name:14}  {statistics.mean(accuracies):5.1f} %{spread}")
    return logs


def masked_lm_perplexity(model: BaseFairseqModel, task: MaskedLMTask) -> float:
    """Return exp of the mean loss in nats over the masked tokens of valid, as fairseq's criterion computes it.

    Masks and the order of sequences depend on the task's seed only: they are the same for every model.

    Args:
        model: in evaluation mode afterwards.
        task: with the data; valid is loaded here.
    """
    task.load_dataset("valid")
    criterion = MaskedLmLoss(MaskedLmConfig(tpu=False), task)
    samples = task.get_batch_iterator(task.dataset("valid"), max_sentences=8, epoch=1).next_epoch_itr(shuffle=False)
    loss, count, on_gpu = 0.0, 0, next(model.parameters()).is_cuda
    for sample in samples:
        batch = move_to_cuda(sample) if on_gpu else sample
        batch_loss, sample_size, _ = task.valid_step(batch, model, criterion)
        loss += float(batch_loss)
        count += int(sample_size)
    return math.exp(loss / count)


def perplexity_of_frequencies(task: MaskedLMTask) -> float:
    """Return the perplexity on valid of a model that predicts each token by its frequency in train."""
    streams = (token_stream(Path(task.cfg.data), split) for split in ("train", "valid"))
    return unigram_perplexity(*(np.bincount(ids, minlength=len(task.source_dictionary)) for ids in streams))


def report_perplexity(roberta: RobertaHubInterface) -> None:
    """Print the masked-LM perplexity of the trained model, of the untrained one, and of the unigram model."""
    trained, task = roberta.model, roberta.task
    torch.manual_seed(roberta.cfg.common.seed)  # the seed of fairseq's initial weights
    untrained = task.build_model(roberta.cfg.model)
    print("\nperplexity on the validation text, at masked tokens")
    print(f"  before pretraining  {masked_lm_perplexity(untrained, task):8.1f}")
    print(f"  token frequencies   {perplexity_of_frequencies(task):8.1f}")
    print(f"  after pretraining   {masked_lm_perplexity(trained, task):8.1f}")


def draw_losses(pretraining: list[dict], fine_tuning: dict[str, list[list[dict]]], path: Path) -> None:
    columns = 2 if fine_tuning else 1
    with picture(path, 1, columns, 5 * columns, 4) as (_, [panels]):
        for number, (label, prefix, marker) in enumerate((("training", "", None), ("validation", "valid_", "o"))):
            steps, key = f"{prefix}num_updates", f"{prefix}ppl"
            points = [(row[steps], row[key]) for row in pretraining if key in row and steps in row]
            panels[0].plot(*zip(*points, strict=True), label=label, **{**style_of(number), "marker": marker})
        panels[0].set(xlabel="updates", ylabel="masked-LM perplexity", title="pretraining")
        scale_log(panels[0].yaxis)
        panels[0].legend()
        for number, (name, runs) in enumerate(fine_tuning.items()):
            for i, run in enumerate(runs):
                points = [(row["num_updates"], row["loss"]) for row in run if "loss" in row]
                style = style_of(number) | {"marker": None}
                panels[1].plot(*zip(*points, strict=True), label=name if i == 0 else None, **style)
            panels[1].set(xlabel="updates", ylabel="training loss (bits)", title="fine-tuning")
            panels[1].legend()


def quickstart(
    corpus: list[Path], out: Path, vocab_size: int, updates: int, fine_tuning_updates: int, seeds: list[int]
) -> None:
    out = out.absolute()
    check_data_path(out)  # the data is in it
    check_vocab_size("vocab-size", vocab_size)
    text, data, pretrained = out / "text", out / "data", out / "pretrained"
    collect_text(corpus, text, vocab_size)
    if not data.is_dir():
        files = ([text / "train.txt"], [text / "valid.txt"])
        prepare_corpus(*files, data, vocab_size=vocab_size, sample_characters=SAMPLE)
    log = pretrain(data, pretrained, updates)
    checkpoint = pretrained / BEST
    roberta = LinformerRobertaModel.from_pretrained(str(pretrained), checkpoint.name, str(data))
    report_perplexity(roberta)
    fine_tuning = {} if corpus else compare_fine_tuning(out, checkpoint, seeds, fine_tuning_updates)
    print()
    for sentence in OWN_SENTENCES if corpus else SENTENCES:
        fills = ", ".join(
            f"{fill.strip()} {probability:.2f}" for _, probability, fill in roberta.fill_mask(sentence, 3)
        )
        print(f"{sentence}  ->  {fills}")
    draw_losses(log, fine_tuning, out / "losses.png")
    print(f"\ntext, data and checkpoints: {out}\nloss curves: {out / 'losses.png'}\nthe next larger step:")
    if torch.cuda.is_available():
        larger, steps = "base_512", [f"optimization.update_freq=[{64 // max(1, torch.cuda.device_count())}]"]
    else:
        larger = "tiny_512"
        steps = ["+preset=fast", "optimization.max_update=20000", "lr_scheduler.warmup_updates=1000"]
    print("  " + command_line(f"pretrain/{larger}", override("task.data", data), *steps))


if __name__ == "__main__":
    parser = Parser(None, __doc__)
    add, count = parser.add_argument, number(int, minimum=1)
    add("--corpus", metavar="FILE", nargs="+", type=Path, default=[], help="your own text files")
    parser.add_shared("--out", required=False, default=Path("quickstart"), help="folder of everything that is made")
    add("--vocab-size", metavar="N", type=count, default=2000, help="pieces")
    add("--updates", metavar="N", type=count, default=1500, help="of pretraining")
    add("--fine-tuning-updates", metavar="N", type=count, default=200, help="of fine-tuning")
    parser.add_shared("--seeds", help="of fine-tuning")
    arguments = parser.parse_args()
    with program():
        quickstart(**vars(arguments))
