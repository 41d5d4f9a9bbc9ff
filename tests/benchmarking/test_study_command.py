"""scripts/study.py: its studies and their options, typed rightly and wrongly."""

import pytest
import torch
from benchmarking.command import main
from benchmarking.flags import LARGEST_SEED, chosen_variants
from benchmarking.registry import STUDIES
from benchmarking.variants import with_preset

from tests.helpers.benchmarks import options

LONG = ["--task", "books", "--corpus", "books.txt", "--tokenizer", "data"]
NEEDED = {"perplexity": ["--data", "d", "--variant", "a"], "long-documents": LONG}
NEEDED |= {"sentences": ["--model", "a=b"], "recall": [], "speed": []}


def needed(study):
    return NEEDED.get(study, ["--data", "data"])


def test_every_study_says_what_it_is_and_is_read_without_options(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    printed = capsys.readouterr().out
    for study in STUDIES:
        assert f"\n  {study} " in printed
        options(study, *needed(study))
        with pytest.raises(SystemExit, match="0"):
            main([study, "--help"])
        said = " ".join(capsys.readouterr().out.split())
        assert f"linformer study {study} " in said
        usage = said.partition(" [options]")[0].split()
        assert {word for word in needed(study) if word.startswith("--")} <= {*usage}


def test_usage_says_what_must_be_typed(capsys):
    for study, said in {
        "long-documents": "--task {books,needles} --corpus FILE --tokenizer DIR|FILE",
        "perplexity": "--data DIR --variant WORD [WORD ...]",
    }.items():
        with pytest.raises(SystemExit, match="0"):
            main([study, "--help"])
        assert f"study {study} {said} [options]" in capsys.readouterr().out
        with pytest.raises(SystemExit, match="2"):
            options(study)
        assert f"missing: {said.replace(' --', ', --')}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("study", "words", "said"),
    [
        ("perplexity", "--variant a", "--variant: a a is not allowed: it must name each once"),
        ("perplexity", "--variant a|b", "--variant a|b is not allowed: a name comes first"),
        ("perplexity", "--variant .hidden", "--variant .hidden is not allowed: a name comes first"),
        ("perplexity", "--seeds 1 2 1", "--seeds: 1 2 1 is not allowed: it must name each once"),
        (
            "perplexity",
            "--learning-rates 1e-3 0.001",
            "--learning-rates: 0.001 0.001 is not allowed: it must name each once",
        ),
        ("perplexity", "--learning-rates 0", "--learning-rates: 0 is not allowed"),
        ("perplexity", "--updates 0", "--updates: 0 is not allowed"),
        ("perplexity", "--jobs -1", "--jobs: -1 is not allowed"),
        ("perplexity", "--only a", "--only: there is no such flag"),
        ("recall", "--variant a --only near_and_far", "not allowed with argument"),
        ("mechanisms", "--only softmax softmax", "--only: softmax softmax is not allowed: it must name each once"),
        ("recall", "--lengths 512 512", "--lengths: 512 512 is not allowed: it must name each once"),
        ("recall", "--lengths 8", "--lengths: 8 is not allowed: it must be a whole number at least 16"),
        ("recall", "--variant model.projected_length=8", "--variant model.projected_length=8 is not allowed: a name"),
        ("recall", "--variant ../up", "--variant ../up is not allowed: a name comes first"),
        ("recall", "--stop-at 1.5", "--stop-at: 1.5 is not allowed: it must be a number above 0 and at most 1"),
        ("recall", f"--seeds {LARGEST_SEED + 1}", "--seeds: 4294967295 is not allowed"),
        ("long-documents", "--task chess", "invalid choice"),
        ("mechanisms", "--learning-rate 1", "--learning-rate: there is no such flag; did you mean --learning-rates?"),
        ("speed", "--rounds -1", "--rounds: -1 is not allowed: it must be a"),
        ("speed", "--limit nan", "--limit: nan is not allowed: it must be a"),
        ("speed", "--limit 0", "--limit: 0 is not allowed: it must be a"),
        ("speed", "--layers 0", "--layers: 0 is not allowed: it must be a"),
        ("speed", "--threads x", "--threads: x is not allowed: it must be a"),
    ],
)
def test_what_is_typed_twice_or_out_of_range_is_refused(study, words, said, capsys):
    with pytest.raises(SystemExit):
        options(study, *needed(study), *words.split())
    assert said in capsys.readouterr().err


def test_variants_are_the_users_own_or_some_of_those_that_have_a_name():
    known = {"softmax": ["model.attention=softmax"], "none": ["model.attention=none"], "nystrom": []}

    def chosen(*words):
        return chosen_variants(options("long-documents", *LONG, *words), known)

    assert [*chosen("--only", "none", "softmax")] == ["none", "softmax"]
    assert chosen(
        "--variant", "k8", "model.projected_length=8", "--variant", "plain", "--all", "model.local_conv=0"
    ) == {
        "k8": ["model.local_conv=0", "model.projected_length=8"],
        "plain": ["model.local_conv=0"],
    }
    preset = {"near": ["preset=near_and_far", "model.projected_length=8"]}
    every = options("long-documents", *LONG, "--all", "model.value_residual=false", "model.projected_length=4")
    every.only = ["near"]
    near = chosen_variants(every, preset)["near"]
    assert near[-3:] == ["model.value_residual=false", "model.projected_length=4", "model.projected_length=8"]
    assert near.index("model.value_residual=True") < len(near) - 3, "--all counts more than a preset"
    left_out = ("none", "nystrom")
    assert not set(options("long-documents", *LONG).only) & set(left_out)


@pytest.mark.parametrize("name", ["no-such", "fast"])
def test_a_preset_of_a_variant_is_one_that_sets_the_model_alone(name):
    """Of `fast` the optimizer would be left out in silence."""
    with pytest.raises(ValueError, match=f"^preset={name} is not allowed: it must be one of fetch, .*near_and_far"):
        with_preset([f"preset={name}"])


def test_a_device_that_is_not_there_is_refused(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert options("recall").device == "cpu" and options("recall").threads == torch.get_num_threads()
    for name, said in {"cuda": "PyTorch finds no GPU", "gpu": "gpu is neither cpu nor cuda"}.items():
        with pytest.raises(SystemExit):
            options("recall", "--device", name)
        assert f"argument --device: {said}" in capsys.readouterr().err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert options("recall").device == "cuda"


def test_a_quick_measurement_is_small_unless_other_options_say_otherwise():
    quick = options("speed", "--quick", "--heads", 8)
    assert (quick.layers, quick.heads, quick.lengths) == (1, 8, [512, 1024, 2048]) and "growth" in quick.suites
