"""Test what differs between the workers of one broker."""

import os
import socket

import pytest
from hookmq.model.errors import ConfigError, PluginError
from hookmq.server.settings import ListenerSettings, TlsSettings
from hookmq.server.workers import (
    VARIABLE,
    WorkerIdentity,
    WorkerPlans,
    check_listeners,
    parse_count,
    resolve_count,
    state_folder,
    take_identity,
)

LISTENERS = (
    ListenerSettings("tcp", bind="127.0.0.1:0"),
    ListenerSettings("tls", "tls", bind="[::1]:8883", tls=TlsSettings(certificate="x")),
    ListenerSettings("every", "ws", bind="*:8083"),
    ListenerSettings("unix", "unix", bind="/tmp/s"),
    ListenerSettings("http", "http", bind="127.0.0.1:9090"),
    ListenerSettings("any", "http", bind="127.0.0.1:0"),
    ListenerSettings("given", bind="127.0.0.1:1883"),
)


class Plan:
    async def start(self) -> None: ...

    def settings(self, worker: str) -> dict[str, str]:
        return {}

    async def stop(self) -> None: ...


def test_a_plugin_registers_workers() -> None:
    plans = WorkerPlans()
    plan = Plan()
    assert plans.found is None
    plans.of("cluster").set("auto", plan)
    assert plans.found == ("cluster", "auto", plan)
    with pytest.raises(PluginError, match="plugin 'cluster' also registers workers"):
        plans.of("other").set(2, plan)
    with pytest.raises(PluginError, match="at least 1 worker, found 0"):
        WorkerPlans().of("cluster").set(0, plan)


@pytest.mark.parametrize(("text", "count"), [("auto", "auto"), ("1", 1), ("16", 16)])
def test_counts(text: str, count: object) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "0", "-1", "many", "1025", "1.5", "²"])
def test_wrong_counts(text: str) -> None:
    with pytest.raises(ValueError, match="expected auto or a number from 1 to 1024"):
        parse_count(text)


def test_auto_is_the_number_of_usable_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 4, 5})
    assert resolve_count("auto") == 3
    assert resolve_count(7) == 7


def test_a_worker_opens_its_own_listeners() -> None:
    worker = WorkerIdentity(2, 4, {"tcp": 40001}, {"given": 9}, 3)
    tcp, tls, every, unix, http, anyone, given = worker.listeners(LISTENERS)
    assert (tcp.bind, tcp.reuse_port) == ("127.0.0.1:40001", True)
    assert (tls.bind, tls.reuse_port) == ("[::1]:8883", True)
    assert (every.bind, every.reuse_port) == ("*:8083", True)
    assert unix is LISTENERS[3]
    assert (http.bind, http.reuse_port) == ("127.0.0.1:9092", False)
    assert anyone.bind == "127.0.0.1:0"
    assert given is LISTENERS[6]


def test_the_identity_passes_through_the_environment() -> None:
    worker = WorkerIdentity(1, 2, {"tcp": 1}, {"unix": 7}, 3)
    environ = {VARIABLE: worker.text(), "HOME": "/"}
    assert take_identity(environ) == worker
    assert worker.name == "w1"
    assert environ == {"HOME": "/"}
    assert take_identity(environ) is None


@pytest.mark.parametrize("text", ["1", "{}", "x", '{"number": 1}'])
def test_a_wrong_identity_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="only hookmq itself may set it"):
        take_identity({VARIABLE: text})


def test_shared_sockets_are_opened_once_and_not_inherited() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        descriptor = os.dup(server.fileno())
        os.set_inheritable(descriptor, True)
        found = WorkerIdentity(0, 1, {}, {"given": descriptor}, 3).open_sockets()
        with found["given"] as sock:
            assert sock.getsockname() == server.getsockname()
            assert not sock.get_inheritable()


def test_listeners_that_workers_cannot_share() -> None:
    check_listeners(LISTENERS, 4)
    with pytest.raises(ConfigError, match="cannot share a plugin's listener of type quic"):
        check_listeners([ListenerSettings("q", "quic", bind="x")], 2)
    with pytest.raises(ConfigError, match="the ports 65534 to 65537 of the workers exceed 65535"):
        check_listeners([ListenerSettings("h", "http", bind="127.0.0.1:65534")], 4)


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"STATE_DIRECTORY": "/var/lib/hookmq:/other"}, "/var/lib/hookmq/workers/w0"),
        ({"XDG_STATE_HOME": "/state"}, "/state/hookmq/workers/w0"),
    ],
)
def test_each_worker_has_its_own_folder(environ: dict[str, str], folder: str) -> None:
    assert state_folder("w0", environ) == folder


def test_the_folder_is_in_the_home_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert state_folder("w1", {}) == "/home/me/.local/state/hookmq/workers/w1"
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert state_folder("w1", {}) == ""
