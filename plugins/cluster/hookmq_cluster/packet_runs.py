"""QoS 0 packets for another node, with their publishers. The broker's fast path collects them."""

from collections.abc import Callable
from typing import Final

from hookmq.cluster_api import RemotePackets

from hookmq_cluster.frames import PacketRun

FULL: Final = 128 * 1024
"""Bytes that wait for the end of the turn. If more of them wait, they are sent before the next publisher's packets."""


class PacketRuns:
    """Packets for one node. The fast path adds them to `collector`.

    `ready` is called with False if packets will wait, and with True to `take` them now.
    """

    __slots__ = ("_ready", "_size", "_starts", "collector")

    def __init__(self, ready: Callable[[bool], None]) -> None:
        self.collector = RemotePackets(self._begin)
        self._ready = ready
        self._size = 0
        """The bytes of all runs but the last one."""
        self._starts: list[tuple[int, str, bool]] = []
        """The index of the first packet of each run, its publisher, and whether the MQTT version is 5."""

    def _begin(self, sender: str, five: bool) -> None:
        if self._starts:
            self._size += sum(map(len, self.collector.packets[self._starts[-1][0] :]))
            if self._size > FULL:
                self._ready(True)
        if not self._starts:
            self._ready(False)
        self._starts.append((len(self.collector.packets), sender, five))

    def take(self) -> list[PacketRun]:
        """Return the packets since the last call, in order."""
        starts, self._starts = self._starts, []
        packets, self.collector.packets = self.collector.packets, []
        self.collector.sender = ""
        self._size = 0
        ends = [start for start, _, _ in starts[1:]]
        return [
            (sender, five, end - start, b"".join(packets[start:end]))
            for (start, sender, five), end in zip(starts, [*ends, len(packets)], strict=False)
        ]
