"""scripts/gpu.py: every part in tiny sizes; what fails, ends late or is there already; its tables."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import gpu_report
import gpu_speed
import gpu_training
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import gpu
from tests.helpers import ROOT
from tests.helpers.processes import wait_until

MADE_WITH = {"card": "NVIDIA H100 80GB HBM3", "torch": "2.11.0", "code": "abc"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_dry_run_measures_every_part_once(tmp_path):
    """And with fairseq out of sight the next call repeats the part that is missing, and no other."""
    command = [sys.executable, ROOT / "scripts/gpu.py", "--dry-run", "--limit", "3000", "--out", tmp_path]
    subprocess.run(command, check=True, timeout=3300)
    file = tmp_path / "results.json"
    parts = json.loads(file.read_text())
    assert {name: part.get("reason") for name, part in parts.items() if not part["done"]} == {}
    cases = parts["models, n=64"]["rows"]
    assert "seconds" in cases["fairseq-example, inference"]
    assert "No viable backend" in cases["softmax-cudnn, training step"]["reason"]  # an error costs a case alone
    assert "seconds" in parts["compiled, n=64"]["rows"]["hf-modernbert, training step"]
    assert parts["python, fetch"]["rows"]["fetch"]["perplexity"] > 1
    assert "| 64 |" in (tmp_path / "results.md").read_text()
    del parts["attention, n=64"]
    file.write_text(json.dumps(parts))
    hidden = "import runpy, sys; sys.modules.update(fairseq=None, omegaconf=None, hydra=None); "
    hidden += f"sys.path[:0] = [{str(ROOT / 'scripts')!r}]; sys.argv[:] = {[str(word) for word in command[1:]]}; "
    hidden += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", hidden], check=True, capture_output=True, text=True, timeout=600)
    assert [line.partition(":")[0] for line in done.stdout.splitlines()] == ["attention, n=64"]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Those of a folder, and a function that runs a program in place of a part's."""
    found = gpu.Results(tmp_path, dry=True)

    def run(program, seconds=60.0):
        (tmp_path / "part.py").write_text(program)
        monkeypatch.setattr(gpu, "__file__", str(tmp_path / "part.py"))
        gpu.run_part("part", gpu.Part(iter, 0, 0), found, ["--dry-run"], seconds)
        return json.loads(found.file.read_text())["part"]

    return found, run


ROW = 'print(\'{"rows": {"a": {"seconds": 1}}}\', flush=True); '


class AfterTheFirstRow(threading.Thread):
    """In place of a timer, as a loaded machine takes any time to start a program."""

    def __init__(self, seconds, function, arguments):
        super().__init__(target=lambda: self.wait(arguments[0]) and function(*arguments), daemon=True)

    def wait(self, part):
        while not part["rows"]:
            time.sleep(0.05)
        return True

    def cancel(self):
        pass


def test_what_a_part_measured_before_its_limit_is_kept_and_what_it_started_is_ended(results, monkeypatch):
    monkeypatch.setattr(gpu.threading, "Timer", AfterTheFirstRow)
    program = "import subprocess; child = subprocess.Popen(['sleep', '100'])\nprint('words')\nprint(3)\n"
    program += 'print(\'{"rows": {"child": {"number": %d}}}\' % child.pid, flush=True); child.wait()'
    part = results[1](program, seconds=3.0)
    assert (part["done"], part["reason"]) == (False, "ended after its limit of 3 s")
    state = Path(f"/proc/{part['rows']['child']['number']}/stat")
    wait_until(lambda: not state.is_file() or " Z " in state.read_text())


def test_a_part_ends_with_a_program_that_was_killed(tmp_path):
    """Else it would keep the GPU."""
    part = "import sys, time; sys.path[:0] = [{0!r}]; import gpu\n"
    part += "def run():\n    yield 'a', {{}}\n    time.sleep(1000)\ngpu.measure('part', gpu.Part(run, 0, 0))"
    (tmp_path / "part.py").write_text(part.format(str(ROOT / "scripts")))
    parent = "import subprocess, sys; p = subprocess.Popen([sys.executable, sys.argv[1]], start_new_session=True, "
    parent += "stdout=subprocess.PIPE); p.stdout.readline(); print(p.pid, flush=True); p.wait()"
    words = [sys.executable, "-c", parent, tmp_path / "part.py"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        state = Path(f"/proc/{int(process.stdout.readline())}/stat")
        process.kill()
    wait_until(lambda: not state.is_file() or " Z " in state.read_text())


def test_a_part_that_dies_or_fails_says_so(results):
    assert results[1](ROW + "import os; os.abort()")["reason"] == "its process ended with status -6: log.txt"
    failing = "import sys; sys.path[:0] = {}; import gpu; gpu.measure('part', gpu.Part(lambda: 1 / 0, 0, 0))"
    assert results[1](failing.format([str(ROOT / "scripts")]))["reason"] == "ZeroDivisionError: division by zero"


def test_what_is_done_is_not_repeated_unless_the_code_or_the_machine_is_another(results):
    found, run = results
    run(ROW + "print('{\"done\": true}')")
    assert found.is_done("part")
    assert not found.is_done("another")
    found.made_with = {**found.made_with, "code": "other"}
    kept = run("")
    assert kept["rows"].keys() == {"a"}
    assert kept["made_with"] != found.made_with, "figures of earlier code rather than none"
    assert not found.is_done("part")
    assert found.was_tried("part")
    assert run(ROW.replace('"a"', '"b"'))["rows"].keys() == {"b"}, "nor beside those of another state of the code"


@pytest.mark.parametrize("kept", [MADE_WITH["card"], "dry run"])
def test_a_dry_run_does_not_share_a_folder_with_figures_of_a_gpu(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    file = tmp_path / "results.json"
    file.write_text(json.dumps({"tests": {"made_with": {**MADE_WITH, "card": kept}, "done": True, "rows": {}}}))
    before, dry = file.read_bytes(), ["--dry-run"] if kept != "dry run" else []
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path), *dry])
    with pytest.raises(SystemExit, match=f"results.json holds other figures, {kept}: name another --out"):
        gpu.main()
    assert file.read_bytes() == before


def test_a_training_that_was_ended_after_its_last_update_is_not_repeated(corpus, tmp_path, monkeypatch):
    trainings = gpu_training.Trainings(tmp_path, dry=True)
    monkeypatch.setattr(gpu_training.Trainings, "data", lambda self, name: corpus)
    monkeypatch.setattr(gpu_training.Trainings, "_perplexities", lambda *own: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        list(trainings.quality("python", "fetch"))
    log = tmp_path / "python-fetch/hydra/hydra_train.log"
    updates = log.read_text().count("num_updates")
    monkeypatch.setattr(
        gpu_training.Trainings, "_perplexities", lambda *own: {"logged": log.read_text().count("num_updates")}
    )
    ((_, row),) = trainings.quality("python", "fetch")
    assert row["logged"] == updates > 0
    assert not (tmp_path / "python-fetch").exists()


def test_the_speed_of_a_training_leaves_out_what_warms_up():
    rates = (0, 1, 1, 10, 5)
    log = "".join(f'[t][train_inner][INFO] - {{"epoch": 1, "ups": "{rate}"}}\n' for rate in rates)
    assert gpu_training._rate(log, "ups") == pytest.approx(2 / (1 / 10 + 1 / 5))


def test_without_a_gpu_one_line_says_what_can_be_done(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu.py"])
    with pytest.raises(SystemExit, match="--dry-run") as ended:
        gpu.main()
    assert "\n" not in str(ended.value)


def test_each_model_is_compiled_with_the_kernel_that_is_selected_for_it(monkeypatch):
    """Of two models with the same layers the second would take over the graph of the first."""
    chosen = {"softmax-flash": SDPBackend.FLASH_ATTENTION, "softmax-cudnn": SDPBackend.MATH}
    monkeypatch.setattr(gpu_speed, "KERNELS", chosen)
    monkeypatch.setattr(torch.compiler.config, "force_disable_caches", False)
    torch._dynamo.reset()
    found, tokens = {}, torch.randint(4, 100, (1, 64))
    for name in chosen:
        built = gpu_speed.build(name, gpu_speed.Sizes("cpu", 2, 32, 2, 100), 64)
        gpu_speed.compile_alone(built.layers, "aot_eager")
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
            built.features(tokens)
        found[name] = any("flash" in event.key for event in recorded.key_averages())
    assert found == {"softmax-flash": True, "softmax-cudnn": False}


NAMES = [("softmax-flash", 0.03), ("linformer", 0.0), ("near_and_far", 0.03), ("fetch", 0.03)]


@pytest.mark.parametrize(("name", "off"), NAMES)
@pytest.mark.parametrize("phase", ["inference", "training step", "attention"])
def test_operations_are_those_of_the_products(name, off, phase, monkeypatch):
    """The formula leaves out the first layer's values, which value residuals need, once more: 2 % of two layers."""
    monkeypatch.setattr(gpu_speed, "KERNELS", {"softmax-flash": SDPBackend.MATH})  # whose products are counted
    sizes, n = gpu_speed.Sizes("cpu", 2, 64, 2, 100), 1024
    built = gpu_speed.build(name, sizes, n)
    tokens = torch.randint(4, 100, (1, n), generator=torch.Generator().manual_seed(1))
    places = torch.arange(n)[: round(0.15 * n)]
    attention = gpu_speed.build(name, sizes, n, value_residual=False).module.linformer_roberta.layers[0].self_attn
    x = torch.randn(1, n, 64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        if phase == "training step":
            built.loss(tokens, places, places).backward()
        elif phase == "attention":
            attention(x, None).sum().backward()
        else:
            with torch.no_grad():
                built.features(tokens)
    expected = counter.get_total_flops()
    assert gpu_speed.flops(sizes, n, 1, name, phase) == pytest.approx(expected, rel=off + 0.002)


def speeds(phase):
    for n in (512, 2048, 8192):
        for number, model in enumerate((*gpu_speed.OURS, *gpu_speed.OTHERS), 1):
            row = {"model": model, "phase": phase, "n": n, "compiled": False, "rows": 65536 // n}
            figures = {
                "seconds": 0.1 * number,
                "MiB": 2048.0 * number,
                "share": 0.41,
                "peak": "989 TFLOP/s, data sheet",
            }
            failed = {"reason": "OutOfMemoryError: CUDA out of memory"}
            yield f"{model}, {phase}, {n}", row | (failed if (model, n) == ("hf-modernbert", 8192) else figures)


def test_a_model_is_compared_with_the_first_of_its_own_process():
    row = {"phase": "training step", "n": 512, "MiB": 2048.0, "share": 0.4, "rows": 1, "compiled": True}
    parts = {
        name: {"rows": {model: {**row, "model": model, "seconds": seconds} for model, seconds in own.items()}}
        for name, own in {
            "a": {"near_and_far": 0.1, "fetch": 0.2},
            "b": {"near_and_far": 0.2, "softmax-cudnn": 0.3},
        }.items()
    }
    rows = gpu_report.rows_of_parts(parts)
    table = gpu_report._speeds(rows, ("near_and_far", "fetch", "softmax-cudnn"))
    assert "| 512 | 100 ms, 40 % (2) | 2.00 (2) | 1.50 (2) |" in table


def test_what_was_not_tried_comes_before_what_failed(results, monkeypatch, capsys):
    found, run = results
    run("")
    monkeypatch.setattr(gpu, "run_part", lambda name, *_: found.begin(name) or found.parts[name].update(seconds=1))
    monkeypatch.setattr(gpu, "write_report", lambda *_: None)
    gpu.run_all(dict.fromkeys(("part", "later"), gpu.Part(iter, 0, 9)), found, [], 10)
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == ["later", "part"]


@pytest.fixture
def measured(tmp_path):
    """A file of results, and a page to fill."""
    classes = [{"name": name, "perplexity": 12.3} for name in ("nowhere", "1 to 64", "65 to 192", "193 to 2048")]
    row = {"variant": "fetch", "corpus": "python", "updates": 1600, "perplexity": 8.5}
    rows = {**dict(speeds("training step")), **dict(speeds("inference")), "fetch": {**row, "classes": classes}}
    file, page = tmp_path / "results.json", tmp_path / "page.md"
    file.write_text(json.dumps({"models": {"made_with": MADE_WITH, "done": True, "rows": rows}}))
    page.write_text("before\n<!-- make gpu -->\nold\n<!-- end -->\nafter\n")
    (tmp_path / "benchmark").mkdir()
    return file, page


def test_the_page_is_filled_from_the_results_again_and_again(measured):
    file, page = measured
    for _ in range(2):
        gpu_report.fill_page(file, page)
    text = page.read_text()
    assert text.startswith("before\n<!-- make gpu -->\n")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text
    assert "| 2,048 | 100 ms, 41 % (2) | 2.00 (4) | 4.00 (8) | 5.00 (10) | 7.00 (14) | 8.00 (16) |" in text
    assert "| 8,192 | 100 ms, 41 % (2) | 2.00 (4) | 4.00 (8) | 5.00 (10) | not measured | 8.00 (16) |" in text
    assert "| `fetch` | 1,600 | 8.50 | 12.3 | 12.3 | 12.3 | 12.3 |" in text
    assert (page.parent / gpu_report.PICTURE).is_file()
    gpu_report.write_report(file, ["models", "scaling"])
    report = file.with_name("results.md").read_text()
    assert (
        "- scaling: not begun\n- hf-modernbert, training step, n=8192: OutOfMemoryError: CUDA out of memory" in report
    )


def test_a_dry_run_and_no_run_fill_no_tables(measured):
    file, page = measured
    file.write_text(file.read_text().replace(MADE_WITH["card"], "dry run"))
    with pytest.raises(SystemExit, match="dry run"):
        gpu_report.fill_page(file, page)
    file.unlink()
    gpu_report.fill_page(file, page)
    assert "<!-- make gpu -->\n\nNot measured yet.\n\n<!-- end -->" in page.read_text()
