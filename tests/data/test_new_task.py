"""Example of docs/tasks.md: with one record and one YAML a task is prepared, configured and scored."""

import re
import shutil
from pathlib import Path

from fairseq_linformer.cli.command import main
from fairseq_linformer.data import tasks
from fairseq_linformer.data.prepare import glue
from fairseq_linformer.files import CONFIGS
from fairseq_linformer.finetune.report import as_markdown, table_rows
from fairseq_linformer.finetune.sweep import Result, Run, Setting, find_folder, read_recipe, read_task
from fairseq_linformer.training import configuration, launch
from tests.helpers import ROOT
from tests.helpers.inputs import write_official

PAGE = (ROOT / "docs/tasks.md").read_text()
RECORD, RECIPE = re.findall(r"<!-- run by tests/data/test_new_task.py -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)


def test_another_task(vocabulary, tmp_path, monkeypatch, capsys):
    namespace = dict(vars(tasks))
    exec(RECORD, namespace)
    monkeypatch.setitem(tasks.TASKS, "SICK", namespace["SICK"])
    monkeypatch.setitem(glue.SOURCES, "SICK", namespace["SICK"].source)
    shutil.copytree(CONFIGS, tmp_path / "configs")
    (tmp_path / "configs/finetune/recipe/sick.yaml").write_text(RECIPE)
    for module in (configuration, launch):
        monkeypatch.setattr(module, "CONFIGS", tmp_path / "configs")
    write_official(tmp_path / "source", "SICK")
    words = ["--source", tmp_path / "source", "--tasks", "SICK", "--tokenizer", vocabulary, "--out", tmp_path / "data"]
    main(["prepare", "glue", *map(str, words)])
    assert "single-label: 0 = CONTRADICTION, 1 = ENTAILMENT, 2 = NEUTRAL\n" in capsys.readouterr().out
    summary = read_task(find_folder(tmp_path / "data", "sick"))
    recipe = read_recipe(launch.recipe_name(summary.task.name))
    read = recipe["optimization"]["max_update"], recipe["dataset"]["batch_size"], recipe["optimizer"]["adam_eps"]
    assert read == (2813, 16, 1e-6)
    scores = {"valid": {"accuracy": 80.0, "macro_f1": 70.0}, "test": {"accuracy": 60.0, "macro_f1": 50.0}}
    result = Result(Run(summary.task, 1, Setting(2e-5, 16), 2813, Path()), scores)
    assert result.value == 80.0
    lines = as_markdown([*table_rows(summary, [result], None)]).splitlines()
    assert [line.split(" | ")[:3] for line in lines if line.startswith("| SICK")] == [
        ["| SICK", "accuracy", "80.0"],
        ["| SICK", "macro F1", "70.0"],
        ["| SICK (test)", "accuracy", "60.0"],
        ["| SICK (test)", "macro F1", "50.0"],
    ]
