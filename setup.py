"""Installs the plugin beside fairseq; `make install` does it all (README, "Install")."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

setup(
    name="fairseq-linformer",
    version="0.1.0",
    description="Linformer encoders for RoBERTa-style pretraining and fine-tuning with fairseq",
    long_description=Path("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="MIT",
    python_requires=">=3.10",
    packages=find_namespace_packages(include=["fairseq_linformer*", "hydra_plugins*"]),
    package_dir={"": "."},  # so that an editable install puts this folder on the path: there Hydra finds plugins
    install_requires=[
        "torch>=2.6",  # before it, torch.load can run code even with weights_only (CVE-2025-32434)
        "fairseq-fixed==0.12.3.1",
        "hydra-core>=1.3,<1.4",
        "omegaconf>=2.3,<2.4",
        "sentencepiece",
        "iopath",  # through which fairseq opens its files where it is there, and lets others do so
        "tensorboard",
        "tensorboardX",  # fairseq asks for it, in a line of its own, at every start
        "matplotlib",
        "tqdm",
        "pooch",
        "scikit-learn",
        "scipy",
        "hydra-joblib-launcher",
        "hydra-submitit-launcher",
    ],
    extras_require={
        "dev": ["pytest", "pytest-xdist", "ruff", "mypy"],
        # other implementations that tests and the benchmark compare with, where they are installed
        "peers": ["transformers", "performer-pytorch", "linformer"],
    },
)
