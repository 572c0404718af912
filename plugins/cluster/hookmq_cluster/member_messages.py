"""The messages that the nodes of a cluster send each other, to one node or to all. They may be lost.

A `Link` has its own messages, for which it uses `transmit`.
"""

from collections.abc import Callable, Collection
from typing import Final

from hookmq.plugin import Runtime, StoreError

from hookmq_cluster.engine import Engine
from hookmq_cluster.membership import Member
from hookmq_cluster.names import Names
from hookmq_cluster.waiting import pause
from hookmq_cluster.wire_messages import (
    Hello,
    Leaving,
    WireMessage,
    WireReader,
    encode,
)

_NAMESAKE: Final = 1.0
"""Seconds for which a starting node waits for another process with its name to answer."""
Receive = Callable[[str, str, WireMessage], None]
"""Gets the name of a node, its boot, and its message."""


class MemberMessages:
    """Sends and receives the messages of the node `me`, and notes which other nodes stop."""

    def __init__(self, engine: Engine, names: Names, runtime: Runtime, me: Member) -> None:
        self.me = me
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self._reader = WireReader(runtime)
        self._receive: Receive
        self._ends: list[Callable[[], None]] = []
        self._stopping: set[str] = set()
        """The boots of nodes that stop or are drained, and that take no lanes."""
        self._unaware: set[str] = set()
        """Nodes that may not have heard yet that this one takes lanes again."""
        self._namesake: str | None = None
        """The address of another process with this node's name, while the node asks for one."""

    @property
    def is_open(self) -> bool:
        """Whether messages arrive."""
        return bool(self._ends)

    def open(self, receive: Receive) -> None:
        """Pass the messages of other nodes to `receive` from now on."""
        self._receive = receive
        for subject in (self._names.everyone, self._names.node(self.me.node)):
            self._ends.append(self._engine.listen(subject, self._received))

    def close(self) -> None:
        """Receive no more messages."""
        for end in self._ends:
            end()
        self._ends.clear()

    async def refuse_namesake(self, cluster: str) -> None:
        """Raise StoreError if another process is this node of `cluster`."""
        self._namesake = ""
        self.send(self.me.node, Hello("", True))
        await pause(self._runtime, _NAMESAKE)
        found, self._namesake = self._namesake, None
        if found:
            raise StoreError(
                f"another process is already node {self.me.node!r} of cluster {cluster!r}, at {found}: give each node "
                "its own name"
            )

    def send(self, node: str, message: WireMessage) -> None:
        """Send a message to one node."""
        self.transmit(node, encode(self.me.node, self.me.boot, message))

    def send_all(self, message: WireMessage) -> None:
        """Send a message to all nodes."""
        self._engine.send(self._names.everyone, encode(self.me.node, self.me.boot, message))

    def transmit(self, node: str, data: bytes) -> None:
        """Send an encoded message to one node."""
        self._engine.send(self._names.node(node), data)

    def stop(self) -> None:
        """Tell all nodes that this one takes no lanes from now on."""
        self._unaware.clear()
        self.send_all(Leaving())

    def resume(self, nodes: Collection[str]) -> None:
        """Tell all `nodes`, which are alive, that this one takes lanes again."""
        self._unaware.update(nodes)
        self.send_all(Hello(self.me.address, True))

    def look(self, nodes: Collection[str]) -> None:
        """Tell those of the live `nodes` again that have not answered. Call this regularly."""
        self._unaware.intersection_update(nodes)
        for node in self._unaware:
            self.send(node, Hello(self.me.address, True))

    def is_stopping(self, member: Member) -> bool:
        """Return whether a live node takes no lanes, because it stops or is drained."""
        return member.boot in self._stopping

    def forget(self, member: Member) -> None:
        """A node has left."""
        self._stopping.discard(member.boot)

    def _received(self, subject: str, data: bytes) -> None:
        received = self._reader.read(subject, data)
        if received is None or received.boot == self.me.boot:
            return
        node, boot, message = received
        if node == self.me.node:
            self._meet_namesake(message)
            return
        if isinstance(message, Hello):
            self._stopping.discard(boot)
            self._unaware.discard(node)
        elif isinstance(message, Leaving):
            self._stopping.add(boot)
        self._receive(node, boot, message)

    def _meet_namesake(self, message: WireMessage) -> None:
        if not isinstance(message, Hello):
            return
        if message.answer:
            self.send(self.me.node, Hello(self.me.address or "an unknown address", False))
        elif self._namesake is not None:
            self._namesake = message.address
