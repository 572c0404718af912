"""Test the number of workers and their command lines. tests/workers runs them."""

import argparse
import sys

import pytest
from hookmq.cli.workers import command_of, environ_of, planned
from hookmq.config.model import loads
from hookmq.hooks.manager import Hooks
from hookmq.model.errors import ConfigError
from hookmq.plugin import Context, Plugin, WorkerRegistry, hookimpl

TEXT = """version: 1
listeners: [{bind: "127.0.0.1:0"}]
plugins: [{use: other, enabled: false}, {use: joined}]
log: {format: text}
"""


class Joined(Plugin):
    """A plugin that registers three workers."""

    @hookimpl
    def register_workers(self, registry: WorkerRegistry) -> None:
        registry.set(3, self)

    async def start(self) -> None: ...

    def settings(self, worker: str) -> dict[str, str]:
        return {"node": worker, "servers.0": "nats://127.0.0.1:4222"}

    async def stop(self) -> None: ...


def test_register_workers() -> None:
    joined = Joined(None, Context("joined"))
    assert planned(None, Hooks()) is None
    assert planned(None, Hooks.of(joined)) == ("joined", 3, joined)
    assert planned("5", Hooks.of(joined)) == ("joined", 5, joined)
    assert planned("auto", Hooks.of(joined)) == ("joined", "auto", joined)


def test_the_option_needs_a_plugin_and_a_number() -> None:
    with pytest.raises(ConfigError, match="no plugin joins several processes"):
        planned("2", Hooks())
    with pytest.raises(ConfigError, match="option --workers: expected auto or a number"):
        planned("two", Hooks.of(Joined(None, Context("joined"))))


def arguments(**given: object) -> argparse.Namespace:
    defaults: dict[str, object] = {"config": None, "data_dir": None, "option": []}
    return argparse.Namespace(**defaults | given)


def test_the_command_line_of_a_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["/usr/bin"])
    given = arguments(config="a.yaml", data_dir="/data", option=["broker.max_qos=1"])
    assert command_of("w1", loads(TEXT), given) == [
        sys.executable, "-P", "-m", "hookmq.cli", "serve", "-c", "a.yaml", "--data-dir", "/data/w1",
        "-o", "broker.max_qos=1", "-o", "log.format=text",
    ]  # fmt: skip


def test_modules_in_the_working_directory_are_found_if_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "path", [""])
    assert command_of("w0", loads(TEXT), arguments())[:3] == [
        sys.executable,
        "-m",
        "hookmq.cli",
    ]


def test_the_settings_of_a_worker_are_in_its_environment() -> None:
    found = planned(None, Hooks.of(Joined(None, Context("joined"))))
    assert found is not None
    environ = environ_of("w1", loads(TEXT), found)
    assert environ == {
        "HOOKMQ__PLUGINS__1__CONFIG__NODE": "w1",
        "HOOKMQ__PLUGINS__1__CONFIG__SERVERS__0": "nats://127.0.0.1:4222",
    }
    config = loads(TEXT, environ=environ)
    assert config.origin is not None
    entry = config.origin.document.at(("plugins", 1, "config", "node"))
    assert entry.value == "w1"
