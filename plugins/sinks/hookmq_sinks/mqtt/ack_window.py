"""The packets that the remote broker has not acknowledged yet, and the reason codes of those that it refused."""

import asyncio
from collections.abc import Iterable
from typing import Any, NamedTuple

from hookmq.mqtt_api import Puback, Pubcomp, Pubrec, Pubrel

from hookmq_sinks.driver import TargetUnavailable
from hookmq_sinks.mqtt.acks import expected_acks
from hookmq_sinks.mqtt.in_flight import packet_id
from hookmq_sinks.mqtt.link import MqttLink
from hookmq_sinks.mqtt.reasons import code_text


class OutPacket(NamedTuple):
    """An encoded PUBLISH. `place` is the record's index in its batch."""

    place: int
    offset: int
    id: int
    qos: int
    data: bytes


class AckWindow:
    """Counts the unacknowledged packets of one connection, which is set as `link`.

    The acknowledgements of consecutive QoS 1 packets usually arrive in order and without a reason code. The link then
    compares them as bytes. After any other acknowledgement, each one is handled by its packet id.
    """

    def __init__(self) -> None:
        self.link: MqttLink | None = None
        self.waiting: dict[int, OutPacket] = {}
        """Packets that wait for PUBACK or PUBREC, by packet id."""
        self.releasing: set[int] = set()
        """The packet ids of PUBRELs that wait for PUBCOMP."""
        self.codes: dict[int, int] = {}
        """The reason codes of refused packets, by the record's index in the batch."""
        self._end = self._place = 0
        """The offset, and the index in the batch, after the last packet whose acknowledgement the link expects."""
        self._moved = asyncio.Event()
        self._enough = 0

    @property
    def count(self) -> int:
        """The number of unacknowledged packets."""
        expected = 0 if self.link is None else self.link.missing_count
        return expected + len(self.waiting) + len(self.releasing)

    def wake(self) -> None:
        """Make `until` check again whether the connection is lost."""
        self._moved.set()

    def expect(self, offset: int, place: int, count: int) -> None:
        """Expect the PUBACKs of `count` records that begin at `offset`, and at the index `place` of the batch. If others
        are still expected, the records must follow theirs.
        """
        link = self.link
        assert link is not None
        self._end, self._place = offset + count, place + count
        link.expect(link.missing + expected_acks(offset, count), self._check)

    def take(self, packet: Any) -> None:
        """Handle an acknowledgement from the remote broker."""
        if isinstance(packet, Puback | Pubrec):
            self._expect_each()
            sent = self.waiting.get(packet.packet_id)
            if sent is None or (sent.qos == 2) is not isinstance(packet, Pubrec):
                if isinstance(packet, Pubrec) and packet.code < 0x80 and self.link is not None:
                    self.link.send(Pubrel(packet.packet_id, 0x92 if self.link.version == 5 else 0))
                return
            if packet.code >= 0x80:
                self.codes[sent.place] = packet.code
            del self.waiting[packet.packet_id]
        elif isinstance(packet, Pubcomp):
            self.releasing.discard(packet.packet_id)
        else:
            return
        self._check()

    def _check(self) -> None:
        if self.count <= self._enough:
            self._moved.set()

    def _expect_each(self) -> None:
        """Wait for each expected acknowledgement by its packet id."""
        link = self.link
        if link is None or not (count := link.missing_count):
            return
        link.expect(b"", self._check)
        for back in range(count, 0, -1):
            offset = self._end - back
            number = packet_id(offset)
            self.waiting[number] = OutPacket(self._place - back, offset, number, 1, b"")

    async def until(self, left: int) -> None:
        """Wait until at most `left` packets are unacknowledged. Raises TargetUnavailable if the connection is lost."""
        link = self.link
        assert link is not None
        while self.count > left:
            if link.lost.done():
                break
            self._enough = left
            self._moved.clear()
            await self._moved.wait()
        require(link)

    def refusals(self, refused: Iterable[int]) -> dict[int, str]:
        """Forget the reason codes. Return the reasons for records that the remote broker will never accept, by index.

        Raises TargetUnavailable if a code is not one of `refused`.
        """
        codes, self.codes = self.codes, {}
        for code in codes.values():
            if code not in refused:
                raise TargetUnavailable(f"the remote broker refused a message: {code_text(code)}")
        return {
            index: f"the remote broker refused it: {code_text(code)}"
            for index, code in codes.items()
        }


def require(link: MqttLink) -> None:
    """Raise TargetUnavailable if the connection is lost."""
    if link.lost.done():
        error = link.lost.result()
        raise TargetUnavailable(error.reason, error.permanent)


__all__ = ["AckWindow", "OutPacket", "require"]
