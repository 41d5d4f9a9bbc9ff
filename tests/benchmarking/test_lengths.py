"""The study lengths: what each run is asked for, what is refused, the table and the command itself."""

import json
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from benchmarking.engine import Trial, Tuned
from benchmarking.lengths import LENGTHS, experiments
from benchmarking.masked_text import MaskedText, read_split
from benchmarking.store import Store
from benchmarking.variants import variants_of
from omegaconf import OmegaConf

from fairseq_linformer import LinformerRobertaModel
from fairseq_linformer.model.resolve import resolve_config
from fairseq_linformer.training.launch import Training
from tests.helpers.benchmarks import options
from tests.helpers.commands import run

PICTURES = ("lengths.png", "distance.png")
MEANS = ["model.projection=mean-pool", "model.projected_length=8"]


def asked(data, out, *words, variant=("means", *MEANS)):
    base = ["--data", data, "--out", out, "--variant", *variant, "--learning-rates", 0.1, "--seeds", 1]
    return options("lengths", *base, "--updates", 10, "--jobs", 1, "--rounds", 1, *words)


@pytest.mark.parametrize(
    ("lengths", "variant", "said"),
    [
        ([32, 48, 64], [], "--lengths=48 is not allowed: it must be a divisor of the longest of --lengths, 64"),
        ([32], ["model.max_positions=32"], r"model\.max_positions=32 is not allowed: .* --lengths says"),
        ([32], ["optimization.lr=[1]"], r"optimization\.lr=\[1\] is not allowed: .* model\.OPTION=VALUE"),
        ([32], ["model.attention"], r"model\.attention= is not allowed"),
        ([32, 16384], [], "train has .* tokens, fewer than the longest block, 16,384"),
        ([32, 4096], [], "valid has 1,165 tokens, fewer than the longest block, 4,096"),
        ([32, 64], ["model.no_such=1"], r"Could not override 'model\.no_such'"),
        ([32, 64], ["model.projected_length=33"], "projected_length=33 .* from 1 to max_positions=32"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_trains(lengths, variant, said, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(Training, "run", lambda self: pytest.fail("a training began"))
    with pytest.raises(ValueError, match=said):
        LENGTHS.run("lengths", asked(corpus, tmp_path / "out", "--lengths", *lengths, variant=("a", *variant)))
    assert not (tmp_path / "out").exists()


def test_an_update_has_the_same_tokens_whatever_n_is(corpus, tmp_path):
    found = experiments(asked(corpus, tmp_path, "--lengths", 64, 16, 32), Store(tmp_path, {}))
    assert [own.n for own in found] == [16, 32, 64]
    for own in found:
        training = own.training(Trial("means", 0.1, 1))
        assert training.folder.relative_to(tmp_path).as_posix() == f"n{own.n}/means/lr0.1/seed1"
        wanted = dict(override.split("=", 1) for override in training.overrides)
        n = int(wanted["model.max_positions"])
        assert int(wanted["dataset.batch_size"]) * n == 64 and wanted["task.tokens_per_sample"] == str(n) == str(own.n)


def test_a_window_stands_beside_the_same_without_low_rank_and_longformer_with_as_many_keys():
    named = {name: dict(word.split("=") for word in own) for name, own in variants_of("lengths", 512).items()}
    window, mean, longformer = (named[name] for name in ("near_and_far", "window-and-mean", "longformer"))
    assert {option: value for option, value in mean.items() if window[option] != value} == {
        "model.projection": "mean-pool",
        "model.projected_length": "1",
    }
    assert mean.keys() == window.keys() and longformer["model.value_residual"] == "true"
    assert int(longformer["model.longformer_window"]) == 2 * int(window["model.linformer_window"])


@pytest.mark.parametrize("n", [16, 4096])
def test_what_stands_beside_a_window_can_be_built_at_any_length(n):
    for name in ("window-and-mean", "longformer"):
        words = [word.removeprefix("model.") for word in variants_of("lengths", n)[name]]
        config = resolve_config(OmegaConf.from_dotlist(["_name=linformer_roberta_tiny", *words]), n)
        assert config.value_residual and config.longformer_global_tokens in (1, None)


def test_the_table_compares_with_the_first_variant_at_the_same_n_seed_by_seed():
    cost = {"seconds": 0.6, "low": 0.3, "high": 1.2}
    given = {("softmax", 16): [10.0, 20.0], ("near_and_far", 16): [20.0, 20.0], ("softmax", 32): [11.0, 18.0]}
    tuned = [
        Tuned(*own, {0.1: values[0], 0.2: 99.0}, 0.1, {seed: {"perplexity": x} for seed, x in enumerate(values)}, cost)
        for own, values in given.items()
    ]
    words = ["--lengths", 16, 32, "--updates", 100, "--learning-rates", 0.1, 0.2, "--seeds", 1, 2]
    asked = options("lengths", "--data", "d", *words)
    assert replace(LENGTHS, notes=lambda *_: []).tables(asked, tuned).splitlines() == [
        "| variant | n | lr | perplexity after 100 updates, seeds 1, 2 | mean | behind softmax | ms per update |",
        "|---|---|---|---|---|---|---|",
        "| softmax | 16 | 0.1 | 10.00, 20.00 | 15.00 ± 7.07 |  | 600 (300 to 1200) |",
        "| softmax | 32 | 0.1 | 11.00, 18.00 | 14.50 ± 4.95 |  | 600 (300 to 1200) |",
        "| near_and_far | 16 | 0.1 | 20.00, 20.00 | 20.00 ± 0.00 | +50.0 ± 70.7 % | 600 (300 to 1200) |",
        "",
        "| perplexity, seed 1 | n | lr 0.1 | lr 0.2 |",
        "|---|---|---|---|",
        "| softmax | 16 | 10.00 | 99.00 |",
        "| softmax | 32 | 11.00 | 99.00 |",
        "| near_and_far | 16 | 20.00 | 99.00 |",
    ]


def naive_perplexity(roberta, text, length):
    """Row by row, with the logits of every position."""
    losses = []
    for start in range(0, len(text.tokens), length - 1):
        tokens, masked = (x[start : start + length - 1] for x in (text.tokens, text.masked))
        row = torch.cat([torch.tensor([0]), torch.where(masked, roberta.task.mask_idx, tokens)])
        with torch.no_grad():
            logits = roberta.model(row.unsqueeze(0))[0][0, 1:]
        losses.append(F.cross_entropy(logits[masked], tokens[masked], reduction="none"))
    return math.exp(torch.cat(losses).mean())


@pytest.mark.exhaustive
def test_the_command_trains_measures_and_draws_once(corpus, tmp_path):
    words = ["scripts/study.py", "lengths", "--data", corpus, "--out", "out", "--variant", "means", *MEANS]
    words += ["--lengths", 64, 32, "--learning-rates", 0.01, "--seeds", 1, "--updates", 4, "--rounds", 1]
    printed, out = run(*words, cwd=tmp_path), tmp_path / "out"
    tables = (out / "results.md").read_text()
    assert tables in printed and all((out / name).stat().st_size > 10_000 for name in PICTURES)
    results = json.loads((out / "results.json").read_text())
    found = {own["n"]: own["results"]["1"]["perplexity"] for own in results["variants"]}
    assert [*found] == [32, 64] and all(own["cost"]["seconds"] > 0 for own in results["variants"])
    text = MaskedText.of_stream(read_split(corpus, "valid", 64))
    for rows, perplexity in found.items():
        folder = out / f"n{rows}" / "means" / "lr0.01" / "seed1"
        roberta = LinformerRobertaModel.from_pretrained(str(folder), "checkpoint_last.pt", str(corpus))
        assert perplexity == pytest.approx(naive_perplexity(roberta.eval(), text, rows), rel=1e-5), rows

    files = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    (folder / "losses-0.json").write_text("of another checkpoint")
    assert tables in run(*words, cwd=tmp_path)
    again = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.is_file()}
    changed = {path.name for path, time in files.items() if again[path] != time}
    assert changed <= {"results.json", "results.md", "study.json", *PICTURES, "train.log"}
