# HookMQ: every command a newcomer or CI needs. uv comes by pip into .venv, never into the system's Python.
PYTHON ?= python3
UV := .venv/bin/uv
# More than cores: tests wait a lot for the processes that they start.
WORKERS ?= 3
ROUNDS ?= 10
SECONDS ?= 60
CUTS ?= 1000
SEEDS ?= 1000
KILLS ?= 100
SEEDS_COMPILED ?= 1000
FIRST_COMPILED ?= 1250
KILLS_COMPILED ?= 5
MINUTES ?= 10
SIMULATE = .venv/bin/python -m hookmq.testing.sim --seeds $(SEEDS)
PYTEST := .venv/bin/python -m pytest -q -n $(WORKERS)
MEMBERS := $(wildcard core/pyproject.toml plugins/*/pyproject.toml examples/plugins/*/pyproject.toml)
PACKAGES := $(notdir $(patsubst %/__init__.py,%,$(wildcard $(MEMBERS:pyproject.toml=hookmq*/__init__.py))))
TESTS := conftest.py core/compiling.py bench tests tools $(wildcard $(MEMBERS:pyproject.toml=tests))
# Where the slow tests are, the longest first.
PARTS := $(shell grep -rl "mark\.slow" --include="test_*.py" core/tests tests plugins examples 2>/dev/null \
  | sed -E 's|^(core/tests\|[a-z]+/[^/]+(/[^/]+/tests)?)/.*|\1|' | sort -ru)

# The system's Python; nothing is downloaded but packages.
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
# A container's habit that makes every start of Python compile all it imports: two thirds of what a broker's start costs.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run install test test-all test-spark compiled test-compiled sim simulate crash crash-spark powercut soak overload conformance fuzz check types format docs test-pythons bench bench-check bench-micro bench-publish wheels clean
help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# Debian's python3 may lack ensurepip: then the system's pip installs into .venv, and into nothing else.
$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "HookMQ needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@$(PYTHON) -m venv .venv 2>/dev/null || $(PYTHON) -m venv --clear --without-pip .venv
	@if [ -x .venv/bin/pip ]; then pip=".venv/bin/python -m pip"; else pip="$(PYTHON) -m pip --python .venv/bin/python"; fi; \
	$$pip install --quiet --disable-pip-version-check "uv>=0.13,<1"

.venv/.synced: $(UV) uv.lock pyproject.toml $(MEMBERS)
	@$(UV) sync --locked --all-packages --quiet
	@touch $@

install: .venv/.synced        ## a ready .venv/ with .venv/bin/hookmq

run: install     ## start the broker on loopback 1883 (TCP) and 8083 (WebSocket)
	@exec .venv/bin/hookmq serve

test: install    ## everything but the slow runs, under 5 minutes, on the source as it is
	HOOKMQ_BUILD=pure HYPOTHESIS_PROFILE=ci $(PYTEST) -m "not slow"

# The wheel and what this checkout runs are one: the latter is unpacked from the former.
compiled: install  ## compile the hot path with mypyc: the platform wheel in dist/, and `make run` uses it too
	@.venv/bin/python core/compiling.py check
	@rm -f dist/hookmq-*-cp*.whl
	@HATCH_BUILD_HOOKS_ENABLE=1 $(UV) build --package hookmq --wheel --quiet --python .venv/bin/python --out-dir dist
	@.venv/bin/python core/compiling.py unpack dist/hookmq-*-cp*.whl
	@.venv/bin/hookmq version

# Its simulated lives are others than those of the slow tests: both builds live the same lives (test_compiled.py).
test-compiled: compiled  ## the same tests on the compiled build, a thousand more simulated lives and a few kills
	HOOKMQ_BUILD=compiled HYPOTHESIS_PROFILE=ci $(PYTEST) -m "not slow"
	HOOKMQ_BUILD=compiled $(PYTEST) -m slow tests/soak
	HOOKMQ_BUILD=compiled $(SIMULATE) --seeds $(SEEDS_COMPILED) --start $(FIRST_COMPILED)
	HOOKMQ_BUILD=compiled .venv/bin/python tests/crash/run.py --kills $(KILLS_COMPILED)

test-all: install  ## the slow runs: wheels, kills under load, simulated crashes; each with its time
	@failed=; \
	part() { \
	  name="$$1"; shift; start=$$(date +%s); \
	  if "$$@"; then echo "== $$name: passed, $$(($$(date +%s) - start)) s"; \
	  else echo "== $$name: FAILED, $$(($$(date +%s) - start)) s"; failed="$$failed, $$name"; fi; \
	}; \
	export HYPOTHESIS_PROFILE=ci HOOKMQ_BUILD=pure SEED=$${SEED:-1}; \
	part "slow tests" $(PYTEST) --dist loadgroup --durations 40 -m slow $(PARTS); \
	part "the compiled build" $(MAKE) --no-print-directory test-compiled; \
	part "Spark" $(MAKE) --no-print-directory test-spark; \
	part "devices to tables" $(MAKE) --no-print-directory crash-spark KILLS=6; \
	[ -z "$$failed" ] || { echo "failed$$failed" | tr , :; exit 1; }

# Spark has an environment of its own: half a gigabyte that the broker, its plugins and their tests never need. That of
# the pipelines serves the data source, too.
.venv-spark/.synced: $(UV) pipelines/uv.lock pipelines/pyproject.toml spark/pyproject.toml core/pyproject.toml
	@UV_PROJECT_ENVIRONMENT=$(CURDIR)/.venv-spark $(UV) sync --project pipelines --python .venv/bin/python \
	  --locked --all-extras --quiet
	@touch $@

# What every start of Spark would do again is done once: Python's modules are compiled, and Java's classes in an archive.
.venv-spark/warm: .venv-spark/.synced spark/warm.py spark/tests/support/sparks.py
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	PYTHONDONTWRITEBYTECODE= .venv-spark/bin/python spark/warm.py .venv-spark

# Each of the three often waits for what the others can do without, so they run beside each other; each is told whole.
test-spark: install .venv-spark/warm  ## the data source and the pipelines, against a real Spark and a real broker
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	. ./.venv-spark/warm && \
	$(MAKE) -j3 --keep-going --no-print-directory $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) \
	  pipelines-on-spark source-on-spark types-on-spark

.PHONY: pipelines-on-spark source-on-spark types-on-spark
pipelines-on-spark:
	@cd pipelines && ../.venv-spark/bin/python -m pytest -q

source-on-spark:
	@cd spark && ../.venv-spark/bin/python -m pytest -q

types-on-spark:
	@cd spark && \
	../.venv-spark/bin/mypy -p pyspark_mqtt && \
	MYPYPATH=tests/support ../.venv-spark/bin/mypy --explicit-package-bases java.py warm.py tests
	@cd pipelines && \
	../.venv-spark/bin/mypy -p mqtt_pipelines && \
	MYPYPATH=tests/support:../spark/tests/support ../.venv-spark/bin/mypy --explicit-package-bases demo tests

demo-spark: install .venv-spark/.synced  ## a broker, 1,000 devices and Spark: the gold table as it grows
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	exec .venv-spark/bin/python pipelines/demo/run.py

simulate: install  ## SEEDS simulated lives of a broker with crashes, faults and a virtual clock
	@$(SIMULATE)

sim: simulate

crash: install   ## kill a broker under load KILLS times; acknowledged is kept, QoS 2 once, in order
	.venv/bin/python tests/crash/run.py --kills $(KILLS)

crash-spark: install .venv-spark/warm  ## kill all between devices and tables KILLS times; acknowledged is in them once
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	. ./.venv-spark/warm && \
	.venv/bin/python tests/crash/devices --kills $(KILLS)

powercut: install  ## cut the power CUTS times while a broker writes; acknowledged is kept
	.venv/bin/python tests/crash/powercut --cuts $(CUTS)

soak: install    ## clients that come and go for MINUTES; nothing of them may be left
	.venv/bin/python tests/soak/run.py --minutes $(MINUTES)

overload: install  ## more than the broker or its readers can take, each kind for SECONDS
	.venv/bin/python tests/overload/run.py --seconds $(SECONDS)

conformance: install  ## test every statement of the standards and write docs/reference/conformance.md
	.venv/bin/python tests/conformance/report.py

fuzz: install    ## the property tests, ROUNDS times with new random inputs; inputs that reach new lines, for SECONDS
	@set -e; for round in $$(seq $(ROUNDS)); do $(PYTEST) -m hypothesis; done
	HOOKMQ_BUILD=pure .venv/bin/python tests/security/fuzz.py --seconds $(SECONDS)

mutants: install  ## plant small faults in the core's modules and list those that its tests miss
	HOOKMQ_BUILD=pure .venv/bin/python tests/mutation/mutate.py

check: install types  ## ruff, ruff format, codespell, the words of the glossary, mypy --strict
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/codespell
	.venv/bin/python tools/words.py

types: install   ## mypy --strict
	.venv/bin/mypy $(PACKAGES:%=-p %)
	.venv/bin/mypy --explicit-package-bases $(TESTS)

format: install  ## sort imports, format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.venv-docs/.synced: $(UV) uv.lock pyproject.toml
	@UV_PROJECT_ENVIRONMENT=.venv-docs $(UV) sync --locked --only-group docs --quiet
	@touch $@

docs: .venv-docs/.synced  ## the documentation site in build/site; every link is checked
	@.venv-docs/bin/python tools/manual.py build/site

test-pythons: install  ## the tests of the core on every Python from 3.11 that is here, or on PYTHONS
	@.venv/bin/python tools/pythons.py $(PYTHONS)

bench: install   ## every load on us, mosquitto, nats, aedes and amqtt; `python -m bench --quick` is a look
	@.venv/bin/python -m bench.install
	.venv/bin/python -m bench $(BENCH)

bench-check: install  ## count the system calls of a message, and show that a broken build is noticed
	@.venv/bin/python -m bench.check

bench-micro: install  ## the steps of a message against the last commit; fails by name where one is slower
	@.venv/bin/python -m bench.micro $(if $(BASE),--base $(BASE))

bench-publish: install  ## figures, curves and plots of docs/explanation/performance.md, on a quiet machine: about an hour
	@.venv/bin/python -m bench.install
	-@$(MAKE) --no-print-directory compiled
	-.venv/bin/python -m bench $(BENCH) --json bench/results/peers.json
	-.venv/bin/python -m bench.curves $(BENCH)
	.venv/bin/python -m bench.render

wheels: install  ## build the wheels and sdists of what is published into dist/
	@rm -rf dist
	@.venv/bin/python tools/release.py build dist

clean:           ## remove what was built
	rm -rf .venv .venv-spark .venv-docs .venv-pythons dist build core/hookmq/_compiled .mypy_cache .ruff_cache .hypothesis
