"""Ordered and reliable packets between this node and each other live node, on top of messages that may be lost.

The nodes number their packets from 1 and acknowledge them cumulatively. A reader opens a link with `Open` as soon as it
considers the other node alive. Until then, it ignores that node's packets. A node that leaves and returns gets a new
reader, and the sender then announces everything again. Frames with messages continue where the reader before had stopped,
so that each frame arrives once.
"""

from collections.abc import Callable, Collection
from typing import Final

from hookmq.plugin import Runtime, Timer

from hookmq_cluster.link import RESEND, Feed, Link
from hookmq_cluster.wire_messages import (
    ANNOUNCEMENT,
    Ack,
    Open,
    Packet,
    Reopen,
    WireMessage,
    encode,
)

BUFFER: Final = 64 * 1024 * 1024
"""Bytes of frames at which a link is full."""
_ACK_DELAY: Final = 0.02
"""Seconds that the acknowledgement of packets that are not urgent may wait."""


class _Reader:
    """Receives the packets of one boot of another node."""

    __slots__ = ("asked", "boot", "node", "number", "opened", "previous", "reader", "timer")

    def __init__(self, node: str, boot: str, reader: int, previous: tuple[int, int]) -> None:
        self.node = node
        self.boot = boot
        self.reader = reader
        self.previous = previous
        """The reader before, and the last packet that it received."""
        self.opened = False
        """Whether a packet has arrived."""
        self.number = 0
        """The last packet received, without gaps before it."""
        self.asked = 0
        """The packet that was missing when the sender was last asked for one."""
        self.timer: Timer | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The reader that received the last packet, and the packet's number."""
        return (self.reader, self.number) if self.opened else self.previous

    def stop(self) -> None:
        """Do not ask for packets any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Links:
    """The links to and from all other live nodes.

    - `transmit`: sends bytes to a node.
    - `announced`, `framed`: called with the node, its boot and the content of each packet, in order. They must not raise.
    - `ignored` counts packets of nodes that are not alive, or that are for another boot.
    """

    def __init__(
        self,
        runtime: Runtime,
        node: str,
        boot: str,
        transmit: Callable[[str, bytes], None],
        buffer: int = BUFFER,
    ) -> None:
        self.runtime = runtime
        self.ignored = 0
        self.announced: Callable[[str, str, bytes], None] = _nothing
        self.framed: Callable[[str, str, bytes], None] = _nothing
        self._node = node
        self._boot = boot
        self._transmit = transmit
        self._buffer = buffer
        self._links: dict[str, Link] = {}
        self._readers: dict[str, _Reader] = {}
        self._ended: dict[str, tuple[str, tuple[int, int], int]] = {}
        """For nodes that have left: the boot, the place of the reader here, and the last reader there."""
        self._last_reader = 0
        self._acks: dict[str, _Reader] = {}
        """Readers that acknowledge at the end of the turn."""
        self._later: dict[str, _Reader] = {}
        """Readers that acknowledge after a delay."""

    def open(self, node: str, boot: str, feed: Feed) -> Link:
        """Open links to and from a node that has joined."""
        self.close(node)
        before, place, reader = self._ended.pop(node, ("", (0, 0), 0))
        known = before == boot
        link = self._links[node] = Link(
            self.runtime, self.send, node, boot, feed, self._buffer, reader if known else 0
        )
        self._open(node, boot, place if known else (0, 0), reopen=known)
        return link

    def _open(self, node: str, boot: str, place: tuple[int, int], reopen: bool) -> None:
        """Open a new reader, which continues at `place`. If `reopen`, ask the node for a new one too."""
        self._acks.pop(node, None)
        self._later.pop(node, None)
        before = self._readers.get(node)
        if before is not None:
            before.stop()
        self._last_reader += 1
        reader = self._readers[node] = _Reader(node, boot, self._last_reader, place)
        self._ask(reader, reopen)

    def close(self, node: str) -> None:
        """Forget the links of a node that has left."""
        link = self._links.pop(node, None)
        reader = self._readers.pop(node, None)
        self._acks.pop(node, None)
        self._later.pop(node, None)
        if reader is not None:
            reader.stop()
        if link is not None:
            if reader is not None:
                self._ended[node] = (reader.boot, reader.place, link.reader)
            link.close()

    def link(self, node: str) -> Link | None:
        """Return the link to a live node, or None."""
        return self._links.get(node)

    def links(self) -> Collection[Link]:
        """Return the links to all live nodes."""
        return self._links.values()

    def pump(self) -> None:
        """Send new announcements."""
        for link in self._links.values():
            link.pump()

    def reopen(self) -> None:
        """Ask all nodes to open their readers again, because they may have forgotten this node."""
        for link in self._links.values():
            link.suspend()
        for reader in self._readers.values():
            reader.stop()
            self._ask(reader, reopen=True)

    def reconnected(self) -> None:
        """Repeat what may have been lost while the engine was disconnected."""
        for reader in self._readers.values():
            reader.stop()
            self._ask(reader, reopen=True)
        for link in self._links.values():
            link.resume()

    def send(self, node: str, message: WireMessage) -> None:
        """Send a message to `node`. It may be lost."""
        self._transmit(node, encode(self._node, self._boot, message))

    def receive(self, node: str, boot: str, message: Open | Reopen | Packet | Ack) -> None:
        """Handle a message that boot `boot` of `node` has sent to this node."""
        link = self._links.get(node)
        reader = self._readers.get(node)
        if message.to != self._boot or link is None or reader is None or reader.boot != boot:
            self.ignored += 1
        elif isinstance(message, Packet):
            self._packet(reader, message)
        elif isinstance(message, Open):
            link.open(message)
        elif isinstance(message, Reopen):
            self._open(node, boot, reader.place, reopen=False)
        else:
            link.acked(message)

    def _packet(self, reader: _Reader, packet: Packet) -> None:
        if packet.reader != reader.reader:
            self.ignored += 1
            return
        reader.opened = True
        expected = reader.number + 1
        urgent = packet.urgent
        if packet.number > expected:
            if reader.asked != expected:
                reader.asked = expected
                self.send(reader.node, Ack(reader.boot, reader.reader, reader.number, True))
            return
        if packet.number == expected:
            reader.number = expected
            receive = self.announced if packet.kind == ANNOUNCEMENT else self.framed
            receive(reader.node, reader.boot, packet.content)
        else:
            urgent = True
        if urgent:
            if not self._acks:
                self.runtime.call_soon(self._acknowledge)
            self._acks[reader.node] = reader
        elif reader.node not in self._acks:
            if not self._later:
                self.runtime.call_later(_ACK_DELAY, self._acknowledge_later)
            self._later[reader.node] = reader

    def _acknowledge(self) -> None:
        acks, self._acks = self._acks, {}
        for node, reader in acks.items():
            self._later.pop(node, None)
            self.send(node, Ack(reader.boot, reader.reader, reader.number, False))

    def _acknowledge_later(self) -> None:
        later, self._later = self._later, {}
        for node, reader in later.items():
            self.send(node, Ack(reader.boot, reader.reader, reader.number, False))

    def _ask(self, reader: _Reader, reopen: bool) -> None:
        """Send `Open` until the first packet arrives, and `Reopen` until the node opens a reader. The first time, send
        `Reopen` only if `reopen`."""
        link = self._links[reader.node]
        if not reader.opened:
            self.send(reader.node, Open(reader.boot, reader.reader, *reader.previous))
        if reopen and not link.opened:
            self.send(reader.node, Reopen(reader.boot))
        if reader.opened and link.opened:
            reader.timer = None
        else:
            reader.timer = self.runtime.call_later(RESEND, lambda: self._ask(reader, True))


def _nothing(node: str, boot: str, content: bytes) -> None:
    """Ignore a packet."""
