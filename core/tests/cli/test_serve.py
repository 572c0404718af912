"""Test the command ``hookmq serve`` by running it as a process, from startup to exit."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import hookmq
import pytest
from hookmq.cli import main

CONFIG = """version: 1
listeners:
  - {name: tcp, bind: "127.0.0.1:0"}
  - {name: ws, type: ws, bind: "127.0.0.1:0"}
auth: {default: allow}
authz: {default: allow}
"""


class Server:
    """A running ``hookmq serve`` that logs JSON lines."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.seen: list[dict[str, Any]] = []

    def event(self, name: str) -> dict[str, Any]:
        """Return the next event with this name. Fail if the process ends first."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            entry: dict[str, Any] = json.loads(line)
            self.seen.append(entry)
            if entry["event"] == name:
                return entry
        raise AssertionError(f"no {name} in {self.seen}")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@contextmanager
def serving(*words: str) -> Iterator[Server]:
    environ = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("HOOKMQ_") or name == "HOOKMQ_BUILD"
    }
    command = [sys.executable, "-m", "hookmq.cli", "serve", "--log-format", "json", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_it_serves_reloads_and_stops(loop: str, tmp_path: pathlib.Path) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop", reason="an optional dependency")
    path = tmp_path / "hookmq.yaml"
    path.write_text(CONFIG)
    with serving("-c", str(path), "--loop", loop) as server:
        started = server.event("node.started")
        assert started["build"] == str(hookmq.BUILD)
        where = started["listeners"]
        events = [entry["event"] for entry in server.seen]
        assert "auth.anonymous" in events
        assert "store.memory" in events
        port = where["tcp"].rpartition(":")[2]
        assert main(["pub", "-h", "127.0.0.1", "-p", port, "-t", "a", "-m", "x", "-q", "1"]) == 0
        text = CONFIG.replace('bind: "127.0.0.1:0"}', 'bind: "*:0"}', 1)
        path.write_text(text + "broker: {max_qos: 1}\nlog: {level: debug}\n")
        server.process.send_signal(signal.SIGHUP)
        report = server.event("config.reloaded")
        assert report["applied"] == [
            "listeners.tcp.bind: 127.0.0.1:0 -> *:0",
            "broker.max_qos: 2 -> 1",
            "log.level: info -> debug",
        ]
        notice = server.event("auth.anonymous_remote")
        assert notice["listeners"] == ["tcp"]
        assert "may connect: set auth.default to deny" in notice["text"]
        assert server.stop() == 0


CHATTY = """from hookmq.plugin import Plugin, hookimpl


class Chatty(Plugin):
    def __init__(self, config, context):
        super().__init__(config, context)
        self.log("info", "chatty.made")

    @hookimpl
    def on_startup(self):
        self.log("info", "chatty.started", password="hush", color="blue")

    @hookimpl
    def on_reload(self):
        self.log("warning", "chatty.reloaded")

    @hookimpl
    def on_shutdown(self):
        self.log("info", "chatty.ended")
"""


def test_the_log_contains_events_of_plugins(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log contains the events that plugins log throughout their lives, from construction to shutdown, but no
    secrets.
    """
    described = tmp_path / "hookmq_chatty-1.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: hookmq-chatty\nVersion: 1\n")
    (described / "entry_points.txt").write_text("[hookmq.plugins]\nchatty = hookmq_chatty:Chatty\n")
    (tmp_path / "hookmq_chatty.py").write_text(CHATTY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = tmp_path / "hookmq.yaml"
    path.write_text(
        CONFIG + "plugins: [{use: chatty}, {use: nowhere, required: false}]\n", encoding="utf-8"
    )
    with serving("-c", str(path)) as server:
        made = server.event("chatty.made")
        assert (made["level"], made["plugin"]) == ("info", "chatty")
        started = server.event("chatty.started")
        assert (started["color"], "password" in started) == ("blue", False)
        server.event("node.started")
        assert "plugin.skipped" in [entry["event"] for entry in server.seen]
        server.process.send_signal(signal.SIGHUP)
        assert server.event("chatty.reloaded")["level"] == "warning"
        server.process.send_signal(signal.SIGTERM)
        server.event("chatty.ended")
        assert server.process.wait(60) == 0


def test_a_wrong_configuration_is_refused_and_the_old_one_holds(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "hookmq.yaml"
    path.write_text(CONFIG)
    with serving("-c", str(path)) as server:
        server.event("node.started")
        path.write_text(CONFIG + "broker: {max_qos: 7}\n")
        server.process.send_signal(signal.SIGHUP)
        assert "expected at most 2, found 7" in server.event("node.reload_failed")["error"]
        assert server.stop() == 0


def run(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hookmq.cli", "serve", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_an_address_that_is_taken_exits_with_4() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        port = sock.getsockname()[1]
        done = run("-o", f"listeners.0.bind=127.0.0.1:{port}", "-o", "listeners.1.bind=127.0.0.1:0")
    assert done.returncode == 4
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"hookmq: listener 'tcp' cannot listen on 127.0.0.1:{port}: ")
    assert "Traceback (most recent" not in done.stderr


def test_errors_before_the_start_are_printed_by_the_parent_process(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "-o", "broker.max_qos=5"]) == 2
    path = tmp_path / "f.yaml"
    path.write_text(CONFIG + "plugins: [{use: no_such_thing}]\n")
    assert main(["serve", "-c", str(path)]) == 3
    err = capsys.readouterr().err
    assert "option -o broker.max_qos: broker.max_qos: expected at most 2, found 5" in err
    assert "pip install" not in err


STORE = """from hookmq.plugin import Plugin, hookimpl
from hookmq.storage.memory_store import MemoryStore


class Keeps(Plugin):
    Config = dict
    folder = "some/where"
    durability = "os"

    @hookimpl
    def provide_store(self, broker):
        return MemoryStore("x")
"""


def test_the_banner_names_the_folder(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hookmq.cli.summary import banner
    from hookmq.config.model import default_config
    from hookmq.hooks.manager import Hooks
    from hookmq.plugin import Plugin
    from hookmq_testing import make_plugin

    names: dict[str, type[Plugin]] = {}
    exec(STORE, names)
    monkeypatch.chdir(tmp_path)
    hooks = Hooks([make_plugin(names["Keeps"])])
    text = banner(default_config(environ={}), hooks, {})
    place = tmp_path / "some/where"
    assert f"  data     {place} (os: survives the end of the process, not a power cut)\n" in text
    assert "forgets" not in text


def test_the_banner_says_why_a_compiled_build_does_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from hookmq.build import Build
    from hookmq.cli.summary import banner
    from hookmq.config.model import default_config
    from hookmq.hooks.manager import Hooks

    for build, said in ((Build("pure", "why so", True), True), (Build("pure", "why so"), False)):
        monkeypatch.setattr("hookmq.BUILD", build)
        text = banner(default_config(environ={}), Hooks(), {})
        assert ("  note     why so\n" in text) == said
