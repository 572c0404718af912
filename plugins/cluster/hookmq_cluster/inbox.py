"""Delivers the messages of other nodes: those in the logs of this node's lanes, and those sent to the node itself.

Messages in a lane are for its durable sessions with QoS 1 or 2 subscriptions. They are delivered in the same turn in
which the store notes their sequence, so that the next commit contains both. Messages sent to the node are for all other
sessions.
"""

from collections import deque
from collections.abc import Callable, Collection, Container, Sequence
from functools import partial
from typing import Final, Protocol

from hookmq.cluster_api import Node, Wanted
from hookmq.plugin import Message, Runtime

from hookmq_cluster.engine import Engine, Stored
from hookmq_cluster.frames import (
    FrameError,
    Frames,
    MessageItem,
    Origin,
    OwnerFrame,
    PeerFrame,
    owner_mark,
)
from hookmq_cluster.links import Links
from hookmq_cluster.names import Names

SLICE: Final = 1000
"""Messages of lanes to deliver in one turn."""
BACKLOG: Final = 16 * 1024 * 1024
"""Bytes of a lane that may wait for delivery. Reading pauses above it."""


_OWNER_KIND: Final = b"\x01"
"""The third byte of an owner's frame. Its records are this node's own, so they are not decoded here."""


class LaneStore(Protocol):
    """What the inbox needs from the store."""

    def lane_of(self, client_id: str) -> str | None:
        """Return the lane of a durable session."""

    def received(self, lane: str, sequence: int, size: int = 0) -> None:
        """Note in the next commit of `lane` that its frames up to `sequence` are delivered. They have `size` bytes."""

    def passed(self, lane: str, sequence: int) -> None:
        """Note that the own frame at `sequence` was read, and that all frames of other nodes before it are delivered."""


class _Lane:
    """The reader of one lane."""

    __slots__ = ("backlog", "fence", "frames", "last", "name", "size", "stop", "waiting", "wanted")

    def __init__(self, name: str, fence: int, wanted: Wanted) -> None:
        self.name = name
        self.fence = fence
        self.wanted = wanted
        self.frames = Frames()
        self.waiting: deque[Stored] = deque()
        self.backlog = 0
        self.last = 0
        """The last sequence that was read from the log."""
        self.size = 0
        """Bytes of frames of other nodes since the store was last notified."""
        self.stop: Callable[[], None] | None = None


class _Writer:
    """A process of another node that sends frames to this one."""

    __slots__ = ("boot", "fence", "frames")

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.fence = -1
        """The newest fence of this node's lanes that the process has reported; -1 if there was none."""
        # A link that ends between two parts of a frame goes on with another frame if the node returns.
        self.frames = Frames(lossy=True)


class Inbox:
    """Receives messages for this node. `invalid` counts frames that cannot be read; they are skipped.

    `moving` contains clients whose subscriptions other nodes may still take for those of a volatile session.
    """

    def __init__(
        self,
        engine: Engine,
        names: Names,
        runtime: Runtime,
        node: str,
        boot: str,
        store: LaneStore,
        links: Links,
        moving: set[str],
    ) -> None:
        self.invalid = 0
        self.members: Container[str] = ()
        """The owners of the queues of all shared subscriptions with a member here."""
        self.hand_on: Callable[[str, Message], bool] = _nowhere
        """Sends a message of a shared subscription to another node; see `Forwarding.hand_on`."""
        self._engine = engine
        self._names = names
        self._runtime = runtime
        self._store = store
        self._moving = moving
        self._mark = owner_mark(node, boot)
        self._node: Node | None = None
        self._lanes: dict[str, _Lane] = {}
        self._newest = -1
        """The newest fence of the lanes here; -1 if there is none."""
        self._writers: dict[str, _Writer] = {}
        """The processes of the other nodes."""
        self._ready: deque[_Lane] = deque()
        """Lanes with frames to deliver."""
        self._scheduled = False
        links.framed = self._receive

    def attach(self, node: Node) -> None:
        """Deliver to `node`."""
        self._node = node

    # --- lanes -------------------------------------------------------------------------------------------------------

    def open_lane(
        self, lane: str, fence: int, after: int, frames: Sequence[Stored] = (), last: int = 0
    ) -> None:
        """Deliver the frames of a lane that this process owns since the sequence `fence`, if their sequences are above
        `after`, which is the inbox sequence of its state.

        `frames` are those up to the sequence `last` that were read already. They are delivered in this turn.
        """
        self.close_lane(lane)
        reader = self._lanes[lane] = _Lane(lane, fence, partial(self._in_lane, lane))
        self._look_for_newest()
        for stored in frames:
            if self._lanes.get(lane) is reader:
                self._deliver_stored(reader, stored)
        if self._lanes.get(lane) is reader:
            reader.last = max(after, last)
            self._follow(reader)

    def deliver(self, lane: str, items: Sequence[MessageItem]) -> None:
        """Deliver messages of this node that were meant for the log of an own lane."""
        if items:
            frame = PeerFrame(Origin("", "", 0), tuple(items))
            self._deliver(frame, partial(self._in_lane, lane), f"own messages for lane {lane}")
            if self._node is not None:
                self._node.flush()

    def close_lane(self, lane: str) -> None:
        """Stop delivering the frames of a lane."""
        reader = self._lanes.pop(lane, None)
        if reader is not None:
            reader.waiting.clear()
            if reader.stop is not None:
                reader.stop()
                reader.stop = None
            self._look_for_newest()

    def _look_for_newest(self) -> None:
        self._newest = max((reader.fence for reader in self._lanes.values()), default=-1)

    def position(self, lane: str) -> int:
        """Return the sequence up to which all frames of `lane` are delivered."""
        reader = self._lanes.get(lane)
        if reader is None:
            return 0
        return reader.waiting[0].sequence - 1 if reader.waiting else reader.last

    @property
    def backlog(self) -> int:
        """Bytes of all lanes that were read and not delivered yet."""
        return sum(reader.backlog for reader in self._lanes.values())

    @property
    def lag(self) -> float:
        """Age of the oldest message that waits for delivery, in seconds."""
        now = self._runtime.time()
        waiting = [reader.waiting[0].time for reader in self._lanes.values() if reader.waiting]
        return max(0.0, now - min(waiting, default=now))

    def waiting(self, lane: str) -> bool:
        """Return whether frames of `lane` were read and not delivered yet."""
        reader = self._lanes.get(lane)
        return reader is not None and bool(reader.waiting)

    def _follow(self, reader: _Lane) -> None:
        reader.stop = self._engine.follow(
            [self._names.lane(reader.name)], reader.last, partial(self._stored, reader)
        )

    def _stored(self, reader: _Lane, stored: Stored) -> None:
        if self._lanes.get(reader.name) is not reader or stored.sequence <= reader.last:
            return
        if stored.data[2:3] == _OWNER_KIND and not reader.waiting:
            reader.last = stored.sequence
            self._pass(reader, stored)
            return
        if reader.backlog >= BACKLOG:
            # Read it again later.
            if reader.stop is not None:
                reader.stop()
                reader.stop = None
            return
        reader.last = stored.sequence
        if not reader.waiting:
            self._ready.append(reader)
        reader.waiting.append(stored)
        reader.backlog += len(stored.data)
        if not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._work)

    def _work(self) -> None:
        """Deliver a slice of the waiting frames."""
        self._scheduled = False
        count = 0
        while self._ready and count < SLICE:
            reader = self._ready[0]
            while reader.waiting and count < SLICE:
                stored = reader.waiting.popleft()
                reader.backlog -= len(stored.data)
                count += 1 + self._deliver_stored(reader, stored)
            if not reader.waiting:
                self._ready.popleft()
                reader.backlog = 0
                if reader.stop is None and self._lanes.get(reader.name) is reader:
                    self._follow(reader)
        if count and self._node is not None:
            self._node.flush()
        if self._ready and not self._scheduled:
            self._scheduled = True
            self._runtime.call_soon(self._work)

    def _deliver_stored(self, reader: _Lane, stored: Stored) -> int:
        """Deliver one frame, or the frame that this part completes. Return the number of messages."""
        if stored.data[2:3] == _OWNER_KIND:
            self._pass(reader, stored)
            return 0
        reader.size += len(stored.data)
        try:
            frame = reader.frames.read(stored.data)
        except FrameError as error:
            self._skip(reader, stored, error)
            self._received(reader, stored)
            return 0
        if not isinstance(frame, PeerFrame):
            return 0
        self._deliver(frame, reader.wanted, f"{stored.subject} {stored.sequence}")
        self._received(reader, stored)
        if self._node is not None:
            self._node.touch()
        return len(frame.items)

    def _pass(self, reader: _Lane, stored: Stored) -> None:
        """Pass an owner's frame. Stop reading if another process has written it, and owns the lane therefore: its clients
        there may have got newer messages than those that follow in the log."""
        if stored.sequence > reader.fence and not stored.data.startswith(self._mark, 1):
            self.close_lane(reader.name)
        else:
            self._store.passed(reader.name, stored.sequence)

    def _received(self, reader: _Lane, stored: Stored) -> None:
        size, reader.size = reader.size, 0
        self._store.received(reader.name, stored.sequence, size)

    def _skip(self, reader: _Lane, stored: Stored, error: FrameError) -> None:
        self.invalid += 1
        self._runtime.log(
            "error", "cluster.frame_invalid", subject=stored.subject, sequence=stored.sequence,
            reason=str(error),
        )  # fmt: skip

    def _in_lane(self, lane: str, client_id: str, durable: bool, qos: int) -> bool:
        """Return whether a session receives the messages in `lane`."""
        return durable and qos > 0 and self._store.lane_of(client_id) == lane

    # --- nodes -------------------------------------------------------------------------------------------------------

    def _receive(self, node: str, boot: str, content: bytes) -> None:
        """Deliver a part of a frame that another node has sent to this one."""
        writer = self._writers.get(node)
        if writer is None or writer.boot != boot:
            writer = self._writers[node] = _Writer(boot)
        try:
            frame = writer.frames.read(content)
        except FrameError as error:
            self.invalid += 1
            self._runtime.log(
                "error", "cluster.frame_invalid", node=node, boot=boot, reason=str(error)
            )
            return
        if isinstance(frame, OwnerFrame):
            # See `hookmq_cluster.frames.encode_fence`.
            writer.fence = max(writer.fence, frame.inbox)
            return
        if frame is None:
            return
        late = -1 < writer.fence < self._newest
        chosen = partial(self._was_here, writer.fence) if late else None
        self._deliver(frame, None, f"frame {frame.origin.number} of node {node}", chosen)
        if self._node is not None:
            self._node.flush()

    def _not_in_lane(self, client_id: str, durable: bool, qos: int) -> bool:
        """Return whether a session receives the messages with QoS 1 or 2 that are sent to the node."""
        return not durable or not qos or client_id in self._moving

    def _was_here(self, fence: int, client_id: str, durable: bool, qos: int) -> bool:
        """Return whether a session's lane has a fence up to `fence`. A node that knew no newer one has sent its messages
        for the session to another owner of the lane, if there was one."""
        lane = self._lanes.get(self._store.lane_of(client_id) or "") if durable else None
        return lane is None or lane.fence <= fence

    def _not_in_lane_late(self, late: Wanted, client_id: str, durable: bool, qos: int) -> bool:
        """Return whether a session receives the messages with QoS 1 or 2 that are sent to the node. Subscriptions with
        QoS 0 get them as they get messages with QoS 0."""
        chosen = self._not_in_lane(client_id, durable, qos)
        return chosen and (qos > 0 or late(client_id, durable, qos))

    def _deliver(
        self, frame: PeerFrame, wanted: Wanted | None, place: str, late: Wanted | None = None
    ) -> None:
        """Deliver the messages of a frame to sessions that are `wanted`. Without `wanted`, the frame was sent to the
        node. Messages with QoS 0 are then for all sessions, unless `late` chooses them. A message that cannot be
        delivered is logged and skipped."""
        node = self._node
        if node is None:
            return
        for item in frame.items:
            try:
                if isinstance(item, MessageItem):
                    groups = self._staying(item.message, item.groups) if item.groups else ()
                    node.deliver(item.message, self._chosen(item, wanted, late), groups)
                elif wanted is None:
                    sender, five, _, data = item
                    node.deliver_packets(sender, five, data, late)
                else:
                    raise FrameError("packets in a lane")
            except Exception as error:
                self.invalid += 1
                topic = item.message.topic if isinstance(item, MessageItem) else None
                self._runtime.log(
                    "error", "cluster.delivery_failed", place=place, topic=topic, traceback=error
                )

    def _chosen(self, item: MessageItem, wanted: Wanted | None, late: Wanted | None) -> Wanted:
        """Return which sessions receive a message."""
        if not item.sessions:
            return nobody
        if wanted is not None:
            return wanted
        if not item.message.qos:
            return late or _everybody
        return self._not_in_lane if late is None else partial(self._not_in_lane_late, late)

    def _staying(self, message: Message, groups: Collection[str]) -> list[str]:
        """Return the shared subscriptions that receive `message` here. If the last member here has left since the message
        was sent, it goes on to another node that has one."""
        staying = [
            owner for owner in groups if owner in self.members or not self.hand_on(owner, message)
        ]
        if len(staying) < len(groups) and self._node is not None:
            self._node.touch()
        return staying


def _nowhere(owner: str, message: Message) -> bool:
    """Send a message nowhere."""
    return False


def _everybody(client_id: str, durable: bool, qos: int) -> bool:
    """Choose every session."""
    return True


def nobody(client_id: str, durable: bool, qos: int) -> bool:
    """Choose no session."""
    return False
