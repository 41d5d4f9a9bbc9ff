"""The studies perplexity and mechanisms: what is trained, measured and refused. Trainings are stubs."""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from benchmarking import masked_text, pretraining
from benchmarking.engine import Trial
from benchmarking.losses_by_distance import NOWHERE, LossesByDistance
from benchmarking.masked_text import MaskedText
from benchmarking.perplexity import MECHANISMS, PERPLEXITY, mechanism_experiments, perplexity_experiments
from benchmarking.pretraining import Pretraining
from benchmarking.store import Store
from benchmarking.variants import variants_of

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.errors import UserError
from fairseq_linformer.training.active_run import DIVERGED
from fairseq_linformer.training.launch import Training
from tests.helpers.benchmarks import options, write_shards

MEASURED = {"a/lr0.1/seed1": 10.0, "a/lr0.01/seed1": 12.0, "a/lr0.1/seed2": 20.0}
MEASURED |= {"b/lr0.1/seed1": 30.0, "b/lr0.01/seed1": 11.0, "b/lr0.01/seed2": 24.0}
LOGGED = [{"loss": 9.0, "num_updates": 50.0}, {"loss": 7.0, "num_updates": 100.0}, {"valid_loss": 5.0}]
LOGGED += [{"loss": 4.0, "num_updates": 150.0}, {"train_loss": 6.0, "train_num_updates": 150.0}]


def figures(perplexity):
    """Of a run, as ``Pretraining.losses`` gives them."""
    seen = LossesByDistance.of(np.log([9.0, 3.0]), np.array([NOWHERE, 400]), np.array([0, 0]), [64, 192, 512])
    return {"perplexity": perplexity, **vars(seen)}


@pytest.fixture
def trained(monkeypatch):
    """Stands for the trainings and their checks: what each run was asked for, by its folder."""
    asked = {}

    def run(training):
        asked["/".join(training.folder.parts[-4:])] = training
        return LOGGED

    monkeypatch.setattr(Training, "run", run)
    monkeypatch.setattr(Pretraining, "check", lambda self: None)
    monkeypatch.setattr(Pretraining, "losses", lambda self, trial: figures(MEASURED.get(trial.folder, 50.0)))
    monkeypatch.setattr(Pretraining, "step", lambda self, tuned: lambda: None)
    return asked


def test_the_command_trains_what_it_is_asked_for_and_compares_seed_by_seed(trained, tmp_path):
    words = ["--data", tmp_path, "--out", tmp_path / "out", "--variant", "a", "--variant", "b", "model.local_conv=0"]
    words += ["--seeds", 1, 2, "--learning-rates", 0.1, 0.01, "--updates", 5, "--all", "model.projected_length=8"]
    tables = PERPLEXITY.run("perplexity", options("perplexity", *words)).splitlines()
    assert sorted(trained) == sorted(f"out/{run}" for run in MEASURED), "no other rate with the second seed"
    training = trained["out/b/lr0.01/seed2"]
    assert training.updates == 5 and {"common.seed=2", "optimization.lr=[0.01]"} <= {*training.overrides}
    assert training.overrides[-2:] == ("model.projected_length=8", "model.local_conv=0"), "after the recipe's own"
    # 1 of 10 and 4 of 20; the last column has the time of an update
    assert tables[3].startswith("| b | 0.01 | 11.00, 24.00 | 17.50 ± 9.19 | +15.0 ± 7.1 % | ")
    assert (tmp_path / "out/perplexity.png").read_bytes().startswith(b"\x89PNG")
    longer = options("perplexity", *words, "task.tokens_per_sample=2048")
    assert [own.n for own in perplexity_experiments(longer, Store(tmp_path, {}))] == [2048]
    longer = options("mechanisms", *words[:4], "--all", "task.tokens_per_sample=2048")
    assert [own.n for own in mechanism_experiments(longer, Store(tmp_path, {}))] == [2048]
    replaced = options("mechanisms", *words[:4], "--variant", "control", "model.attention=efficient")
    with pytest.raises(UserError, match=r"^variant=control is not allowed: it must be another name"):
        mechanism_experiments(replaced, Store(tmp_path, {}))
    one = options("perplexity", *words[:6], "--seeds", 1, "--learning-rates", 0.1, "--updates", 5)
    assert PERPLEXITY.run("perplexity", one).splitlines()[2].startswith("| a | 0.1 | 10.00 | 10.00 |  | ")


def experiment(data, store, **changes):
    made = Pretraining(store, 512, {"a": []}, data, updates=5, seeds=[1], rates=[0.1], jobs=1)
    return replace(made, **changes)


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("optimization.lr=[1]", "--learning-rates"),
        ("+common.seed=7", "--seeds"),
        ("optimization.max_update=3", "--updates"),
        ("checkpoint.save_dir=/x", "--out"),
    ],
)
def test_what_the_study_says_has_one_place(tmp_path, word, option):
    """A variant's own would win over that, and the table would name another."""
    with pytest.raises(ValueError, match=rf"{re.escape(word)}: .* is set by {option}$"):
        experiment(tmp_path, Store(tmp_path, {}), variants={"a": [word]})


def failing(monkeypatch, said, *folders):
    """Runs fail, those in these folders or all, as with a program that ends with these lines."""

    def run(training):
        if not folders or "/".join(training.folder.parts[-3:]) in folders:
            raise OSError(f"fairseq-hydra-train: {said}")
        return LOGGED

    monkeypatch.setattr(Training, "run", run)


def test_a_learning_rate_with_which_a_run_diverges_is_not_chosen(trained, monkeypatch, tmp_path):
    words = ["--data", tmp_path, "--out", tmp_path / "out", "--variant", "a", "--variant", "b"]
    words += ["--seeds", 1, 2, "--learning-rates", 0.1, 0.01, "--updates", 5]
    failing(monkeypatch, f"{DIVERGED}: after update 2", "b/lr0.01/seed1")
    assert "| b | 30.00 | diverged |" in PERPLEXITY.run("perplexity", options("perplexity", *words))
    content = json.loads((tmp_path / "out/results.json").read_text(), parse_constant=pytest.fail)
    assert [own["tried"] for own in content["variants"]] == [{"0.1": 10.0, "0.01": 12.0}, {"0.1": 30.0, "0.01": None}]
    failing(monkeypatch, f"{DIVERGED}: after update 2", "b/lr0.01/seed1", "b/lr0.1/seed2")
    with pytest.raises(ValueError, match=r"^b/lr0\.1/seed2 diverged: --learning-rates must have lower ones$"):
        PERPLEXITY.run("perplexity", options("perplexity", *words))


def test_a_training_that_fails_ends_the_comparison(monkeypatch, tmp_path):
    failing(monkeypatch, "ended with status 1")
    with pytest.raises(OSError, match="ended with status 1"):
        experiment(tmp_path, Store(tmp_path, {})).measure([Trial("a", 0.1, 1)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], ""),
        (["model.no_such=1"], r"model\.no_such: there is no such option"),
        (["model.projected_length=1000"], "projected_length=1000 .* from 1 to max_positions=512"),
    ],
)
def test_what_cannot_work_and_a_run_of_other_settings_are_refused_before_anything_trains(
    words, said, corpus, tmp_path, monkeypatch
):
    monkeypatch.setattr(Training, "run", lambda self: pytest.fail("a training began"))
    asked = options("perplexity", "--data", corpus, "--out", tmp_path / "out", "--variant", "a", *words)
    if not said:
        folder = tmp_path / "out/a/lr0.005/seed1"
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"complete": True}))
        said = r"run\.json is damaged: its content has no config"
    with pytest.raises(ValueError, match=said):
        PERPLEXITY.run("perplexity", asked)
    assert not (tmp_path / "out/study.json").exists()


def test_a_corpus_in_shards_is_measured_on_the_first(tmp_path):
    first = write_shards(tmp_path / "data")
    assert experiment(tmp_path / "data", Store(tmp_path, {})).corpus == first
    assert experiment(first, Store(tmp_path, {})).corpus == first


def test_losses_are_measured_once_per_checkpoint(monkeypatch, tmp_path):
    """Of a corpus in shards with the data of the first; in rows as long as those of the training."""
    loaded = []

    class Model:
        cfg = SimpleNamespace(task=SimpleNamespace(tokens_per_sample=64))

        @classmethod
        def from_pretrained(cls, folder, checkpoint, data):
            loaded.append(data)
            return cls()

        def to(self, device):
            return self

    def token_losses(self, roberta, length):
        assert length == 64
        return torch.full((int(self.masked.sum()),), math.log(7.5 + len(loaded)))

    monkeypatch.setattr(pretraining, "LinformerRobertaModel", Model)
    monkeypatch.setattr(MaskedText, "token_losses", token_losses)
    monkeypatch.setattr(masked_text, "COMMONEST", 1.0)  # no token of a short text is rare enough
    text = MaskedText.of_stream(np.arange(4, 200))
    monkeypatch.setattr(Pretraining, "text", text)
    first, trial = write_shards(tmp_path / "data"), Trial("a", 0.1, 1)
    own = experiment(tmp_path / "data", Store(tmp_path, {}))
    own.run_folder(trial).mkdir(parents=True)
    for content, expected in ((b"one", 8.5), (b"one", 8.5), (b"two", 9.5)):
        (own.run_folder(trial) / "checkpoint_last.pt").write_bytes(content)
        assert own.losses(trial)["perplexity"] == pytest.approx(expected)
        assert own.by_distance(trial).perplexities[0] == pytest.approx(expected), "all stand nowhere else"
    assert loaded == [str(first)] * 2


def test_every_mechanism_stands_beside_the_control(trained, tmp_path, monkeypatch):
    given = {"softmax": 40.0, "linear": 30.5, "control": 50.0}
    monkeypatch.setattr(Pretraining, "losses", lambda self, trial: figures(given[trial.variant]))
    words = ["--data", tmp_path, "--out", tmp_path / "out", "--only", "softmax", "linear", "--updates", 2000]
    asked = options("mechanisms", *words, "--rounds", 1, "--learning-rates", 0.1, "--seeds", 1, 2)
    lines = MECHANISMS.run("mechanisms", asked).splitlines()
    assert [line.split(" | ")[0] for line in lines[2:5]] == ["| linear", "| softmax", "| control"], "best first"
    assert "| -23.8 ± 0.0 % |" in lines[2], "compared with the first that is named"
    results = json.loads((tmp_path / "out/results.json").read_text())["variants"]
    # the means of the bits of updates 1 to 100 and 101 to 200
    assert all(own["results"]["1"]["curve"] == {"100": 2**8.0, "200": 2**4.0} for own in results)
    assert "out/linear/lr0.1/seed2" in trained
    assert (tmp_path / "out/mechanisms.png").stat().st_size > 10_000


def test_every_mechanism_is_among_the_variants():
    named = variants_of("mechanisms", 512)
    assert named.pop("control") == ["model.projection=mean-pool", "model.projected_length=1"]
    assert next(iter(named)) == "softmax"
    assert {word for own in named.values() for word in own if word.startswith("model.attention=")} == {
        f"model.attention={name}" for name in ATTENTIONS
    }
