# make demo    two races of eight ranks on this machine, in under three minutes
# make test    lint, types and all tests
# make lint    ruff and mypy alone
# make fuzz    random schedules, stops and crashes in simulated time; ARGS="--seed 7 -v" plays one again
# make bench   speed against Gloo and Open MPI, as ratios within one run

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint format fuzz bench clean

demo: .venv/ready
	$(BIN)/outpace race --workload hyperplane --epochs 2 --imbalance random:k=1,delay_ms=200
	$(BIN)/outpace race --workload sequences --epochs 6 --compute-ms 50

test: lint
	$(BIN)/python -m pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz $(ARGS)

bench: .venv/ready
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python bench/collectives.py
	$(BIN)/python bench/solo_step.py
	$(BIN)/python bench/grace.py
	$(BIN)/python bench/stops.py
	$(BIN)/python bench/reality.py
	$(BIN)/python bench/scale.py
	$(BIN)/python bench/published.py
	$(BIN)/python bench/convergence.py
	$(BIN)/python bench/races.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist src/*.egg-info
