"""scripts/gpu.py: a rehearsal on the CPU, parts that are kept, stopped and repeated, and the block of the page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import gpu
from gpu import Part, Results, run_all, run_part
from tests.helpers import ROOT
from tests.helpers.processes import wait_until

MADE_WITH = {"card": "NVIDIA H100", "torch": "2.13.0", "code": "0123456789ab"}
ROW = {"model": "near_and_far", "scope": "model", "phase": "training step", "n": 512, "k": 128, "sequences": 4}
ROW |= {"compiled": True, "seconds": 0.1, "low": 0.1, "high": 0.1, "MiB": 2048.0, "share": 0.41, "relative": 1.0}


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_a_dry_run_measures_every_part(tmp_path):
    command = [sys.executable, ROOT / "scripts/gpu.py", "--dry-run", "--out", tmp_path]
    subprocess.run(command, check=True, cwd=tmp_path, capture_output=True)
    content = json.loads((tmp_path / "results.json").read_text())
    assert {name: part.get("reason") for name, part in content.items()} == dict.fromkeys(content)
    assert content.keys() == gpu.parts_of(tmp_path, dry_run=True).keys()
    rows = gpu.rows_of(content)
    assert {row["model"] for row in rows if "seconds" in row} >= {*gpu.FIRST, *gpu.REMAINING} - {"softmax-cudnn"}
    assert [row["variant"] for row in content["quality"]["variants"]] == ["softmax", "distant", "control"]
    printed = subprocess.run(command, check=True, cwd=tmp_path, capture_output=True, text=True).stdout
    assert not printed


def writes(folder, rows, after=""):
    """A part that writes rows before another program."""
    program = f"import json, pathlib; pathlib.Path({str(folder / 'results.json')!r}).write_text({json.dumps(rows)!r})"
    return Part(["-c", f"{program}\n{after}"], 0, 60, folder)


@pytest.fixture
def results(tmp_path):
    return Results(tmp_path, dry_run=True)


def run(results, **parts):
    run_all(parts, results, 60, gpu.environment(dry_run=True))
    return json.loads(results.file.read_text())


FAILING = Part(["-c", "raise SystemExit('no memory')"], 0, 60)


def test_results_are_kept_until_code_or_machine_change(results, tmp_path, capsys):
    assert run(results, part=writes(tmp_path, {"rows": [ROW]}))["part"]["rows"] == [ROW]
    capsys.readouterr()
    run(results, part=FAILING)
    assert not capsys.readouterr().out, "a complete part is not repeated"
    results.made_with = {**results.made_with, "code": "other"}
    part = run(results, part=FAILING)["part"]
    assert part["rows"] == [ROW], "results of earlier code rather than none"
    assert (part["made_with"] == results.made_with, part["reason"]) == (False, "status 1: no memory")
    quick, long = Part(["-c", ""], 0, 60), Part(["-c", ""], 10_000, 60)
    capsys.readouterr()
    run(results, part=quick, new=quick, long=long)
    names = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert names == ["new", "long", "part"], "parts that have not been tried come first"
    assert [results.is_done(name) for name in names] == [True, False, True]


def test_a_stopped_part_keeps_its_measurements_and_leaves_no_process(results, tmp_path):
    number = tmp_path / "number"
    after = "import os, subprocess, time; child = subprocess.Popen(['sleep', '100'])\n"
    after += f"pathlib.Path({str(number)!r}).write_text(str(child.pid)); time.sleep(100)"
    part = writes(tmp_path, {"rows": [ROW]}, after)
    reason = run_part(part, 3.0, tmp_path / "log.txt", gpu.environment(dry_run=True))
    results.add("part", part, 3.0, reason)
    assert "limit" in reason
    assert (results.parts["part"]["rows"], results.is_done("part")) == ([ROW], False)
    state = Path(f"/proc/{number.read_text()}/stat")
    wait_until(lambda: not state.is_file() or " Z " in state.read_text())


def test_a_dry_run_does_not_share_a_folder_with_a_gpu(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps({"tests": {"made_with": MADE_WITH}}))
    with pytest.raises(SystemExit, match="--out"):
        Results(tmp_path, dry_run=True)


def test_the_page_shows_the_results_of_this_repository():
    (block,) = gpu.BLOCK.findall(gpu.PAGE.read_text())
    assert block == gpu.page_block(gpu.read_parts(ROOT / "gpu/results.json"))


def test_a_page_is_filled_again_and_again(tmp_path):
    file, page = tmp_path / "results.json", tmp_path / "page.md"
    (tmp_path / "benchmark").mkdir()
    page.write_text("before\n<!-- make gpu -->\nold\n<!-- end -->\nafter\n")
    for seconds in (0.1, 0.2):
        file.write_text(json.dumps({"a": {"made_with": MADE_WITH, "rows": [{**ROW, "seconds": seconds}]}}))
        gpu.fill_page(file, page)
    text = page.read_text()
    assert text.startswith("before\n<!-- make gpu -->\n") and text.endswith("<!-- end -->\nafter\n")
    assert "| 512 | 200 ms, 41 % (2 GiB) |" in text and "old" not in text and "100 ms" not in text
    assert (tmp_path / gpu.PICTURE).is_file()
    file.write_text(file.read_text().replace(MADE_WITH["card"], gpu.DRY_RUN))
    with pytest.raises(SystemExit, match="dry run"):
        gpu.fill_page(file, page)
