# The two commands a newcomer needs are `make demo` and `make test`; both rest on `make install`.
# Nothing is installed outside .venv and .venv-peers, and nothing twice: the stamp is newer than what it was made from.

PYTHON ?= python3
STAMP := .venv/installed
PEERS_STAMP := .venv-peers/installed
LADDER_STAMP := .venv/installed-ladder

# So many processes side by side; tests/support/scheduling.py says what stays in one of them.
PROCESSES ?= 2
PYTEST := .venv/bin/pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install demo test test-long lint types unit site bench peers ladder ladder-status clean

help:
	@echo "make demo     measure the critical batch size of MinAtar Breakout, train Pong for a minute, write a page"
	@echo "make test     lint, types and all tests but the long ones: 11 minutes on two cores"
	@echo "make test-long  the long tests: runs and sweeps killed again and again, nodes that join and are lost, the bench suite"
	@echo "make lint, make types, make unit  the three parts of make test"
	@echo "make install  the environment in .venv that both use"
	@echo "make site     the documentation as a web site, in build/site"
	@echo "make bench    cost of the noise measurement, sampling, memory, learning, scaling: an hour on a quiet machine"
	@echo "make ladder   the published ladder of tasks, rung after rung: a day or more; make ladder-status says how far it is"
	@echo "make peers    end-to-end speed beside Stable-Baselines3, RLlib and TorchRL (installs them into .venv-peers)"

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "== installing into .venv (a minute or two, once)"
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { echo "rlscale needs Python 3.11 to 3.14: make PYTHON=python3.12 install"; exit 1; }
	$(PYTHON) -m venv .venv
	@# A torch that is there already is the user's own build, and stays.
	@if .venv/bin/python -c 'import torch' 2> /dev/null; then sed '/^torch==/d' constraints.txt; else cat constraints.txt; fi > .venv/constraints.txt
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv/constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@.venv/bin/rlscale demo

test: lint types unit

lint: $(STAMP)
	@echo "== ruff"
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: $(STAMP)
	@echo "== mypy"
	.venv/bin/mypy

unit: $(STAMP)
	@echo "== pytest"
	$(PYTEST) -m "not long"

test-long: $(STAMP)
	@echo "== pytest, the long tests"
	$(PYTEST) -m long

site: $(STAMP)
	@.venv/bin/python docs/site.py

# The published records, of another machine, stay as they are.
BENCH := runs/bench

bench: $(STAMP)
	.venv/bin/python -m rlscale.benchmarks.measurements.learner noise-cost --out $(BENCH)/noise-cost.json
	.venv/bin/python -m rlscale.benchmarks.measurements.sampling --out $(BENCH)/sampling.json
	.venv/bin/python -m rlscale.benchmarks.measurements.memory --out $(BENCH)/memory.json
	.venv/bin/python -m rlscale.benchmarks.measurements.learner blocks --out $(BENCH)/learner-blocks.json
	.venv/bin/python -m rlscale.benchmarks.measurements.learner precision --out $(BENCH)/learner-precision.json
	.venv/bin/python -m rlscale.benchmarks.measurements.learner several --out $(BENCH)/learner-several.json
	.venv/bin/python -m rlscale.benchmarks.measurements.scaling --out $(BENCH)/scaling.json

# An environment of its own, because the other libraries bring many packages.
$(PEERS_STAMP): pyproject.toml constraints.txt
	@echo "== installing into .venv-peers (a few minutes, once)"
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,peers]'
	@touch $(PEERS_STAMP)

peers: $(PEERS_STAMP)
	.venv-peers/bin/python -m rlscale.benchmarks.measurements.peers

# Some rungs are environments of Box2D and MuJoCo, which nothing else here needs.
$(LADDER_STAMP): $(STAMP)
	.venv/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv/constraints.txt --editable '.[ladder]'
	@touch $(LADDER_STAMP)

# One rung after another, at low priority; Ctrl-C stops, and the same command goes on.
ladder: $(LADDER_STAMP)
	.venv/bin/python -m rlscale.benchmarks.measurements.ladder climb

ladder-status: $(STAMP)
	@.venv/bin/python -m rlscale.benchmarks.measurements.ladder status

clean:
	rm -rf .venv .venv-peers build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
