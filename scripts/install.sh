#!/usr/bin/env bash
# Makes a virtual environment with the plugin and all that it needs. `make install` calls it, as
# install.sh PYTHON TORCH EXTRAS FOLDER. pip's own variables choose where it downloads from.
set -euo pipefail
python=$1 torch=$2 extras=$3 venv=$4

fail() {
    echo "install: $*" >&2
    exit 1
}

command -v "$python" >/dev/null || fail "there is no $python; name one with PYTHON="
"$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 14))' ||
    fail "$("$python" --version 2>&1) is not supported: Python 3.10, 3.11, 3.12 or 3.13 is needed; name one with PYTHON="
compiler=${CXX:-c++}
command -v "$compiler" >/dev/null || fail "there is no C++ compiler ($compiler): fairseq is built from source; install one (Debian: g++)"
"$python" - <<'PROBE' || fail "Python's headers are missing: fairseq is built from source (Debian: python3-dev)"
import pathlib, sys, sysconfig
sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").is_file())
PROBE
"$python" -m venv "$venv" || fail "$python cannot make a virtual environment (Debian: python3-venv)"

pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet)
# fairseq is built from source, and its build needs torch. So torch is installed first, then fairseq without isolation:
# in isolation, pip would download a second torch, the newest with CUDA, only for the build. seqeval, built from source
# too, asks for setuptools_scm.
"${pip[@]}" "torch==$torch" numpy cython wheel 'setuptools<81' setuptools_scm
# fairseq's extensions are compiled in parallel. That does not work with ninja: torch writes a build.ninja per extension,
# all to the same path. So a ninja that fails comes first in PATH, and torch builds without ninja.
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
printf '[build_ext]\nparallel=%s\n' "$(getconf _NPROCESSORS_ONLN)" >"$build/distutils.cfg"
printf '#!/bin/sh\nexit 1\n' >"$build/ninja"
chmod +x "$build/ninja"
PATH=$build:$PATH DIST_EXTRA_CONFIG=$build/distutils.cfg CFLAGS='-O2 -g0' \
    "${pip[@]}" --no-build-isolation 'fairseq-fixed==0.12.3.1'
"${pip[@]}" --no-build-isolation --editable ".[$extras]"
# fairseq requires torchaudio, which only its speech models import. PyPI's torchaudio is built for CUDA and cannot be
# loaded with a torch without CUDA. transformers loads it wherever it is installed, and then fails, too.
"$venv/bin/python" -c 'import torchaudio' 2>/dev/null ||
    "$venv/bin/python" -m pip --disable-pip-version-check uninstall --quiet --yes torchaudio
