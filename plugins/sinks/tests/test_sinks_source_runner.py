"""Test how a source's process handles reason codes. A test double replaces the broker and replies with given codes."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bridging import source
from hookmq.plugin import ReasonCode
from hookmq_sinks.dead_letters import read_dead_letters
from hookmq_sinks.source import Incoming
from hookmq_sinks.source_runner import SourceRunner
from hookmq_sinks.source_wire import decode_messages

FULL = ReasonCode.QUOTA_EXCEEDED


class Broker:
    """Replies to each request with the next of its codes, and with 0 once none are left."""

    def __init__(self, *codes: Sequence[int], reasons: dict[str, str] | None = None) -> None:
        self.codes = list(codes)
        self.reasons = reasons or {}
        self.asked: list[list[bytes]] = []
        self.told: list[dict[str, Any]] = []
        self.paused = False

    async def ask(self, frame: bytes) -> dict[str, Any]:
        size, _ = struct.unpack_from("<IB", frame)
        payloads = [one[1] for one in decode_messages(frame[5 : 5 + size])]
        self.asked.append(payloads)
        codes = self.codes.pop(0) if self.codes else [0] * len(payloads)
        return {"codes": codes, "reasons": self.reasons}

    def tell(self, **what: Any) -> None:
        self.told.append(what)


async def hand_over(
    folder: Path, broker: Broker, messages: Sequence[Incoming], **more: Any
) -> tuple[list[int], SourceRunner]:
    given = {"source": {**source(1), **more}, "folder": str(folder), "marks": {}, "paused": False}
    runner = SourceRunner(given, broker)  # type: ignore[arg-type]
    runner.letters.open()
    return await runner._hand_over(messages), runner


async def test_a_message_is_tried_again_until_it_is_taken(tmp_path: Path) -> None:
    broker = Broker([0, FULL, 0], [FULL])
    messages = [Incoming("t", b"%d" % at, 1, mark=(str(at), "1")) for at in range(3)]
    codes, runner = await hand_over(tmp_path, broker, messages)
    assert codes == [0, 0, 0]
    assert broker.asked == [[b"0", b"1", b"2"], [b"1"], [b"1"]]
    assert runner.marks == {"0": "1", "1": "1", "2": "1"}
    assert runner.status()["delayed"] == 2
    assert not list(read_dead_letters(tmp_path))


async def test_a_refused_message_is_a_dead_letter_with_the_reason(tmp_path: Path) -> None:
    broker = Broker([0x87, 0, 0x90], reasons={"2": "too many levels"})
    messages = [Incoming("t", b"%d" % at, 1, mark=(str(at), "1")) for at in range(3)]
    codes, runner = await hand_over(tmp_path, broker, messages)
    assert codes == [0x87, 0, 0x90]
    found = {one.record.payload: one.reason for one in read_dead_letters(tmp_path)}
    assert "not authorized (0x87)" in found[b"0"]
    assert found[b"2"] == "too many levels"
    assert runner.marks == {"1": "1"}


async def test_a_problem_is_not_published(tmp_path: Path) -> None:
    broker = Broker()
    messages = [Incoming("+", b"0", problem="no topic"), Incoming("t", b"1"), Incoming("t\0", b"2")]
    codes, runner = await hand_over(tmp_path, broker, messages)
    assert (codes, broker.asked) == ([0x99, 0, 0x99], [[b"1"]])
    found = [one.reason for one in read_dead_letters(tmp_path)]
    assert found[0] == "no topic"
    assert "U+0000" in found[1]
    assert runner.status()["refused"] == 2
    (told,) = broker.told
    assert told["log"][1] == "sources.messages_refused"


async def test_refused_messages_can_be_skipped(tmp_path: Path) -> None:
    messages = [Incoming("+", b"0", problem="no topic"), Incoming("t", b"1")]
    _, runner = await hand_over(tmp_path, Broker(), messages, on_refused="skip")
    assert (runner.status()["skipped"], list(read_dead_letters(tmp_path))) == (1, [])


async def test_a_message_with_an_answer_is_neither_repeated_nor_kept(tmp_path: Path) -> None:
    broker = Broker([FULL, 0x87])
    messages = [Incoming("t", b"0", answered=True), Incoming("t", b"1", answered=True)]
    codes, _ = await hand_over(tmp_path, broker, messages)
    assert codes == [FULL, 0x87]
    assert len(broker.asked) == 1
    assert not list(read_dead_letters(tmp_path))
