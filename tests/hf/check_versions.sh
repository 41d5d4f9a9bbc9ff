#!/usr/bin/env bash
# Loads exports of every mechanism in other versions of transformers, each in an environment of its own without fairseq:
# check_versions.sh VERSION... `make test-exhaustive` calls it; TORCH and PYTHON are the Makefile's.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
PYTHONPATH=. "$PYTHON" -m tests.hf.write_exported "$work/exported"
for version in "$@"; do
    "$PYTHON" -m venv "$work/$version"
    "$work/$version/bin/python" -m pip --disable-pip-version-check install --quiet "torch==$TORCH" "transformers==$version"
    HF_HOME="$work/cache-$version" "$work/$version/bin/python" tests/hf/check_exported.py "$work"/exported/* </dev/null
done
