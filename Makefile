# HookMQ: every command a newcomer or CI needs. uv comes by pip into .venv, never into the system's Python.
PYTHON ?= python3
UV := .venv/bin/uv
WORKERS ?= 2
ROUNDS ?= 10
PYTEST := .venv/bin/python -m pytest -q -n $(WORKERS)
MEMBERS := $(wildcard core/pyproject.toml plugins/*/pyproject.toml examples/plugins/*/pyproject.toml)
PACKAGES := $(notdir $(patsubst %/__init__.py,%,$(wildcard $(MEMBERS:pyproject.toml=hookmq*/__init__.py))))
TESTS := conftest.py bench tests $(wildcard $(MEMBERS:pyproject.toml=tests))
# What `make test-all` runs the slow tests of, each with its time; the tests of one file share what they set up.
PARTS := core/tests $(filter-out tests/vectors/,$(sort $(wildcard tests/*/))) examples $(wildcard plugins)

# The system's Python and the system's certificates; nothing is downloaded but packages.
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := .venv
export UV_SYSTEM_CERTS := true

.PHONY: help run install test test-all fuzz check format bench wheels clean
help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

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

test: install    ## everything but the slow runs, under 5 minutes
	HYPOTHESIS_PROFILE=ci $(PYTEST) -m "not slow"

test-all: install  ## the slow runs: packaging from wheels and the like
	@failed=; for part in $(PARTS); do \
	  start=$$(date +%s); code=0; \
	  HYPOTHESIS_PROFILE=ci $(PYTEST) --dist loadfile -m slow $$part || code=$$?; \
	  case $$code in \
	    0) echo "== slow tests of $$part: passed, $$(($$(date +%s) - start)) s" ;; \
	    5) echo "== slow tests of $$part: there are none" ;; \
	    *) echo "== slow tests of $$part: FAILED, $$(($$(date +%s) - start)) s"; failed="$$failed $$part" ;; \
	  esac; \
	done; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

fuzz: install    ## the property tests, ROUNDS times with new random inputs
	@set -e; for round in $$(seq $(ROUNDS)); do $(PYTEST) -m hypothesis; done

check: install   ## ruff, ruff format, mypy --strict
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy $(PACKAGES:%=-p %)
	.venv/bin/mypy --explicit-package-bases $(TESTS)

format: install  ## sort imports, format
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: install   ## compare with mosquitto (Debian package) in one run
	.venv/bin/python -m bench

wheels: install  ## build the wheel of every member into dist/
	@rm -rf dist
	$(UV) build --all-packages --wheel --quiet --out-dir dist

clean:           ## remove what was built
	rm -rf .venv dist build .mypy_cache .ruff_cache .hypothesis
