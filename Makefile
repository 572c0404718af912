# Every command that a contributor or CI needs. pip installs uv into .venv, never into the system's Python.
PYTHON ?= python3
UV := .venv/bin/uv
# More than there are cores: tests often wait for processes that they start.
WORKERS ?= 3
ROUNDS ?= 10
SECONDS ?= 60
# How many of the slowest tests `make test` lists.
SLOWEST ?= 0
CUTS ?= 1000
SEEDS ?= 1000
JOBS ?= 1
START ?= 0
KILLS ?= 100
CLUSTERS ?= 15
SEEDS_COMPILED ?= 500
FIRST_COMPILED ?= 1250
KILLS_COMPILED ?= 5
MINUTES ?= 10
SIMULATE = PYTHONPATH=tests/support .venv/bin/python -m simulator --seeds $(SEEDS)
# How often a failed test may run again. CI allows one, and lists each test that needed it.
RERUNS ?= 0
AGAIN := $(if $(filter-out 0,$(RERUNS)),--reruns $(RERUNS) -r fER)
PYTEST := .venv/bin/python -m pytest -q -n $(WORKERS) $(AGAIN)
MEMBERS := $(wildcard core/pyproject.toml toolkit/pyproject.toml testing/pyproject.toml plugins/*/pyproject.toml clients/*/pyproject.toml examples/plugins/*/pyproject.toml)
PACKAGES := $(notdir $(patsubst %/__init__.py,%,$(wildcard $(MEMBERS:pyproject.toml=hookmq*/__init__.py))))
# Distributions with compiled modules.
COMPILED := $(patsubst %/pyproject.toml,%,$(shell grep -l "wheel.hooks.custom" $(MEMBERS)))
TESTS := conftest.py core/compiling.py bench tests tools plugins/sinks/demo plugins/cluster/demo $(wildcard $(MEMBERS:pyproject.toml=tests))
# Folders with slow tests, the longest first.
PARTS := $(shell grep -rl "mark\.slow" --include="test_*.py" core/tests tests plugins clients examples 2>/dev/null \
  | sed -E 's|^(core/tests\|[a-z]+/[^/]+(/[^/]+/tests)?)/.*|\1|' | sort -ru)

# Use the system's Python; download nothing but packages.
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
# Containers often set this. Each start of Python would then compile all imports: two thirds of a broker's start time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run install test test-all test-spark compiled test-compiled spark-versions spark-hosts sim simulate simulate-cluster crash crash-queues crash-sinks chaos-cluster test-sources crash-spark fuzz-spark powercut soak overload conformance fuzz check types format docs test-pythons bench bench-check bench-micro bench-publish pictures wheels clean
help:            ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# Debian's python3 may lack ensurepip. Then the system's pip installs into .venv, and nowhere else.
$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "HookMQ needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	@$(PYTHON) -m venv .venv 2>/dev/null || $(PYTHON) -m venv --clear --without-pip .venv
	@if [ -x .venv/bin/pip ]; then pip=".venv/bin/python -m pip"; else pip="$(PYTHON) -m pip --python .venv/bin/python"; fi; \
	$$pip install --quiet --disable-pip-version-check "uv>=0.13,<1"

.venv/.synced: $(UV) uv.lock pyproject.toml $(MEMBERS)
	@$(UV) sync --locked --all-packages --quiet
	@touch $@

install: .venv/.synced        ## set up .venv, with .venv/bin/hookmq

run: install     ## start a broker on 127.0.0.1, ports 1883 (TCP) and 8083 (WebSocket)
	@exec .venv/bin/hookmq serve

test: install    ## run all tests except slow ones on the pure build, under 5 minutes
	HOOKMQ_BUILD=pure HYPOTHESIS_PROFILE=ci $(PYTEST) $(if $(filter-out 0,$(SLOWEST)),--durations $(SLOWEST)) -m "not slow"

# The checkout runs the compiled modules of the wheel, unpacked.
compiled: install  ## compile the fast path with mypyc, for `make run` and as wheels in dist/
	@.venv/bin/python core/compiling.py check
	@rm -f dist/hookmq*-cp*.whl
	@for folder in $(COMPILED); do \
	  HATCH_BUILD_HOOKS_ENABLE=1 $(UV) build $$folder --wheel --quiet --python .venv/bin/python --out-dir dist && \
	  .venv/bin/python core/compiling.py unpack $$folder dist || exit 1; \
	done
	@.venv/bin/hookmq version

# Tests with the same result on both builds. All but three only read sources and pages. tests/docs/test_pages.py,
# tests/deploy and tests/packaging/test_members.py also start a few brokers, to check what a page, a package or the
# skeleton says. The compiled modules are tested by the other tests: the core's, each plugin's and example's, real clients.
SAME_ON_BOTH := core/tests/test_function_size.py core/tests/test_hooks_named.py core/tests/test_layers.py tests/deploy \
  $(addprefix tests/docs/test_,log_events.py pages.py site.py words.py) tests/mutation \
  $(addprefix tests/packaging/test_,circles.py members.py project_files.py public_imports.py pythons.py release.py)

# Its seeds differ from those of the slow tests. test_compiled.py shows that one seed gives the same run on both builds.
test-compiled: compiled  ## run the tests on the compiled build, with 500 more simulator runs and a few kills
	HOOKMQ_BUILD=compiled HYPOTHESIS_PROFILE=ci $(PYTEST) $(SAME_ON_BOTH:%=--ignore %) -m "not slow"
	HOOKMQ_BUILD=compiled $(PYTEST) -m slow tests/soak
	HOOKMQ_BUILD=compiled $(SIMULATE) --seeds $(SEEDS_COMPILED) --start $(FIRST_COMPILED)
	HOOKMQ_BUILD=compiled .venv/bin/python tests/crash/run.py --kills $(KILLS_COMPILED)

test-all: install  ## run the slow tests: wheels, kills under load, simulator runs; print the time of each
	@failed=; \
	part() { \
	  name="$$1"; shift; start=$$(date +%s); \
	  if "$$@"; then echo "== $$name: passed, $$(($$(date +%s) - start)) s"; \
	  else echo "== $$name: FAILED, $$(($$(date +%s) - start)) s"; failed="$$failed, $$name"; fi; \
	}; \
	export HYPOTHESIS_PROFILE=ci HOOKMQ_BUILD=pure SEED=$${SEED:-1}; \
	part "slow tests" $(PYTEST) --dist loadgroup --durations 20 -m slow $(PARTS); \
	part "the compiled build" $(MAKE) --no-print-directory test-compiled; \
	part "Spark" $(MAKE) --no-print-directory test-spark; \
	part "devices to tables" $(MAKE) --no-print-directory crash-spark KILLS=4; \
	[ -z "$$failed" ] || { echo "failed$$failed" | tr , :; exit 1; }

# Spark has a separate environment: half a gigabyte that the broker, its plugins and their tests do not need. The data
# source and the pipelines share it.
.venv-spark/.synced: $(UV) pipelines/uv.lock pipelines/pyproject.toml spark/pyproject.toml core/pyproject.toml
	@UV_PROJECT_ENVIRONMENT=$(CURDIR)/.venv-spark $(UV) sync --project pipelines --python .venv/bin/python \
	  --locked --all-extras --quiet
	@touch $@

# Do once what each start of Spark would repeat: compile Python's modules, and archive Java's classes.
.venv-spark/warm: .venv-spark/.synced spark/warm.py spark/tests/support/sparks.py
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	PYTHONDONTWRITEBYTECODE= .venv-spark/bin/python spark/warm.py .venv-spark

# Each of the three often waits, so they run in parallel. The output of each is printed as a whole.
test-spark: install .venv-spark/warm  ## test the data source and the pipelines against Spark and a broker
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	. ./.venv-spark/warm && \
	$(MAKE) -j3 --keep-going --no-print-directory $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) \
	  pipelines-on-spark source-on-spark types-on-spark

# Longer than CI has time for.
.PHONY: test-spark-long
test-spark-long: install .venv-spark/warm  ## run the long proofs of the pipelines: drivers killed while they write to S3
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && . ./.venv-spark/warm && \
	cd pipelines && ../.venv-spark/bin/python -m pytest -q $(AGAIN) -m long

.PHONY: pipelines-on-spark source-on-spark types-on-spark
pipelines-on-spark:
	@cd pipelines && ../.venv-spark/bin/python -m pytest -q $(AGAIN) -m "not long"

source-on-spark:
	@cd spark && ../.venv-spark/bin/python -m pytest -q $(AGAIN)

types-on-spark:
	@cd spark && \
	../.venv-spark/bin/mypy -p pyspark_mqtt && \
	MYPYPATH=tests/support ../.venv-spark/bin/mypy --explicit-package-bases java.py warm.py tests
	@cd pipelines && \
	../.venv-spark/bin/mypy -p mqtt_pipelines && \
	MYPYPATH=demo:examples:notebooks:tests/support:../spark/tests/support ../.venv-spark/bin/mypy --explicit-package-bases demo examples notebooks tests

# Options of a demo, such as DEMO="--no-browser --devices 200".
DEMO ?=
# These have targets of their own, because they start Java again and install other versions of Spark.
spark-versions: install .venv-spark/warm .venv-spark-3.5/.installed .venv-spark-4.0/.installed  ## read landed files with Spark 3.5 and 4.0
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	cd spark && ../.venv-spark/bin/python -m pytest -q -rs tests/apart/test_versions.py

.venv-spark-%/.installed: $(UV)
	@$(UV) venv --quiet --clear --python .venv/bin/python .venv-spark-$*
	@$(UV) pip install --quiet --python .venv-spark-$*/bin/python "pyspark~=$*.0" setuptools
	@touch $@

spark-hosts: install .venv-spark/warm  ## run Spark and the broker in two network namespaces whose link fails (root)
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	. ./.venv-spark/warm && \
	cd spark && ../.venv-spark/bin/python -m pytest -q -rs tests/apart/test_hosts.py

demo-spark: demo-tells install .venv-spark/warm  ## show a broker, 1,000 devices, Spark filling tables, and a page with live charts
	@. ./.venv-spark/warm && \
	JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	exec .venv-spark/bin/python pipelines/demo/run.py $(DEMO)

demo-sinks: install  ## show a plant whose messages fill PostgreSQL and Redis, and what happens if one of them is stopped
	@exec .venv/bin/python plugins/sinks/demo/sinks_demo.py $(DEMO)

demo-cluster: install  ## show three brokers and three NATS servers, and where clients and sessions go if some are killed
	@exec .venv/bin/python plugins/cluster/demo/cluster_demo.py $(DEMO)

.PHONY: demo-cluster demo-sinks demo-spark demo-tells
demo-tells:
	@[ -e .venv-spark/warm ] || echo "Preparing Spark. The first time, this downloads 700 MB and takes some minutes."

simulate: install  ## run the simulator with SEEDS seeds: crashes, faults and a virtual clock
	@$(SIMULATE)
	@$(SIMULATE) --queues

simulate-cluster: install  ## run SEEDS simulated clusters with faults in JOBS processes, on a virtual clock; START is the first
	@PYTHONPATH=tests/support .venv/bin/python -m cluster_simulator --seeds $(SEEDS) --jobs $(JOBS) --start $(START)

sim: simulate

crash: install   ## kill a broker under load KILLS times and check that nothing acknowledged is lost
	.venv/bin/python tests/crash/run.py --kills $(KILLS)

crash-queues: install  ## kill a broker with queues and its consumers KILLS times and check that no message is lost
	.venv/bin/python tests/crash/queues --kills $(KILLS)

chaos-cluster: install  ## break brokers, NATS servers, networks and disks of CLUSTERS clusters and check the histories of the clients
	.venv/bin/python tests/crash/cluster --seeds $(CLUSTERS) $(if $(SEED),--seed $(SEED)) $(if $(RESULTS),--results $(RESULTS))

crash-sinks: install  ## kill a broker with a sink (or with a source: SOURCE=redis) KILLS times and check that no message is lost
	.venv/bin/python tests/crash/sinks --kills $(KILLS) $(if $(SOURCE),--source $(SOURCE))

test-sources: install  ## run all tests of sources, also those of RabbitMQ and Kafka that CI leaves out
	HOOKMQ_LONG_TESTS=1 .venv/bin/python -m pytest -q plugins/sinks/tests/test_sinks_*_source.py plugins/sinks/tests/test_sinks_source*.py tests/crash/sinks/test_sinks_source_crash.py

crash-spark: install .venv-spark/warm  ## kill broker, Spark and jobs KILLS times and check that tables hold each message once
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	. ./.venv-spark/warm && \
	.venv/bin/python tests/crash/devices --kills $(KILLS)

fuzz-spark: install .venv-spark/warm  ## send hostile messages through each job of the pipelines and each table format
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && \
	. ./.venv-spark/warm && \
	cd pipelines && HOSTILE_FORMATS="files delta iceberg" ../.venv-spark/bin/python -m pytest -q tests/test_hostile.py

powercut: install  ## simulate CUTS power cuts while a broker writes, and check the same
	.venv/bin/python tests/crash/powercut --cuts $(CUTS)

soak: install    ## let clients come and go for MINUTES and check that nothing leaks
	.venv/bin/python tests/soak/run.py --minutes $(MINUTES)

overload: install  ## overload a broker in each way for SECONDS
	.venv/bin/python tests/overload/run.py --seconds $(SECONDS)

conformance: install  ## test each statement of the standards; write docs/reference/conformance.md
	.venv/bin/python tests/conformance/report.py

# The client of the conformance tests has tests of its own, and the report is about the statements.
.PHONY: conformance-cluster
conformance-cluster: install  ## run the conformance and interoperability tests through random nodes of a cluster
	HOOKMQ_CLUSTER=3 HOOKMQ_BUILD=pure $(PYTEST) tests/conformance tests/interop \
	  --ignore tests/conformance/test_report.py --ignore tests/conformance/test_byteclient.py

fuzz: install    ## run the property tests ROUNDS times with new inputs, then the fuzzer for SECONDS
	@set -e; for round in $$(seq $(ROUNDS)); do $(PYTEST) -m hypothesis; done
	HOOKMQ_BUILD=pure .venv/bin/python tests/security/fuzz.py --seconds $(SECONDS)

mutants: install  ## plant faults in the core and list those that its tests miss
	HOOKMQ_BUILD=pure .venv/bin/python tests/mutation/mutate.py

check: install types  ## run ruff, codespell, the word check and mypy --strict
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/codespell
	.venv/bin/python tools/words.py

types: install   ## run mypy --strict
	.venv/bin/mypy $(PACKAGES:%=-p %)
	.venv/bin/mypy --explicit-package-bases $(TESTS)

format: install  ## sort imports and format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.venv-docs/.synced: $(UV) uv.lock pyproject.toml
	@UV_PROJECT_ENVIRONMENT=.venv-docs $(UV) sync --locked --only-group docs --quiet
	@touch $@

docs: .venv-docs/.synced  ## build the documentation site in build/site and check its links
	@.venv-docs/bin/python tools/manual.py build/site

test-pythons: install  ## test the core on each Python from 3.11 that is found, or on PYTHONS
	@.venv/bin/python tools/pythons.py $(PYTHONS)

bench: install   ## compare with mosquitto, nats, aedes and amqtt; `python -m bench --quick` is shorter
	@.venv/bin/python -m bench.install
	.venv/bin/python -m bench $(BENCH)

bench-check: install  ## count the system calls of a message, and check that a broken build is noticed
	@.venv/bin/python -m bench.check

bench-micro: install  ## compare the steps of a message with the last commit; name those that are slower
	@.venv/bin/python -m bench.micro $(if $(BASE),--base $(BASE))

bench-publish: install  ## measure all figures of docs/explanation/performance.md: an hour on a quiet machine
	@.venv/bin/python -m bench.install
	-@$(MAKE) --no-print-directory compiled
	-.venv/bin/python -m bench $(BENCH) --json bench/results/peers.json
	-.venv/bin/python -m bench.curves $(BENCH)
	.venv/bin/python -m bench.render

pictures: install .venv-spark/warm  ## make the pictures of the console and of the demo in docs/images, with Chromium
	HOOKMQ_PICTURES=docs/images .venv/bin/python -m pytest -q -m slow tests/console/test_console_pictures.py
	@JAVA_HOME=$$($(PYTHON) spark/java.py $(UV) .venv-spark) && export JAVA_HOME && . ./.venv-spark/warm && cd pipelines && \
	HOOKMQ_PICTURES=$(CURDIR)/docs/images ../.venv-spark/bin/python -m pytest -q tests/test_demo.py

wheels: install  ## build the wheels and sdists of all published distributions into dist/
	@rm -rf dist
	@.venv/bin/python tools/release.py build dist

clean:           ## remove all build results
	rm -rf .venv .venv-spark .venv-spark-* .venv-docs .venv-pythons dist build core/hookmq/_compiled plugins/*/*/_compiled .mypy_cache .ruff_cache .hypothesis
