"""Result of `pip install .`: the wheel of a source archive, in an environment without access to the checkout."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.helpers import ROOT
from tests.helpers.inputs import sentences

pytestmark = pytest.mark.slow

SOURCES = ("fairseq_linformer", "hydra_plugins", "configs", "setup.py", "pyproject.toml", "README.md")
SIZES = ["encoder_layers=1", "encoder_embed_dim=32", "encoder_ffn_embed_dim=64", "encoder_attention_heads=2"]
BUILD_ARCHIVE = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
FAIRSEQ = "from fairseq_cli.hydra_train import cli_main\ncli_main()\n"


@pytest.mark.skipif(shutil.which("hadolint", path=Path(sys.executable).parent) is None, reason="no hadolint here")
def test_the_dockerfile():
    done(Path(sys.executable).parent / "hadolint", "Dockerfile", cwd=ROOT)


def done(*command, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1", "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    output = {"text": True, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.run(list(map(str, command)), check=False, cwd=cwd, env=environment, **output)
    assert process.returncode == 0, f"{command}:\n{process.stdout[-2000:]}\n{process.stderr[-4000:]}"
    return process.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory) -> Path:
    """The folder of the programs of an environment with the wheel, and with the packages of this one but not itself."""
    folder = tmp_path_factory.mktemp("install")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source)
    done(sys.executable, "-c", BUILD_ARCHIVE, cwd=source)
    (archive,) = (source / "dist").glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "-q"]
    done(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, archive, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    python = folder / "venv" / "bin" / "python"
    done(*pip, "--python", python, "install", "--no-deps", wheel, cwd=folder)
    # Of a folder that a .pth file names, Python reads no .pth files: this environment's editable install is not seen.
    site_packages = Path(
        done(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    )
    (site_packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    (python.parent / "fairseq-hydra-train").write_text(f"#!{python}\n{FAIRSEQ}")
    (python.parent / "fairseq-hydra-train").chmod(0o755)
    return python.parent


def files_below(folder: Path) -> dict[str, bytes]:
    """Return the contents of files by relative path; links are followed."""
    paths = [Path(parent, name) for parent, _, names in os.walk(folder, followlinks=True) for name in names]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_the_configurations_are_installed_whole(programs, tmp_path):
    folder = Path(done(programs / "linformer", "configs", cwd=tmp_path).strip())
    assert folder.is_dir() and not folder.is_relative_to(ROOT)
    assert files_below(folder) == files_below(ROOT / "configs")
    assert not [path for path in folder.rglob("*") if path.is_symlink()]


def test_from_text_to_a_model_in_another_folder(programs, tmp_path):
    """Prepare a text, and type the command that is printed at the end."""
    for split, lines in (("train", 200), ("valid", 40)):
        (tmp_path / f"{split}.txt").write_text(sentences(lines, seed=lines))
    words = ["--train", "train.txt", "--valid", "valid.txt", "--out", "data", "--vocab-size", 286, "--workers", 1]
    printed = done(programs / "linformer", "prepare", "corpus", *words, cwd=tmp_path).splitlines()[-1]
    label, _, command = printed.partition(" ")
    assert label == "next:" and command.startswith('fairseq-hydra-train --config-dir "$(linformer configs)"/pretrain ')
    words = [*(f"model.{size}" for size in SIZES), "dataset.num_workers=0", "common.cpu=true"]
    words += ["optimization.max_update=2", "lr_scheduler.warmup_updates=1"]
    done("sh", "-c", f'PATH="{programs}:$PATH"; {command} "$@"', "sh", *words, cwd=tmp_path)
    assert (tmp_path / "runs/tiny_512/checkpoint_last.pt").is_file()
    log = (tmp_path / "runs/tiny_512/hydra/hydra_train.log").read_text()
    assert str(ROOT / "fairseq_linformer") not in log


def test_the_command_is_a_program_and_the_only_one(programs, tmp_path):
    assert [path.name for path in programs.glob("linformer*")] == ["linformer"]
    assert re.fullmatch(r"linformer [\d.]+\n", done(programs / "linformer", "--version", cwd=tmp_path))
    assert "--jobs" in done(programs / "linformer", "finetune", "--help", cwd=tmp_path)
