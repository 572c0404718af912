"""The frames in a lane's log, and between nodes: several records or messages in one msgpack value.

A frame has a header and a body: ``[version, kind, node, boot, number, part, parts, body]``. If a frame is larger than
one entry of the log, the body is split over several parts, which all have the header. The version covers the header, the
records and the messages. A node reads frames of its own version and of the one before, so that nodes can be upgraded one
after the other. Each node announces its version in its lease. Version 2 adds packets with QoS 0, and is written only for
nodes that read it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from hookmq.plugin import Message
from hookmq.storage_api import Record
from msgpack import Packer, Unpacker, unpackb  # type: ignore[import-untyped]

from hookmq_cluster.frame_error import FrameError
from hookmq_cluster.record_codec import (
    decode_client,
    decode_message,
    decode_records,
    encode_client,
    encode_message,
    encode_records,
)

__all__ = [
    "VERSION",
    "WITH_PACKETS",
    "FrameError",
    "Frames",
    "MessageItem",
    "Origin",
    "OwnerFrame",
    "PacketRun",
    "PeerFrame",
    "decode_client",
    "decode_message",
    "decode_value",
    "encode_client",
    "encode_fence",
    "encode_message",
    "encode_owner",
    "encode_peer",
    "encode_value",
    "is_incomplete",
    "is_owner_frame",
    "make_item",
    "owner_mark",
]

VERSION: Final = 2
"""The newest version of frames that this node reads."""
WITH_PACKETS: Final = 2
"""The version of frames with a `PacketRun`. Other frames have the version before, so that all nodes can read them."""
_OLDEST: Final = max(1, VERSION - 1)
MAX_PARTS: Final = 10_000
"""The largest number of parts of a frame."""
MAX_WRITERS: Final = 1000
"""The largest number of nodes with an incomplete frame that a reader keeps."""
_OWNER: Final = 1
_PEER: Final = 2

# Plugins may produce strings with surrogates, such as an identity from JSON. They must survive.
encode_value: Final[Callable[[object], bytes]] = Packer(unicode_errors="surrogatepass").pack
"""Encode a value of tuples, lists, strings, bytes and numbers. Raises ValueError or TypeError for other values."""


def decode_value(data: bytes) -> Any:
    """Return the value in `data`, with tuples instead of lists. Raises FrameError if it is not one msgpack value."""
    try:
        return unpackb(data, use_list=False, unicode_errors="surrogatepass")
    except Exception as error:  # msgpack raises many types
        raise FrameError(f"invalid msgpack: {error or type(error).__name__}") from error


def is_owner_frame(data: bytes) -> bool:
    """Return whether `data` is a part of an `OwnerFrame`, without decoding it. All else on the subject of a lane comes
    from other nodes."""
    return data[2:3] == b"\x01" and data[:1] == b"\x98"


def owner_mark(node: str, boot: str) -> bytes:
    """Return the bytes behind the first one with which each `OwnerFrame` of a process begins."""
    return encode_value((_OLDEST, _OWNER, node, boot))[1:]


def is_incomplete(data: bytes) -> bool:
    """Return whether `data` is a part of a frame that more parts must follow. Its body is not decoded."""
    unpacker = Unpacker(max_buffer_size=0)
    unpacker.feed(data)
    try:
        unpacker.read_array_header()
        for _ in range(5):
            unpacker.skip()
        part, parts = unpacker.unpack(), unpacker.unpack()
    except Exception as error:  # msgpack raises many types
        raise FrameError(f"invalid msgpack: {error or type(error).__name__}") from error
    return bool(part < parts - 1)


class Origin(NamedTuple):
    """The writer of a frame: its node and boot, and the number of its commit or frame."""

    node: str
    boot: str
    number: int


class OwnerFrame(NamedTuple):
    """What a lane's owner commits: records, and the sequence up to which it has delivered other nodes' frames."""

    origin: Origin
    inbox: int
    records: tuple[Record, ...]


class MessageItem(NamedTuple):
    """A message for another node: for shared subscriptions `groups`, and for sessions if `sessions` is true."""

    message: Message
    groups: tuple[str, ...]
    sessions: bool


# A message takes half a microsecond less without the constructor of a NamedTuple.
make_item: Final[Callable[[tuple[Message, tuple[str, ...], bool]], MessageItem]] = partial(
    tuple.__new__, MessageItem
)
"""Return the `MessageItem` with the fields in a tuple."""


PacketRun = tuple[str, bool, int, bytes]
"""QoS 0 packets of one publisher: its client id, whether it uses MQTT 5, the number of packets, and their bytes."""


class PeerFrame(NamedTuple):
    """Messages of a node for a lane, or for another node. Only the latter has packets."""

    origin: Origin
    items: tuple[MessageItem | PacketRun, ...]


def encode_owner(frame: OwnerFrame, max_bytes: int) -> list[bytes]:
    """Return the frame as one or more parts of at most `max_bytes`. Raises ValueError if `max_bytes` is smaller than a
    header, or if there were more than `MAX_PARTS`."""
    body = encode_value((frame.inbox, encode_records(frame.records)))
    return _parts(_OLDEST, _OWNER, frame.origin, body, max_bytes)


def encode_fence(origin: Origin, fence: int) -> bytes:
    """Return a frame for another node. It says that `origin` knows that node as the owner of a lane with this fence. The
    frames before may have been sent without that knowledge.

    `Frames` reads it as an `OwnerFrame` with the fence as its `inbox`. Only logs have other frames of that kind, so nodes
    of older versions ignore it.
    """
    return encode_owner(OwnerFrame(origin, fence, ()), 1 << 16)[0]


def encode_peer(frame: PeerFrame, max_bytes: int) -> list[bytes]:
    """Return the frame as parts, like `encode_owner`."""
    version = _OLDEST
    items: list[tuple[object, ...]] = []
    for item in frame.items:
        if isinstance(item, MessageItem):
            items.append((encode_message(item.message), item.groups, item.sessions))
        else:
            items.append(item)
            version = WITH_PACKETS
    return _parts(version, _PEER, frame.origin, encode_value(items), max_bytes)


def _parts(version: int, kind: int, origin: Origin, body: bytes, max_bytes: int) -> list[bytes]:
    node, boot, number = origin
    one = encode_value((version, kind, node, boot, number, 0, 1, body))
    if len(one) <= max_bytes:
        return [one]
    # The numbers of the parts take up to 2 bytes more than in `one`, each.
    room = max_bytes - (len(one) - len(body)) - 4
    if room <= 0:
        raise ValueError(f"a frame cannot have parts of {max_bytes} bytes")
    parts = -(-len(body) // room)
    if parts > MAX_PARTS:
        raise ValueError(f"a frame of {len(body)} bytes has more than {MAX_PARTS} parts")
    return [
        encode_value((version, kind, node, boot, number, part, parts, body[at : at + room]))
        for part, at in enumerate(range(0, len(body), room))
    ]


class _Partial:
    """The parts of a frame that have arrived."""

    __slots__ = ("chunks", "header")

    def __init__(self, header: tuple[Any, ...], chunk: bytes) -> None:
        self.header = header
        self.chunks = [chunk]


class Frames:
    """Reads the frames of one subject, and joins their parts.

    In the log, all parts of a frame are in one commit, so a missing part is an error. Set `lossy` for a subject without
    a log: frames with missing parts are then dropped, and counted in `lost`.
    """

    def __init__(self, lossy: bool = False) -> None:
        self.lost = 0
        self._lossy = lossy
        self._partial: dict[tuple[str, int], _Partial] = {}

    @property
    def incomplete(self) -> int:
        """The number of frames of which not all parts have arrived."""
        return len(self._partial)

    def read(self, data: bytes) -> OwnerFrame | PeerFrame | None:
        """Return the frame that `data` completes, or None if more parts must follow. Raises FrameError if `data` is
        damaged, or if a newer version wrote it."""
        value = decode_value(data)
        kind, node, boot, number, part, parts, body = _header(value)
        if parts > 1:
            joined = self._join((kind, node, boot, number, parts), part, body)
            if joined is None:
                return None
            body = joined
        elif self._partial and (node, kind) in self._partial:
            self._drop((node, kind))
        origin = Origin(node, boot, number)
        try:
            return _owner(origin, body) if kind == _OWNER else _peer(origin, body)
        except FrameError as error:
            raise FrameError(f"frame {number} of node {node!r}, boot {boot!r}: {error}") from error

    def _join(self, header: tuple[Any, ...], part: int, body: bytes) -> bytes | None:
        """Add a part. Return the whole body if it was the last one."""
        kind, node, boot, number, parts = header
        key = (node, kind)
        partial = self._partial.get(key)
        if part == 0:
            if partial is not None:
                self._drop(key)
            if len(self._partial) >= MAX_WRITERS:
                raise FrameError(f"more than {MAX_WRITERS} nodes have incomplete frames")
            self._partial[key] = _Partial(header, body)
            return None
        if partial is None or partial.header != header or len(partial.chunks) != part:
            if partial is not None:
                del self._partial[key]
            self.lost += 1
            if self._lossy:
                return None
            raise FrameError(
                f"frame {number} of node {node!r}, boot {boot!r}: part {part + 1} of {parts} does not follow the part "
                "before it"
            )
        partial.chunks.append(body)
        if part < parts - 1:
            return None
        del self._partial[key]
        return b"".join(partial.chunks)

    def _drop(self, key: tuple[str, int]) -> None:
        """Drop an incomplete frame, because its writer has begun another one."""
        partial = self._partial.pop(key)
        self.lost += 1
        if not self._lossy:
            _, node, boot, number, parts = partial.header
            raise FrameError(
                f"frame {number} of node {node!r}, boot {boot!r}: only {len(partial.chunks)} of {parts} parts"
            )


_ITEM: Final = "expected message, groups, sessions"
_RUN: Final = (str, bool, int, bytes)
_NAMES: Final = ("kind", "node", "boot", "number", "part", "parts", "body")
_TYPES: Final = (int, str, str, int, int, int, bytes)


def _header(value: Any) -> tuple[Any, ...]:
    """Check a header, and return it without the version."""
    if type(value) is not tuple or not value:
        raise FrameError("not a frame: expected an array")
    version = value[0]
    if type(version) is not int:
        raise FrameError("not a frame: expected a version")
    if not _OLDEST <= version <= VERSION:
        known = str(VERSION) if _OLDEST == VERSION else f"{_OLDEST} or {VERSION}"
        raise FrameError(f"unknown version {version} of a frame: expected {known}")
    header = value[1:]
    if tuple(map(type, header)) != _TYPES:
        if len(header) != len(_TYPES):
            raise FrameError(f"header: expected {len(_TYPES) + 1} fields, found {len(value)}")
        wrong = next(
            n for n, one, kind in zip(_NAMES, header, _TYPES, strict=True) if type(one) is not kind
        )
        raise FrameError(f"header: {wrong}: wrong type")
    kind, _, _, number, part, parts, _ = header
    if kind not in (_OWNER, _PEER):
        raise FrameError(f"header: unknown kind {kind}")
    if number < 0 or not 0 <= part < parts <= MAX_PARTS:
        raise FrameError(f"header: number {number}, part {part} of {parts}")
    return header


def _owner(origin: Origin, body: bytes) -> OwnerFrame:
    value = decode_value(body)
    if type(value) is not tuple or len(value) != 2 or type(value[0]) is not int or value[0] < 0:
        raise FrameError("expected an inbox sequence and records")
    return OwnerFrame(origin, value[0], decode_records(value[1]))


def _peer(origin: Origin, body: bytes) -> PeerFrame:
    value = decode_value(body)
    if type(value) is not tuple:
        raise FrameError("expected messages")
    items: list[MessageItem | PacketRun] = []
    try:
        for item in value:
            if type(item) is tuple and tuple(map(type, item)) == _RUN:
                items.append(item)
                continue
            if type(item) is not tuple or len(item) != 3:
                raise FrameError(_ITEM)
            fields, groups, sessions = item
            if type(groups) is not tuple or type(sessions) is not bool:
                raise FrameError(_ITEM)
            for group in groups:
                if type(group) is not str:
                    raise FrameError("a group is not a string")
            items.append(make_item((decode_message(fields), groups, sessions)))
    except FrameError as error:
        raise FrameError(f"message {len(items) + 1} of {len(value)}: {error}") from error
    return PeerFrame(origin, tuple(items))
