"""The messages between nodes that no log stores.

Each message is a msgpack array: version, kind, the sender's node name, the sender's boot, and the fields of the kind. The
boot identifies one life of a process. Some messages are for one boot of the receiver. A receiver with another boot
ignores them.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from hookmq.plugin import Runtime
from msgpack import Packer, unpackb  # type: ignore[import-untyped]

VERSION: Final = 1
"""The version of all messages that this node sends and understands."""
_QUIET: Final = 60.0
"""Seconds between two log events about messages that cannot be read."""
FRAME: Final = 1
"""The content of a `Packet`: a part of a frame with messages. See `hookmq_cluster.frames`."""
ANNOUNCEMENT: Final = 2
"""The content of a `Packet`: changes of subscriptions. See `hookmq_cluster.announcements`."""


class Hello(NamedTuple):
    """The sender has started. Other nodes read its lease at once. `answer` asks each of them for a `Hello`."""

    address: str
    answer: bool


class Open(NamedTuple):
    """The sender wants to receive packets from boot `to` of the receiver, numbered from 1.

    `reader` increases with each reader that a boot opens. `previous` and `number` are the reader before, and the last
    packet that it received; both are 0 if there was none.
    """

    to: str
    reader: int
    previous: int
    number: int


class Reopen(NamedTuple):
    """The sender does not know the reader of boot `to` of the receiver, which must open another one."""

    to: str


class Packet(NamedTuple):
    """The packet `number` for one reader. `urgent` asks for an acknowledgement in the same turn. `kind` is `FRAME` or
    `ANNOUNCEMENT`."""

    to: str
    reader: int
    number: int
    urgent: bool
    kind: int
    content: bytes


class Ack(NamedTuple):
    """The reader has all packets up to `number`. If `gap`, it received a later one and lacks the next one."""

    to: str
    reader: int
    number: int
    gap: bool


class Kick(NamedTuple):
    """A client has connected to the sender. Other nodes disconnect older connections of it; `stamp` is that of
    `ConnectionOrder`."""

    client_id: str
    stamp: float


class Leaving(NamedTuple):
    """The sender stops: it takes no more lanes."""


class HandOver(NamedTuple):
    """Ask the owner of a lane to give it to the sender."""

    lane: str


WireMessage = Hello | Open | Reopen | Packet | Ack | Kick | HandOver | Leaving
_KINDS: Final[dict[str, Any]] = {
    "hello": Hello,
    "open": Open,
    "reopen": Reopen,
    "packet": Packet,
    "ack": Ack,
    "kick": Kick,
    "leaving": Leaving,
    "move": HandOver,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}
_TYPES: Final = {name: tuple(kind.__annotations__.values()) for name, kind in _KINDS.items()}


_pack: Final[Callable[[object], bytes]] = Packer(unicode_errors="surrogatepass").pack


class Received(NamedTuple):
    """A message, and the node and boot that sent it."""

    node: str
    boot: str
    message: WireMessage


def encode(node: str, boot: str, message: WireMessage) -> bytes:
    """Return `message` of boot `boot` of `node` in its wire form."""
    return _pack((VERSION, _NAMES[type(message)], node, boot, *message))


class WireReader:
    """Reads messages of other nodes.

    `malformed` counts those that no version of this plugin sends. `unknown` counts those of other versions or kinds. Both
    are logged at most once a minute.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.malformed = 0
        self.unknown = 0
        self._runtime = runtime
        self._silent_until = 0.0

    def read(self, subject: str, data: bytes) -> Received | None:
        """Return the message in `data`, or None if it cannot be read. Never raises. `subject` is for the log."""
        try:
            value = unpackb(data, use_list=False, unicode_errors="surrogatepass")
        except Exception as error:  # msgpack raises many types
            self._refuse(subject, f"invalid msgpack: {error or type(error).__name__}")
            return None
        if type(value) is not tuple or not value or type(value[0]) is not int:
            self._refuse(subject, "expected an array that begins with a version")
        elif value[0] != VERSION:
            self._ignore(subject, f"unknown version {value[0]}")
        elif len(value) < 4 or not (type(value[1]) is type(value[2]) is type(value[3]) is str):
            self._refuse(subject, "expected version, kind, node and boot")
        else:
            _, name, node, boot = value[:4]
            types = _TYPES.get(name)
            fields = value[4:]
            if types is None:
                self._ignore(subject, f"unknown kind {name[:40]!r} from node {node!r}")
            elif tuple(map(type, fields)) != types:
                self._refuse(subject, f"invalid fields of {name!r} from node {node!r}")
            elif any(type(one) is int and one < 0 for one in fields):
                self._refuse(subject, f"negative number in {name!r} from node {node!r}")
            else:
                return Received(node, boot, _KINDS[name]._make(fields))
        return None

    def _refuse(self, subject: str, reason: str) -> None:
        self.malformed += 1
        self._log(subject, reason)

    def _ignore(self, subject: str, reason: str) -> None:
        self.unknown += 1
        self._log(subject, reason)

    def _log(self, subject: str, reason: str) -> None:
        now = self._runtime.now()
        if now < self._silent_until:
            return
        self._silent_until = now + _QUIET
        self._runtime.log(
            "warning", "cluster.message_invalid", subject=subject, reason=reason,
            malformed=self.malformed, unknown=self.unknown,
        )  # fmt: skip
