"""The path of a PUBLISH through the code: counts of calls, files, and returns to a broker file already left.

This is the order in which a new contributor reads the code. A change that makes the path longer must raise the counts
here.
"""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import hookmq
import pytest
from hookmq.mqtt.packets import Puback
from hookmq_testing import DurableStore, Harness, MemoryClient

ROOT: Final = f"{Path(hookmq.__file__).parent}/"
PAGE: Final = Path(__file__).parents[2] / "docs" / "explanation" / "architecture.md"
CLIENTS: Final = ("/hookmq_testing/client.py", "/hookmq_testing/wire.py")
"""Files of the client's side, which are not part of the path."""
STARTS: Final = ("PacketReader.feed", "WriteScheduler.end_turn")

pytestmark = pytest.mark.skipif(hookmq.BUILD.kind != "pure", reason="compiled calls leave no trace")


class Trace:
    """The functions of `hookmq` that one PUBLISH calls, in order, as (file, name)."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self._inside: list[bool | None] = []
        """For each frame: whether it is on the way, None below what is not."""

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            self._inside.append(self._enter(frame.f_code.co_filename, frame.f_code.co_qualname))
        elif event == "return" and self._inside:
            self._inside.pop()

    def _enter(self, path: str, name: str) -> bool | None:
        above = self._inside[-1] if self._inside else False
        if above is None:
            return None
        if not path.startswith(ROOT):
            return None if above and path.endswith(CLIENTS) else above
        if not above and not name.endswith(STARTS):
            return None
        if name == "PacketReader.feed" and self.calls:
            return None  # the receiver's acknowledgement is another packet
        if not name.endswith(">"):  # a comprehension is no call of its own in newer Pythons
            self.calls.append((path.removeprefix(ROOT), name))
        return True

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.calls}

    @property
    def returns(self) -> int:
        """Return how often the path enters a broker file that it had left."""
        broker = [file for file, _ in self.calls if file.startswith("broker/")]
        moves = [file for at, file in enumerate(broker) if at == 0 or broker[at - 1] != file]
        return len(moves) - len(set(moves))

    def __str__(self) -> str:
        return "\n".join(f"{file} {name}" for file, name in self.calls)


def publish(harness: Harness, client: MemoryClient, number: int) -> Trace:
    """Trace a QoS 1 PUBLISH with this packet id to ``a/b``, to the end of the turns that it causes."""
    packet = b"\x32\x09\x00\x03a/b" + number.to_bytes(2, "big") + b"\0x"
    connection = client.wire.connection
    assert connection is not None
    trace = Trace()
    sys.setprofile(trace)
    try:
        connection.feed(packet)
        harness.clock.run_until_idle()
    finally:
        sys.setprofile(None)
    return trace


@pytest.fixture
def harnesses() -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(**options: Any) -> Harness:
        made.append(Harness(**options))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


def check(trace: Trace, calls: int, files: int, returns: int) -> None:
    assert trace.calls, "nothing was traced"
    assert len(trace.calls) <= calls, str(trace)
    assert len(trace.files) <= files, "\n".join(sorted(trace.files))
    assert trace.returns <= returns, str(trace)


def test_the_first_of_its_topic_to_a_clean_session(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    subscriber = harness.connect("subscriber")
    subscriber.subscribe("a/b", qos=1)
    trace = publish(harness, harness.connect("publisher"), 1)
    assert subscriber.expect_message("a/b").payload == b"x"
    check(trace, calls=50, files=14, returns=3)
    told = re.findall(r"^\|[^|]*\| `([a-z_/]+\.py)` \|", PAGE.read_text(), re.MULTILINE)
    assert told == list(dict.fromkeys(file for file, _ in trace.calls))
    lookups = [name for _, name in trace.calls if name == "SubscriptionTree.lookup"]
    assert len(lookups) == 1


def test_a_durable_session_that_is_offline(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses(store=DurableStore())
    subscriber = harness.connect("subscriber", session_expiry_interval=3600)
    subscriber.subscribe("a/b", qos=1)
    subscriber.drop()
    harness.clock.run_until_idle()
    publisher = harness.connect("publisher")
    trace = publish(harness, publisher, 1)
    assert publisher.expect(Puback).packet_id == 1
    check(trace, calls=60, files=18, returns=5)
    lookups = [name for _, name in trace.calls if name == "SubscriptionTree.lookup"]
    assert len(lookups) == 1


def test_the_fast_path(harnesses: Callable[..., Harness]) -> None:
    harness = harnesses()
    subscriber = harness.connect("subscriber")
    subscriber.subscribe("a/b", qos=1)
    publisher = harness.connect("publisher")
    for number in range(1, 6):
        publish(harness, publisher, number)
    trace = publish(harness, publisher, 6)
    check(trace, calls=11, files=4, returns=1)
