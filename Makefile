# Needs only Python 3.10 to 3.12 and make; everything else is installed into .venv, once.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CONFIG ?= yamls/quickstart.yaml
PAGES := tests/pages
# mosaicml's pins forbid a newer torch, but it imports and trains with this one.
NEWEST_TORCH ?= torch==2.15.0 torchvision==0.29.2
NEWEST_VENV := .venv-newest-torch
# Commands that need no Composer take any torch from 2.6 on.
ANY_TORCH ?= torch
WITHOUT_COMPOSER := .venv-no-composer
# Whose models are trained on a simulated GPU.
BREADTH ?= transformers==4.51.3 timm==1.0.31 peft==0.15.2 torch_geometric==2.8.1
BREADTH_VENV := .venv-breadth
# The torch of others' logs.
LOGS_TORCH ?= torch==2.10.0
LOGS_VENV := .venv-logs
FOUNDRY ?= llm-foundry==0.22.0
FOUNDRY_VENV := .venv-llm-foundry
# No package of LLM Foundry has its YAMLs. A file does too.
MPT_YAML ?= https://raw.githubusercontent.com/mosaicml/llm-foundry/v0.22.0/scripts/train/yamls/pretrain/mpt-7b.yaml
# The node of the virtual environment, so that none need be installed.
NPM := PATH="$(CURDIR)/$(BIN):$$PATH" npm --prefix $(PAGES)

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-dist test-gpu test-newest-torch test-no-composer test-llm-foundry bench accuracy mpt lint docs clean

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

run: $(VENV)/.installed  ## train the quickstart, list the files it wrote, and say what filled the memory
	$(BIN)/composer-memprof train $(CONFIG) --report $(ARGS)

# Several processes with one thread each: more threads than cores slow one another down. Each process imports torch, so
# bytecode is written even where the environment forbids it.
TEST = PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

test: $(VENV)/.installed-dev  ## the tests that take a few seconds each at most
	$(TEST) -m 'not gpu and not slow' $(ARGS)

test-slow: $(VENV)/.installed-dev  ## the others: whole runs, commands and launchers, stores that fail, processes that are killed
	$(TEST) -m 'slow and not gpu' $(ARGS)

test-dist: $(VENV)/.installed-dev  ## the tests on two ranks over gloo
	$(BIN)/python -m pytest -m dist $(ARGS)

test-gpu: $(VENV)/.installed-dev  ## the tests that need a CUDA device
	$(BIN)/python -m pytest -m gpu $(ARGS)

test-newest-torch: $(NEWEST_VENV)/.installed-dev  ## all tests on the newest torch that mosaicml imports with, in an environment of its own
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(NEWEST_VENV)/bin/python -m pytest -m 'not gpu' -n auto --maxprocesses 4 --dist loadfile $(ARGS)

test-no-composer: $(WITHOUT_COMPOSER)/.installed-dev  ## the commands that need no Composer, without it and on the newest torch, in an environment of its own
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(WITHOUT_COMPOSER)/bin/python -m pytest -n auto --maxprocesses 4 --dist loadfile \
		tests/project/test_without_composer.py tests/simulated_gpu/test_third_party_libraries.py \
		$(addprefix tests/simulation/,test_verdict.py test_versus.py) tests/budget tests/testing $(ARGS)

# What composer_memprof[all] must not move, and the tests that need what LLM Foundry brings: wandb, MLflow, Databricks.
test-llm-foundry: $(FOUNDRY_VENV)/.installed  ## LLM Foundry's pins beside all extras, and the tests of loggers and stores, in an environment of its own
	$(FOUNDRY_VENV)/bin/uv pip check --python $(FOUNDRY_VENV)/bin/python
	$(FOUNDRY_VENV)/bin/python -c 'import llmfoundry, wandb, mlflow, datasets, streaming, boto3, s3fs, gcsfs, adlfs'
	$(FOUNDRY_VENV)/bin/python -m pytest tests/artifacts/naming/test_addresses.py $(addprefix tests/artifacts/uploading/,test_loggers.py test_s3.py test_probe.py) tests/loop/test_other_trainers.py $(ARGS)

bench: $(VENV)/.installed-dev  ## the cost of the callbacks, as ratios measured in one run; CHECK=1 compares them with the README
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.benchmarks.run $(if $(CHECK),--check) $(ARGS)

ACCURACY_VENV := $(if $(filter breadth,$(firstword $(ARGS))),$(BREADTH_VENV),$(if $(filter logs,$(firstword $(ARGS))),$(LOGS_VENV),$(VENV)))
# The others import what an environment without Composer lacks.
ACCURACY := $(if $(filter logs,$(firstword $(ARGS))),published_logs $(wordlist 2,99,$(ARGS)),accuracy $(ARGS))
accuracy: $(ACCURACY_VENV)/.installed-dev  ## how exact a simulated GPU is, against the real one if there is one; ARGS=time, ARGS=devices: its step times, ARGS=breadth: others' models, ARGS='logs CLONE FILE.csv': others' logs
	PYTHONDONTWRITEBYTECODE= $(ACCURACY_VENV)/bin/python -m tests.benchmarks.simulation.$(ACCURACY)

mpt: $(FOUNDRY_VENV)/.installed  ## LLM Foundry's MPT-7B on simulated GPUs, in an environment of its own (an hour)
	$(FOUNDRY_VENV)/bin/python -m tests.benchmarks.simulation.llm_foundry $(MPT_YAML) $(ARGS)

lint: $(VENV)/.installed-dev $(PAGES)/node_modules/.installed  ## style and types, of the pages' scripts too
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	@$(NPM) run --silent lint

docs: $(VENV)/.installed-dev  ## the guide and the API reference as one site with a search, in build/docs (Python 3.11 or newer)
	$(BIN)/python -m sphinx -q -b html .docs build/docs
	@echo 'open in a browser: build/docs/index.html'

clean:  ## remove the virtual environment, caches and the runs
	rm -rf .docs/api $(VENV) $(NEWEST_VENV) $(WITHOUT_COMPOSER) $(BREADTH_VENV) $(LOGS_VENV) $(FOUNDRY_VENV) $(PAGES)/node_modules runs build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# uv installs in seconds what takes pip minutes. Without uv, pip installs.
define install
	@if [ -x $(BIN)/uv ]; then $(BIN)/uv pip install --quiet --python $(BIN)/python $(1); \
	else $(BIN)/python -m pip install --quiet $(1); fi
endef

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; \
		sys.exit(0 if (3, 10) <= v <= (3, 12) else "composer_memprof needs Python 3.10 to 3.12, not %d.%d; choose one: make PYTHON=python3.11" % v)'
	$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet uv || echo 'uv could not be installed; installing with pip, which takes some minutes'

$(PAGES)/node_modules/.installed: $(PAGES)/package.json $(VENV)/.installed-dev
	@echo 'installing the linter and the type checker of the pages into $(PAGES)/node_modules (once; about 130 MB)'
	@$(NPM) install --loglevel=error
	@touch $@

$(VENV)/.installed: setup.cfg $(BIN)/python
	@echo 'installing composer_memprof into $(VENV) (once; about 5 GB with torch)'
	$(call install,-e .)
	@touch $@

$(VENV)/.installed-dev: setup.cfg $(BIN)/python
	@echo 'installing composer_memprof and its tests into $(VENV) (once; about 5 GB with torch)'
	$(call install,-e '.[dev]')
	@touch $@ $(VENV)/.installed

# uv alone can install against a pin.
$(NEWEST_VENV)/.installed-dev: setup.cfg Makefile
	@echo 'installing composer_memprof and its tests with $(NEWEST_TORCH) into $(NEWEST_VENV) (once; about 5 GB)'
	$(PYTHON) -m venv $(NEWEST_VENV)
	@$(NEWEST_VENV)/bin/python -m pip install --quiet uv
	@printf '%s\n' $(NEWEST_TORCH) > $(NEWEST_VENV)/overrides.txt
	@$(NEWEST_VENV)/bin/uv pip install --quiet --python $(NEWEST_VENV)/bin/python \
		--overrides $(NEWEST_VENV)/overrides.txt -e '.[dev]'
	@touch $@

$(WITHOUT_COMPOSER)/.installed-dev: setup.cfg Makefile
	@echo 'installing composer_memprof and its tests with $(ANY_TORCH) and without Composer into $(WITHOUT_COMPOSER) (once; about 5 GB)'
	$(PYTHON) -m venv $(WITHOUT_COMPOSER)
	@$(WITHOUT_COMPOSER)/bin/python -m pip install --quiet uv
	@printf '%s\n' "mosaicml; python_version < '3'" $(ANY_TORCH) > $(WITHOUT_COMPOSER)/overrides.txt
	@$(WITHOUT_COMPOSER)/bin/uv pip install --quiet --python $(WITHOUT_COMPOSER)/bin/python \
		--overrides $(WITHOUT_COMPOSER)/overrides.txt -e '.[simulate]' jsonschema pytest pytest-xdist
	@touch $@

$(BREADTH_VENV)/.installed-dev: setup.cfg Makefile
	@echo 'installing composer_memprof and $(BREADTH) into $(BREADTH_VENV) (once; about 5 GB)'
	$(PYTHON) -m venv $(BREADTH_VENV)
	@$(BREADTH_VENV)/bin/python -m pip install --quiet uv
	@$(BREADTH_VENV)/bin/uv pip install --quiet --python $(BREADTH_VENV)/bin/python -e '.[simulate]' $(BREADTH)
	@touch $@

$(LOGS_VENV)/.installed-dev: setup.cfg Makefile
	@echo 'installing composer_memprof with $(LOGS_TORCH) and without Composer into $(LOGS_VENV) (once; about 5 GB)'
	$(PYTHON) -m venv $(LOGS_VENV)
	@$(LOGS_VENV)/bin/python -m pip install --quiet uv
	@printf '%s\n' "mosaicml; python_version < '3'" $(LOGS_TORCH) > $(LOGS_VENV)/overrides.txt
	@$(LOGS_VENV)/bin/uv pip install --quiet --python $(LOGS_VENV)/bin/python \
		--overrides $(LOGS_VENV)/overrides.txt -e '.[simulate]' tiktoken
	@touch $@

$(FOUNDRY_VENV)/.installed: setup.cfg Makefile
	@echo 'installing composer_memprof and $(FOUNDRY) into $(FOUNDRY_VENV) (once; about 6 GB)'
	$(PYTHON) -m venv $(FOUNDRY_VENV)
	@$(FOUNDRY_VENV)/bin/python -m pip install --quiet uv
	@$(FOUNDRY_VENV)/bin/uv pip install --quiet --compile-bytecode --python $(FOUNDRY_VENV)/bin/python '$(FOUNDRY)' -e '.[all]' \
		'moto[server]' pytest hypothesis tensorboard
	@touch $@
