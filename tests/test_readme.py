"""The commands of README and docs/pretraining.md, typed in one folder on a tiny scale."""

import re
import shlex
import shutil

import pytest

from fairseq_linformer.checkpoint import read_checkpoint
from fairseq_linformer.data.prepare.glue import SOURCES
from tests.helpers import ROOT
from tests.helpers.commands import run
from tests.helpers.inputs import sentences, write_imdb, write_official

BLOCKS = [
    block
    for page in ("README.md", "docs/pretraining.md")
    for block in re.findall(
        r"<!-- run by tests/test_readme.py -->\n```(\w+)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL
    )
]
SIZES = {"encoder_layers": 1, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2}
TASKS = ("rte", "imdb")  # pairs, a long text


def words_to_add(words):
    """Return what makes a command take seconds."""
    if words[0] == "fairseq-hydra-train":
        continues = any(word.startswith("checkpoint.finetune_from_model=") for word in words)
        sizes = [] if continues else [f"model.{name}={value}" for name, value in SIZES.items()]
        return [*sizes, "optimization.max_update=2", "lr_scheduler.warmup_updates=1", "dataset.num_workers=0"]
    if words[:3] == ["linformer", "prepare", "corpus"]:
        return [] if "--tokenizer" in words else ["--vocab-size", 286]
    if words[:2] == ["linformer", "finetune"]:
        return ["--tasks", *TASKS, "--seeds", 1, "--epochs", 1, "--jobs", 2, "dataset.num_workers=0"]
    return []


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """Return a folder with the checkout's folders and the files that the pages name as the reader's own."""
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


@pytest.mark.slow
def test_commands(workplace):
    assert len(BLOCKS) > 5
    for language, block in BLOCKS:
        if language == "python":
            (workplace / "example.py").write_text(block)
            run(workplace / "example.py", cwd=workplace)
            continue
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[0] == "source":  # the tests run in .venv
                continue
            overrides = [word for word in words if "=" in word and words[0] == "linformer"]  # stay at the end
            run(*(word for word in words if word not in overrides), *words_to_add(words), *overrides, cwd=workplace)

    began, continued = (
        read_checkpoint(workplace / "runs" / name / "checkpoint_last.pt") for name in ("tiny_512", "own")
    )
    assert {name: getattr(continued["cfg"].model, name) for name in SIZES} == SIZES
    assert began["task_state"]["vocabulary"] == continued["task_state"]["vocabulary"]  # dictionary and subword model
    assert continued["optimizer_history"][-1]["num_updates"] == 2
