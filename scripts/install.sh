#!/usr/bin/env bash
# Makes a virtual environment with the plugin and all it needs: install.sh PYTHON TORCH EXTRAS FOLDER, which
# `make install` calls. pip's own variables choose where it downloads from.
set -euo pipefail
python=$1 torch=$2 extras=$3 venv=$4

fail() {
    echo "install: $*" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "there is no $python; name one with PYTHON="
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' ||
    fail "$("$python" --version 2>&1) is not supported: Python 3.10, 3.11 or 3.12 is needed; name one with PYTHON="
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null || fail "there is no C++ compiler ($compiler): fairseq is built from source; install one (Debian: g++)"
"$python" - <<'PROBE' || fail "Python's headers are missing: fairseq is built from source (Debian: python3-dev)"
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())
PROBE
"$python" -m venv "$venv" || fail "$python cannot make a virtual environment (Debian: python3-venv)"

pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)
# fairseq is built from source and asks for torch while it is: torch comes first, then fairseq without isolation, or pip
# would download a second torch, the newest with CUDA, for the build alone.
"${pip[@]}" "torch==$torch" numpy cython wheel 'setuptools<81'
# Its extensions compile side by side. With ninja they cannot: torch's build writes one build.ninja for all of them, each
# over the other's. So a ninja that fails stands before any other: torch then does without.
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
printf '[build_ext]\nparallel=%s\n' "$(getconf _NPROCESSORS_ONLN)" >"$build/distutils.cfg"
printf '#!/bin/sh\nexit 1\n' >"$build/ninja"
chmod +x "$build/ninja"
PATH=$build:$PATH DIST_EXTRA_CONFIG=$build/distutils.cfg CFLAGS='-O2 -g0' \
    "${pip[@]}" --no-build-isolation 'fairseq-fixed==0.12.3.1'
"${pip[@]}" --no-build-isolation --editable ".[$extras]"
# fairseq asks for torchaudio, which only its speech models import. PyPI's is built for CUDA: beside a torch without CUDA
# it cannot be loaded, and transformers, which loads it where it is installed, fails with it.
"$venv/bin/python" -c 'import torchaudio' 2>/dev/null ||
    "$venv/bin/python" -m pip --disable-pip-version-check uninstall --quiet --yes torchaudio
