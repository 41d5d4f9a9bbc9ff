"""The commands of README, docs/pretraining.md and docs/fairseq.md, typed in one folder on a tiny scale."""

import re
import shlex
import shutil
from argparse import ArgumentParser
from dataclasses import fields

import pytest
import torch
from fairseq.models.roberta import RobertaModel

from fairseq_linformer.attention import ATTENTIONS
from fairseq_linformer.checkpoint import read_checkpoint
from fairseq_linformer.data.prepare.glue import SOURCES
from fairseq_linformer.model.config import LinformerRobertaConfig, resolve_config
from tests.helpers import ROOT
from tests.helpers.commands import as_flags, run
from tests.helpers.inputs import sentences, write_imdb, write_official

README = (ROOT / "README.md").read_text()


def blocks_of(text):
    return re.findall(r"<!-- run by tests/test_readme.py -->\n```(\w+)\n(.*?)```", text, re.DOTALL)


PROGRAMS = sorted(path.name for path in (ROOT / "scripts").glob("*.py") if "__main__" in path.read_text())
BLOCKS = blocks_of(README)
CONTINUED = blocks_of((ROOT / "docs" / "pretraining.md").read_text())
FLAGS = blocks_of((ROOT / "docs" / "fairseq.md").read_text())
SIZES = {"encoder_layers": 1, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2}
TRAINED = ("rte", "mnli", "imdb")  # a pair, two sets to validate on, a long text; tests/finetune trains the other kinds


def lines_of(block):
    return block.replace("\\\n", " ").replace("$(linformer configs)", "configs").splitlines()


def on_a_tiny_scale(words):
    """A command with what is added so that it takes seconds; all else is as README has it."""
    overrides = [word for word in words[1:] if "=" in word] if words[0] == "linformer" else []  # stand at the end
    return [*(word for word in words if word not in overrides), *added(words), *overrides]


def added(words):
    if words[0] == "fairseq-hydra-train":
        begins_from_a_checkpoint = any(word.startswith("checkpoint.finetune_from_model=") for word in words)
        sizes = [] if begins_from_a_checkpoint else [f"model.{name}={value}" for name, value in SIZES.items()]
        return [*sizes, "optimization.max_update=2", "lr_scheduler.warmup_updates=1", "dataset.num_workers=0"]
    if words[:3] == ["linformer", "prepare", "corpus"]:
        return [] if "--tokenizer" in words else ["--vocab-size", 286]
    if words[:2] == ["linformer", "finetune"]:
        return ["--tasks", *TRAINED, "--seeds", 1, "--epochs", 1, "--jobs", 2, "dataset.num_workers=0"]
    return []


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with the checkout's folders and the files that README names as the reader's own."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("configs", "fairseq_linformer", "scripts"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "train.txt").write_text(sentences(400, seed=1))
    (folder / "valid.txt").write_text(sentences(40, seed=2))
    (folder / "own.txt").write_text(sentences(400, seed=3))
    (folder / "own_valid.txt").write_text(sentences(40, seed=4))
    for task in SOURCES:
        write_official(folder / "official", task)
    shutil.make_archive(str(folder / "glue"), "zip", folder / "official")
    (folder / "reviews.txt").write_text("the old dog barks\nthe bird sings\n")
    (folder / "pairs.tsv").write_text("premise\tclaim\nthe dog runs\tthe cat runs\n")
    write_imdb(folder / "aclImdb_v1.tar.gz", folder / "imdb")
    return folder


def test_every_block_that_readme_calls_run_is_found():
    assert len(BLOCKS) == README.count("<!-- run by tests/test_readme.py -->") > 0


def type_commands(blocks, workplace):
    for language, block in blocks:
        if language == "python":
            (workplace / "example.py").write_text(block)
            run(workplace / "example.py", cwd=workplace)
            continue
        for line in lines_of(block):
            words = shlex.split(line)
            if words[0] == "source":  # the tests run in .venv
                continue
            words = words[1:] if words[0] == "python" else words
            run(*on_a_tiny_scale(words), cwd=workplace)


@pytest.mark.slow
def test_readmes_commands(workplace):
    type_commands(BLOCKS, workplace)


@pytest.mark.slow
def test_pretraining_continues_with_the_vocabulary_and_the_sizes_of_the_checkpoint(workplace):
    if not (workplace / "runs" / "tiny_512").is_dir():  # this test alone was chosen
        type_commands(BLOCKS[:1], workplace)
    type_commands(CONTINUED, workplace)
    began, continued = (
        read_checkpoint(workplace / "runs" / name / "checkpoint_last.pt") for name in ("tiny_512", "own")
    )
    assert {name: getattr(continued["cfg"].model, name) for name in SIZES} == SIZES
    assert began["task_state"]["vocabulary"] == continued["task_state"]["vocabulary"]  # dictionary and subword model
    assert continued["optimizer_history"][-1]["num_updates"] == 2


@pytest.mark.exhaustive
def test_the_flags_train_what_tiny_512_trains(corpus, tmp_path):
    """The same options, and after three updates the same weights to the last bit."""
    (tmp_path / "data-bin").mkdir()
    (tmp_path / "data-bin/corpus").symlink_to(corpus)
    for name in ("configs", "fairseq_linformer"):
        (tmp_path / name).symlink_to(ROOT / name)
    keys = [*(f"model.{name}={value}" for name, value in SIZES.items()), "optimization.max_update=3"]
    keys += ["lr_scheduler.total_num_update=1200"]  # as the flags say, whatever is trained of it
    flags = [*as_flags(SIZES), "--max-update", 3]
    lines = [line for _, block in BLOCKS + FLAGS for line in lines_of(block)]
    for program, tiny in (("fairseq-hydra-train", keys), ("fairseq-train", flags)):
        run(*shlex.split(next(line for line in lines if line.startswith(f"{program} "))), *tiny, cwd=tmp_path)
    flags, hydra = (read_checkpoint(tmp_path / "runs" / name / "checkpoint_last.pt") for name in ("flags", "tiny_512"))
    for group in ("task", "criterion", "optimizer", "lr_scheduler", "optimization"):
        assert flags["cfg"][group] == hydra["cfg"][group]
    assert resolve_config(flags["cfg"].model, 512) == resolve_config(hydra["cfg"].model, 512)
    assert flags["optimizer_history"][-1]["num_updates"] == hydra["optimizer_history"][-1]["num_updates"] == 3
    assert all(torch.equal(flags["model"][name], weight) for name, weight in hydra["model"].items())


@pytest.mark.slow
@pytest.mark.parametrize("script", PROGRAMS)
def test_every_script_says_what_it_does(script, tmp_path):
    assert "usage:" in run(f"scripts/{script}", "--help", cwd=tmp_path)


def test_the_table_of_options_has_every_option_of_ours():
    """But for those of one mechanism, which docs/attention.md has, and the example's, which docs/fairseq.md has."""
    rows = (ROOT / "docs/options.md").read_text().split("## Architectures")[0].splitlines()
    example = (ROOT / "docs/fairseq.md").read_text()
    named = {name for row in rows if row.startswith("| `") for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    options = {field.name for field in fields(LinformerRobertaConfig)} - {"_name"}
    parser = ArgumentParser()
    RobertaModel.add_args(parser)
    elsewhere = {action.dest for action in parser._actions}  # RoBERTa's
    elsewhere |= {own.name for kind in ATTENTIONS.values() for own in fields(kind.Options)}
    assert named <= options
    for name in options - named - elsewhere:
        assert f"--{name.replace('_', '-')}" in example, name
