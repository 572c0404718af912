"""Test that a run of bench.durable counts only if the messages that it measures were stored."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from bench import durable, durable_load, durable_report, peers


@contextlib.contextmanager
def replaying(numbers: list[int]) -> Iterator[int]:
    """Yield the port of a server that sends a client these messages and reads its answers."""

    def serve() -> None:
        connection, _ = server.accept()
        with connection, contextlib.suppress(ConnectionError):
            connection.recv(1000)
            connection.sendall(b"\x20\x02\0\0")
            for number in numbers:
                data = durable_load.PUBLISH.pack(
                    durable_load.FIRST, durable_load.TOPIC, 1, number, durable_load.REST
                )
                connection.sendall(data)
            while connection.recv(1000):
                pass

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_acknowledged_messages_are_fetched() -> None:
    second = 1 << 32
    with replaying([0, second, 1, 2, second + 1, 2]) as port:
        durable_load.fetch(port, [3, 1])


@pytest.mark.parametrize("come", [[], [0, 2], [0, 0, 0], [(1 << 32) + 1, 0, 2]])
def test_a_lost_message_makes_a_run_void(come: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_load, "GAP", 0.05)
    with (
        replaying(come) as port,
        pytest.raises(durable_load.Void, match="acknowledged messages are lost"),
    ):
        durable_load.fetch(port, [3, 1])


@pytest.mark.parametrize("subject", durable.SUBJECTS, ids=lambda one: one.name)
@pytest.mark.slow
def test_every_subject_can_be_measured(subject: durable.Subject) -> None:
    if subject.peer and peers.PEERS[subject.peer].program() is None:
        pytest.skip(f"{subject.peer} is not installed")
    publishers = 2 if subject.peer else 1
    run = durable.measure(subject, durable.Case(4, publishers), 0.2)
    assert run.rate > 0
    assert 0 < run.main <= run.cpu
    assert run.latencies == sorted(run.latencies)
    assert run.latency(0.5) <= run.latency(0.99)
    line = durable_report.row("4", subject.name, [run, run], [run])
    assert line.count("|") == durable_report.HEADING.splitlines()[0].count("|")
    assert "1.00x" in line


def test_a_case_is_named_as_the_table_names_it() -> None:
    names = [str(case) for case in durable.CASES]
    assert len(set(names)) == len(names)
    assert {"1", "50", "1000", "50, 50 publishers", "50 + QoS 0"} <= set(names)
