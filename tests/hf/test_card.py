"""The model card: what it says of a training, and what names and labels of others do to it."""

import json
import re

import pytest
import torch
import yaml

pytest.importorskip("transformers", reason="transformers is not installed")

from fairseq_linformer.checkpoint import UNTRAINED
from fairseq_linformer.conversion.convert import convert
from fairseq_linformer.files import digest_file, digest_folder
from fairseq_linformer.hf.exporting import export
from tests.helpers import ROOT
from tests.helpers.commands import run
from tests.helpers.exports import LABELS, write_fine_tuned, write_pretrained
from tests.helpers.inputs import write_sst_2


def rows_of(card: str) -> dict[str, str]:
    """The tables of a card, by the names in their first column."""
    rows = [line.strip("|").split("|") for line in card.splitlines() if line.startswith("| ")]
    return {cells[0].strip(): cells[1].strip() for cells in rows}


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory) -> tuple[list[dict[str, str]], str]:
    """The tables of the cards of a model that was converted, trained for 2 updates and resumed to 3, fine-tuned for 1
    and resumed to 4: of the last three of these. And the digest of what was converted.
    """
    folder = tmp_path_factory.mktemp("trained")
    source = write_pretrained(folder / "roberta", corpus, attention="softmax")
    convert(source, folder / "converted", ["model.attention=linformer", "model.projected_length=5"])
    write_sst_2(folder / "glue")
    words = ["--source", "glue", "--tasks", "SST-2", "--tokenizer", corpus, "--out", "tasks"]
    run("linformer", "prepare", "glue", *words, cwd=folder)

    def train(config, data, start, out, updates, *more) -> dict[str, str]:
        words = ["--config-dir", ROOT / "configs" / config[0], "--config-name", config[1], f"task.data={data}"]
        words += [f"checkpoint.finetune_from_model={folder}/{start}", f"checkpoint.save_dir={out}", "common.cpu=true"]
        words += [f"optimization.max_update={updates}", "lr_scheduler.warmup_updates=1", "dataset.num_workers=0"]
        run("fairseq-hydra-train", *words, *more, cwd=folder)
        card = folder / f"{out}-{updates}"
        export(folder / out / "checkpoint_last.pt", card)
        return rows_of((card / "README.md").read_text())

    on = [("pretrain", "continue"), corpus, "converted/checkpoint.pt", "on"]
    tuned = [("finetune", "finetune"), folder / "tasks/SST-2", "on/checkpoint_last.pt", "tuned"]
    train(*on, 2, "recipe=tiny")
    cards = [train(*on, 3, "recipe=tiny")]
    cards += [train(*tuned, updates, "recipe=sst_2", "optimization.max_epoch=0") for updates in (1, 4)]
    return cards, digest_file(source)


@pytest.mark.exhaustive
def test_updates_are_those_of_the_training_however_often_it_was_resumed(trained):
    """fairseq's history has an entry per process, cumulative, and those of the checkpoint that a training started from:
    a sum of them counts a resumed run twice, and a classifier's pretraining as its own.
    """
    assert [card["updates"] for card in trained[0]] == ["3", "1", "4"]
    assert [card["criterion"] for card in trained[0]] == ["masked_lm", *2 * ["text_prediction"]]
    assert trained[0][0]["batch size"].startswith("at most ")


@pytest.mark.exhaustive
def test_what_a_model_was_converted_from_is_known_after_any_training(trained):
    """By name and content; from the checkpoint itself, as the folders between may be gone."""
    cards, digest = trained
    for card in cards:
        assert card["converted by linformer convert from"] == f"roberta/checkpoint_best.pt (SHA-256 {digest})"


def test_a_model_that_was_converted_twice_names_both(tmp_path, vocabulary):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary, attention="softmax")
    export(checkpoint, tmp_path / "hf")
    convert(tmp_path / "hf", tmp_path / "once", ["model.attention=linformer"])
    convert(tmp_path / "once", tmp_path / "twice", ["model.max_positions=30"])
    export(tmp_path / "twice", tmp_path / "out")
    first, second = digest_folder(tmp_path / "hf"), digest_file(tmp_path / "once" / UNTRAINED)
    expected = f"hf (SHA-256 {first}), then once/checkpoint.pt (SHA-256 {second})"
    rows = rows_of((tmp_path / "out/README.md").read_text())
    assert rows["converted by linformer convert from"] == expected
    assert rows["updates"] == "0" and "lr" not in rows, "settings of a training that there was not"
    export(checkpoint, tmp_path / "other")
    assert "converted" not in (tmp_path / "other/README.md").read_text()


@pytest.mark.parametrize(("kind", "pairs"), [(kind, False) for kind in LABELS] + [("single-label", True)])
def test_the_example_works_for_texts_of_any_length(kind, pairs, tmp_path, vocabulary, monkeypatch):
    export(write_fine_tuned(tmp_path / "run", vocabulary, kind, pairs), tmp_path / "FOLDER")
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "FOLDER/README.md").read_text(), re.DOTALL)
    assert ("text_pair" in code) == pairs
    monkeypatch.chdir(tmp_path)
    exec(code.replace("A text.", "the dog sees a house " * 20).replace("Words", "the dog " * 20))


HOSTILE = "a|b`c`\\|\n---\nlicense: mit\n| x | y |\n```\n<script>alert(1)</script> [here](http://x)\x1b[2J\u2028#"
PATHLESS = HOSTILE.replace("/", "")  # of a path the card has the last part
MADE_OF = {"config": "", "configuration": {}, "data": "", "checkpoint": None}


def without_code(card: str) -> str:
    """The card without its blocks of code, each of which ends at as many backticks as it begins with, or more."""
    fence, kept = "", []
    for line in card.split("\n"):
        if not fence and (begins := re.match("```+", line)):
            fence = begins[0]
        elif not fence:
            kept.append(line)
        elif re.fullmatch(f"{fence}`* *", line):
            fence = ""
    assert not fence
    return "\n".join(kept)


@pytest.fixture(scope="module")
def hostile(vocabulary, tmp_path_factory) -> str:
    """The card of a run whose files hold what breaks Markdown and YAML, wherever text of others can stand."""
    folder = tmp_path_factory.mktemp("hostile")
    checkpoint = write_pretrained(folder / "run", vocabulary)
    state = torch.load(checkpoint, weights_only=True)
    state["cfg"]["task"]["data"] = f"/x/{HOSTILE}"
    state["cfg"]["optimization"] |= {"lr": [HOSTILE], "update_freq": [HOSTILE]}
    state["cfg"]["checkpoint"]["best_checkpoint_metric"] = HOSTILE
    state["cfg"]["common"]["seed"] = state["cfg"]["dataset"]["batch_size"] = state["extra_state"]["best"] = HOSTILE
    words = ["fairseq-hydra-train", "--config-dir", "configs/pretrain", "--config-name", "tiny_512", f"a='{PATHLESS}'"]
    words.append("task.data='/home/bob\\'s texts/x'")  # as a study writes it, in Hydra's quotes
    state["task_state"] = {"made_of": {**MADE_OF, "command": words}}
    torch.save(state, checkpoint)
    hydra = {"job": {"config_name": "tiny_512"}, "overrides": {"task": [f"common.suppress_crashes='{PATHLESS}'"]}}
    hydra["runtime"] = {"config_sources": [{"schema": "file", "path": "/configs/pretrain"}]}
    (folder / "run" / "hydra/.hydra").mkdir(parents=True)
    (folder / "run" / "hydra/.hydra/hydra.yaml").write_text(yaml.safe_dump({"hydra": hydra}))
    scores = {"made_by": {}, "predictions": {}, "scores": {HOSTILE: {HOSTILE: 3.0}}}
    (folder / "run" / "scores.json").write_text(json.dumps(scores))
    export(checkpoint, folder / "out", vocabulary)
    return (folder / "out" / "README.md").read_text(encoding="utf-8")


def test_the_front_matter_is_ours_alone(hostile):
    """Another `---` would end it early, or begin one whose licence is not the author's."""
    _, header, body = hostile.split("---\n", 2)
    expected = {"library_name": "transformers", "pipeline_tag": "fill-mask", "tags": ["fairseq", "linformer"]}
    assert yaml.safe_load(header) == expected
    assert "\n---\n" not in without_code(body) and not re.search(r"^license", without_code(body), re.MULTILINE)


def test_tables_keep_their_columns_and_text_stays_text(hostile):
    prose = without_code(hostile)
    tables = [line for line in prose.splitlines() if line.startswith("|")]
    assert len(tables) > 20
    for line in tables:
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3, line
        assert not re.search(r"(?<!\\)(?:\\\\)*[`<]|\]\(", line), line
    assert "tiny_512" in hostile and "```" not in prose and not re.search(r"(?<!\\)<\w", prose)
    assert all(character.isprintable() or character == "\n" for character in prose)
    assert "a\\|b" in hostile


def test_a_table_of_results_brings_no_html_and_no_folders_of_the_machine(tmp_path, vocabulary):
    checkpoint = write_pretrained(tmp_path / "run", vocabulary)
    table = "| task | metric |\n|---|---|\n| RTE | accuracy |\n\nCheckpoint: run/a.pt (SHA-256 3…)\n"
    (tmp_path / "run" / "results.md").write_text(table.replace("run/a.pt", "/home/bob/our runs/run/a.pt"))
    export(checkpoint, tmp_path / "ours")
    assert f"## Results after fine-tuning\n\n{table}" in (tmp_path / "ours" / "README.md").read_text()
    (tmp_path / "run" / "results.md").write_text(f"{table}\n<script>alert(1)</script>\n")
    export(checkpoint, tmp_path / "theirs")
    assert "<script" not in (tmp_path / "theirs" / "README.md").read_text()
