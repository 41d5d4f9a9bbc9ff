"""docs/tasks.md's example: with one record and one YAML a task is prepared, configured and scored."""

import os
import re
import shutil
import subprocess
import sys

from tests.helpers import ROOT

PAGE = (ROOT / "docs/tasks.md").read_text()
RECORD, RECIPE = re.findall(r"<!-- run by tests/data/test_new_task.py -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)

PROGRAM = """
import sys
from pathlib import Path
from fairseq_linformer.finetune.report import as_markdown, table_rows
from fairseq_linformer.finetune.sweep import Result, Run, Setting, find_folder, read_recipe, read_task
from fairseq_linformer.training.launch import recipe_name
from fairseq_linformer.cli.command import main
from tests.helpers.inputs import write_official

write_official(Path("source"), "SICK")
main(["prepare", "glue", "--source", "source", "--tasks", "SICK", "--tokenizer", sys.argv[1], "--out", "data"])
summary = read_task(find_folder(Path("data"), "sick"))
recipe = read_recipe(recipe_name(summary.task.name))
print("RECIPE", recipe["optimization"]["max_update"], recipe["dataset"]["batch_size"], recipe["optimizer"]["adam_eps"])
scores = {"valid": {"accuracy": 80.0, "macro_f1": 70.0}, "test": {"accuracy": 60.0, "macro_f1": 50.0}}
result = Result(Run(summary.task, 1, Setting(2e-5, 16), 2813, Path()), scores)
print("VALUE", result.value)
print(as_markdown([*table_rows(summary, [result], None)]))
"""


def test_another_task(corpus, tmp_path):
    for name in ("fairseq_linformer", "configs", "tests/helpers"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    tasks = tmp_path / "fairseq_linformer/data/tasks.py"
    before, after = tasks.read_text().removesuffix("    )\n}\n").split("\nTASKS:")
    tasks.write_text(f"{before}\n{RECORD}\nTASKS:{after}        SICK,\n    )\n}}\n")
    (tmp_path / "configs/finetune/recipe/sick.yaml").write_text(RECIPE)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(corpus)]
    output = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, **output)
    assert done.returncode == 0, done.stdout[-4000:]
    lines = done.stdout.splitlines()
    assert "single-label: 0 = CONTRADICTION, 1 = ENTAILMENT, 2 = NEUTRAL" in lines
    assert "RECIPE 2813 16 1e-06" in lines and "VALUE 80.0" in lines
    rows = [line.split(" | ")[:3] for line in lines if line.startswith("| SICK")]
    assert rows == [
        ["| SICK", "accuracy", "80.0"],
        ["| SICK", "macro F1", "70.0"],
        ["| SICK (test)", "accuracy", "60.0"],
        ["| SICK (test)", "macro F1", "50.0"],
    ]
