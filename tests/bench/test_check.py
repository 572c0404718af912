"""Test that bench.check detects a build that writes every packet separately, by counting writes and system calls."""

from __future__ import annotations

import shutil

import pytest
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Publish
from hookmq_bench import native
from hookmq_testing import Harness

from bench import broken, check, peers, scenarios

BATCH = 100


def writes(harness: Harness, receivers: int) -> int:
    """Return the writes to all receivers caused by `BATCH` messages in one read."""
    others = [harness.connect(f"sub{number}", version=4) for number in range(receivers)]
    for other in others:
        other.subscribe("bench/a")
        other.wire.writes.clear()
    client = harness.connect("pub", version=4)
    client.connection.feed(encode(Publish("bench/a", b"x"), 4) * BATCH)
    harness.settle()
    assert all(len(other.messages) == BATCH for other in others)
    return sum(len(other.wire.writes) for other in others)


def test_one_write_for_each_connection_and_turn() -> None:
    with Harness() as harness:
        assert writes(harness, 3) == 3


def test_a_transport_that_writes_each_packet_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    from hookmq_testing import MemoryWire

    monkeypatch.setattr(MemoryWire, "write", broken.one_by_one(MemoryWire.write))
    with Harness() as harness:
        assert writes(harness, 3) == 3 * BATCH


def test_packets_are_split() -> None:
    found = [encode(Publish("a", bytes(size)), 5) for size in (0, 1, 200, 70_000)]
    assert list(broken.packets(b"".join(found))) == found


def test_calls_are_read_from_the_output_of_strace() -> None:
    text = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 53.05    0.011340           5      2117         7 write
 46.95    0.010035           4      2101           recvfrom
------ ----------- ----------- --------- --------- ----------------
100.00    0.021375           5      4218         7 total
"""
    assert check.tally(text) == {"write": 2117, "recvfrom": 2101}


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("strace") is None or native.find_compiler() is None,
    reason="strace or a C compiler is not installed",
)
def test_system_calls_of_a_broken_build_are_above_the_limit() -> None:
    (scenario,) = scenarios.select("pairs-q0-w20")
    limit = check.LIMITS[scenario.name]
    try:
        sound = check.count(peers.PEERS["hookmq"], scenario, 0.1)
    except check.CheckError as error:
        if "attach" in str(error) or "ptrace" in str(error):
            pytest.skip(f"this machine forbids to trace: {error}")
        raise
    assert sound.writes < limit < check.count(check.broken(), scenario, 0.1).writes
