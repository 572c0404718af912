# HookMQ: every command a newcomer or CI needs. uv comes by pip into .venv, never into the system's Python.
PYTHON ?= python3
UV := .venv/bin/uv
RUN := $(UV) run --locked --no-sync
export UV_PYTHON_DOWNLOADS = never
export UV_PROJECT_ENVIRONMENT = .venv

.PHONY: help run install test test-all check bench wheels clean
help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "HookMQ needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"

.venv/.synced: $(UV) uv.lock pyproject.toml core/pyproject.toml $(wildcard plugins/*/pyproject.toml)
	$(UV) sync --locked --quiet
	@touch $@

install: .venv/.synced        ## a ready .venv/ with .venv/bin/hookmq

run: install     ## start the broker on loopback 1883 (TCP) and 8083 (WebSocket)
	@.venv/bin/hookmq serve

test: install    ## everything but the slow runs, under 5 minutes
	.venv/bin/python -m pytest -q -n 2 -m "not slow"

test-all: install  ## the rest: slow runs
	.venv/bin/python -m pytest -q -m slow

check: install   ## ruff, ruff format, mypy --strict
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

bench: install   ## compare with mosquitto (Debian package) in one run
	.venv/bin/python -m bench

wheels: install  ## build the wheel of every member into dist/
	$(UV) build --all-packages --wheel --quiet --out-dir dist

clean:           ## remove what was built
	rm -rf .venv dist build .mypy_cache .ruff_cache .hypothesis
