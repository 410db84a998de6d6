# Two commands on a fresh machine: `make demo` and `make test`. Both create .venv with pinned dependencies if it is missing: the
# first with what running needs, the second with all extras besides.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
STAMP := $(VENV)/.installed
THREADS ?= 2

# vLLM pins other versions of what is in .venv.
VLLM := .venv-vllm
VLLM_STAMP := $(VLLM)/.installed

.PHONY: core demo docs test test-real test-vllm lint types contract unit browser isolation soak install clean

core: $(CORE)
	@:

install: $(STAMP)

$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	# torch first and pinned exactly: a looser requirement on a bare machine may pull gigabytes of CUDA.
	$(BIN)/pip install --quiet --constraint constraints.txt "$$(grep '^torch==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $(CORE)

$(STAMP): $(CORE)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

# The core alone: no extra is needed. Says how long installing and running took.
demo:
	@begin=$$(date +%s) && $(MAKE) --no-print-directory core && ready=$$(date +%s) && \
	HF_HUB_OFFLINE=1 $(BIN)/milonga run tango && \
	echo "install: $$((ready - begin)) s, run: $$(($$(date +%s) - ready)) s"

# The site (docs/_build/html/index.html) and the man pages (docs/_build/man). Offline; a broken link fails.
docs: $(STAMP)
	$(BIN)/python scripts/make_reference.py docs/reference
	$(BIN)/sphinx-build --quiet --fail-on-warning --builder html docs docs/_build/html
	$(BIN)/sphinx-build --quiet --fail-on-warning --builder man docs docs/_build/man

test: lint types contract unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

contract: $(STAMP)
	$(BIN)/lint-imports --no-cache

# One thread per worker: two torch threads collapse when the other core is busy.
unit: $(STAMP) browser isolation
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(THREADS)

# The board is tested in Debian's Chromium: installed where it is missing and we may; else those tests are skipped, and say why.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get install -qq -y chromium chromium-driver >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -qq -y chromium chromium-driver >/dev/null; } || \
	    echo "chromium could not be installed: tests of the board's pages are skipped"; \
	else echo "no chromium: tests of the board's pages are skipped (apt-get install chromium chromium-driver)"; fi

# Programs that models write are isolated by bubblewrap: installed where it is missing and we may; else those tests are skipped, and say why.
isolation:
	@command -v bwrap >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get install -qq -y bubblewrap >/dev/null 2>&1 || \
	    { apt-get update -qq && apt-get install -qq -y bubblewrap >/dev/null; } || \
	    echo "bubblewrap could not be installed: tests of isolated programs are skipped"; \
	else echo "no bubblewrap: tests of isolated programs are skipped (apt-get install bubblewrap)"; fi

# Attacks and faults, at length: hostile programs, hostile patches, hostile text for every reader, kills, and an hour of `serve`.
# About two hours on two cores; results with their seeds in docs/results/soak.
SOAK = docs/results/soak
soak: $(STAMP) isolation
	$(BIN)/python scripts/soak_sandbox.py --out $(SOAK)/programs.json
	$(BIN)/python scripts/soak_patches.py --out $(SOAK)/patches.json
	$(BIN)/python scripts/soak_readers.py --out $(SOAK)/readers.json
	$(BIN)/python scripts/soak_kills.py --out $(SOAK)/kills.json
	$(BIN)/python scripts/soak_serve.py --out $(SOAK)/serve.json

# What a user does first, then every system for two or three small turns on real data, with a real model on a CPU; not a part of
# `make test`, which has no network.
# `make test-real DATA=FOLDER`, where FOLDER has gsm8k, math and mbpp; MODEL is a hub name, a folder or a GGUF file.
MODEL ?= HuggingFaceTB/SmolLM2-135M-Instruct
REAL ?= runs/real
SMALL = batch.problems=2 batch.rollouts=2 sampling.max_tokens=64 eval.problems=2 eval.greedy=false device=cpu
test-real: $(STAMP) isolation
	@test -n "$(DATA)" || { echo "make test-real DATA=FOLDER: a folder with gsm8k, math and mbpp"; exit 2; }
	MODEL=$(MODEL) OMP_NUM_THREADS=1 $(BIN)/pytest -n $(THREADS) tests/with_model
	$(BIN)/python scripts/real_systems.py $(REAL)/made --data $(DATA)
	OMP_NUM_THREADS=1 $(BIN)/milonga sweep docs/results/real/study.toml --out $(REAL)/runs $(SMALL:%=--set %) \
	    --with MODEL=$(MODEL) --with DATA=$(DATA) --with MADE=$(REAL)/made
	$(BIN)/python scripts/real_results.py gather $(REAL)/runs $(REAL)/results.json

# Sampling by vLLM, on a CPU; not a part of `make test`.
test-vllm: $(VLLM_STAMP)
	OMP_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(VLLM)/bin/python -m pytest tests/with_vllm

$(VLLM_STAMP): pyproject.toml constraints-vllm.txt
	test -x $(VLLM)/bin/python || $(PYTHON) -m venv $(VLLM)
	$(VLLM)/bin/pip install --quiet --upgrade pip
	$(VLLM)/bin/pip install --quiet --constraint constraints-vllm.txt "$$(grep '^torch==' constraints-vllm.txt)"
	# Only what is listed: on a CPU vLLM does not start beside torchvision, torchaudio or triton, which it would bring along.
	$(VLLM)/bin/pip install --quiet --no-deps --requirement constraints-vllm.txt --editable .
	$(VLLM)/bin/pip uninstall --quiet --yes torchvision torchaudio triton
	touch $(VLLM_STAMP)

clean:
	rm -rf docs/_build docs/reference $(VENV) $(VLLM) .pytest_cache .mypy_cache .ruff_cache .hypothesis
