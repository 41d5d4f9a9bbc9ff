# make install     .venv with everything, from the python3 in PATH (PYTHON= chooses another, TORCH= a version of torch;
#                  without a GPU, PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids the download of CUDA)
# make quickstart  from text to a fine-tuned classifier, offline (CORPUS= uses your own text)
# make test        the tests, in three processes: some wait for programs that they start
# make test-fast   those that take seconds at most and start no process
# make test-exhaustive  what takes minutes and seldom tells more: compiled code, ONNX of every mechanism, exports in each
#                  TRANSFORMERS= (4.57.6 5.0.0 5.23.0) without fairseq
# make gpu         speed and quality on this machine's GPU, in 25 minutes (docs/benchmark.md); GPU= passes options:
#                  GPU="--limit 540", GPU="--dry-run --out trial" on the CPU, GPU=--tables
# make docs        the documentation as a site in site/; a link that leads nowhere is an error
# make check       ruff, mypy, the site, then the tests, as in CI

PYTHON ?= python3
TORCH ?= 2.13.0
EXTRAS ?= dev
CORPUS ?=
GPU ?=
TRANSFORMERS ?= 4.57.6 5.0.0 5.23.0
VENV := .venv
BIN := $(VENV)/bin
INSTALLED = $(PYTHON) $(TORCH) $(EXTRAS)

.PHONY: install quickstart test test-fast test-exhaustive gpu docs check clean

install: $(VENV)/.installed
ifneq (,$(filter command environment,$(origin PYTHON) $(origin TORCH) $(origin EXTRAS)))
	@test "$$(cat $(VENV)/.installed)" = "$(INSTALLED)" || { \
	    echo "install: $(VENV) was made with $$(cat $(VENV)/.installed), not $(INSTALLED): make clean first" >&2; \
	    exit 1; }
endif

# This file marks a complete installation. An interrupted one lacks it, and is repeated.
$(VENV)/.installed: setup.py scripts/install.sh
	bash scripts/install.sh "$(PYTHON)" "$(TORCH)" "$(EXTRAS)" "$(VENV)"
	echo "$(INSTALLED)" > $@

quickstart: install
	$(BIN)/python scripts/quickstart.py $(if $(CORPUS),--corpus $(CORPUS))

test: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

test-fast: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow and not exhaustive"

test-exhaustive: install
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m exhaustive
	PYTHON=$(BIN)/python TORCH=$(TORCH) bash tests/hf/check_versions.sh $(TRANSFORMERS)

# Without `install`: a machine with GPUs may have no network, and PyTorch and packages of its own.
gpu:
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) scripts/gpu.py $(GPU)

docs: install
	mkdir -p .pages && ln -sfn $(addprefix ../,README.md CHANGELOG.md LICENSE docs configs) .pages/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(MAKE) docs test

clean:
	rm -rf $(VENV) quickstart site .pages
