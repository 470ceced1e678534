# make demo    two races of eight ranks on this machine, in under four minutes
# make test    lint, types and all tests but those that are long by nature, in two parts: those that start processes
#              of their own come second
# make test-all what is long by nature, too: every test, also of trainers and between hosts, mutants, a long fuzz and a
#              soak; an hour
# make test-trainers   Lightning, Fabric, Hugging Face and Ray as they are: installs them; without them their tests are skipped
# make lint    ruff, mypy, import-linter and a spell checker alone
# make test-network    several hosts, as network namespaces of this machine; needs root and iproute2, and says why where it cannot
# make fuzz    random schedules, stops and crashes in simulated time; ARGS="--seed 7 -v" plays one again
# make soak    kills, stops and interrupts of real processes at random instants, for ten minutes; ARGS="--seconds 60 --seed 7"
# make mutants the package with one protection taken out at a time: the test of each must fail; some minutes
# make bench   speed beside Gloo, Open MPI and DDP in one run, into docs/benchmarks.md; ARGS="--only skew" one section, ARGS=--help
# make guard   whether a round has become slower, by ratios within one run; under a minute
# make scaling up to 256 hosts of 8 ranks in simulated time, with this machine's store, into docs/scaling.md; some minutes
# make learning whether strategies learn as well as if all had waited, and how soon, into docs/learning.md; hours of one core; ARGS=--quick minutes
# make docs    the documentation site, into site/; a broken link fails
# make package wheel and source distribution, into dist/, checked as a package index would
# make results the papers' figures beside ours, accuracy and races, for docs/results.md; more than an hour

PYTHON ?= python3
BIN := .venv/bin

# Bytecode is kept also where the environment says otherwise: tests start hundreds of processes. Files run beside each
# other, each with one thread; what a file's tests share is made once. Those that start processes wait much of their
# time, so that there are two for each of two cores, and the longest come first.
PYTEST := env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest --dist loadfile
PURE := $(PYTEST) -n 2
WITH_PROCESSES := $(PYTEST) -n 4 --no-loadscope-reorder
PROCESSES := tests/device tests/engine tests/faults tests/cli tests/test_examples.py tests/trainers
REST := --ignore=tests/network $(PROCESSES:%=--ignore=%)

.PHONY: demo docs test test-all test-network test-trainers lint format fuzz soak mutants bench guard scaling learning package results clean

demo: .venv/ready
	$(BIN)/outpace race --workload hyperplane --epochs 3 --imbalance random:k=1,delay_ms=200
	$(BIN)/outpace race --workload sequences --epochs 6 --compute-ms 50

test: lint
	@failed=0; \
	$(PURE) -m "not long" $(REST) || failed=1; \
	$(WITH_PROCESSES) -m "not long" $(PROCESSES) || failed=1; \
	exit $$failed

test-all: lint
	@failed=0; \
	$(PURE) $(REST) || failed=1; \
	$(WITH_PROCESSES) $(PROCESSES) || failed=1; \
	$(BIN)/python -m tests.faults.mutants || failed=1; \
	$(BIN)/python -m tests.fuzz --runs 2000 || failed=1; \
	$(BIN)/python -m tests.faults.soak --seconds 300 || failed=1; \
	$(MAKE) test-trainers || failed=1; \
	$(MAKE) test-network || failed=1; \
	exit $$failed

test-network: .venv/ready
	$(BIN)/python -m pytest tests/network -ra

test-trainers: .venv/ready
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[lightning,huggingface,ray]'
	$(PYTEST) -n 2 tests/trainers $(ARGS)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/typos

format: .venv/ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: .venv/ready
	$(BIN)/python -m tests.fuzz $(ARGS)

soak: .venv/ready
	$(BIN)/python -m tests.faults.soak $(ARGS)

mutants: .venv/ready
	$(BIN)/python -m tests.faults.mutants $(ARGS)

bench: .venv/ready
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m bench $(ARGS)

guard: .venv/ready
	$(BIN)/python -m bench.guard

scaling: .venv/ready
	$(BIN)/python -m bench.scaling $(ARGS)

learning: .venv/ready
	$(BIN)/python -m bench.learning $(ARGS)

docs: .venv/ready
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

package: .venv/ready
	$(BIN)/pip install -q --disable-pip-version-check build twine
	rm -rf dist
	$(BIN)/python -m build -q
	$(BIN)/twine check --strict dist/*

results: .venv/ready
	$(BIN)/python bench/published.py
	$(BIN)/python bench/convergence.py
	$(BIN)/python bench/races.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist site src/*.egg-info
