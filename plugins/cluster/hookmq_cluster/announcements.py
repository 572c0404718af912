"""What a node announces to another one: which topic filters its clients want.

Each change states the whole new value of one entry, so a change that is announced twice does no harm. A target is a lane,
or '' for the node itself.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from hookmq.plugin import HookMQError
from msgpack import packb, unpackb  # type: ignore[import-untyped]

NODE: Final = ""
"""The target of volatile sessions, and of subscriptions with QoS 0."""


class Put(NamedTuple):
    """Someone wants `topic_filter`: `qos` is the highest QoS, `online` the number of online members if there is a share
    name."""

    target: str
    share: str | None
    topic_filter: str
    qos: int
    online: int


class Drop(NamedTuple):
    """Nobody wants `topic_filter` any more."""

    target: str
    share: str | None
    topic_filter: str


class Begin(NamedTuple):
    """The sender owns `lane`, with this fence, and announces all its entries until `End`."""

    lane: str
    fence: int


class End(NamedTuple):
    """All entries of `lane` are announced. Those that were not announced since `Begin` do not exist any more."""

    lane: str
    fence: int


class Leave(NamedTuple):
    """The sender does not own `lane` any more. Its entries remain until the next owner announces them."""

    lane: str


class BeginAll(NamedTuple):
    """The sender announces everything: its lanes, and all entries, until `EndAll`."""


class EndAll(NamedTuple):
    """Everything is announced. Entries of the node that were not announced since `BeginAll` do not exist any more."""


Change = Put | Drop | Begin | End | Leave | BeginAll | EndAll
_KINDS: Final[tuple[Any, ...]] = (Put, Drop, Begin, End, Leave, BeginAll, EndAll)
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}
_SHAPES: Final[tuple[frozenset[tuple[type, ...]], ...]] = (
    frozenset({(str, str, str, int, int), (str, type(None), str, int, int)}),
    frozenset({(str, str, str), (str, type(None), str)}),
    frozenset({(str, int)}),
    frozenset({(str, int)}),
    frozenset({(str,)}),
    frozenset({()}),
    frozenset({()}),
)


class AnnouncementError(HookMQError):
    """An announcement is damaged."""


def encode_changes(changes: Sequence[Change]) -> bytes:
    """Return `changes` in their wire form."""
    data: bytes = packb(
        [(_NUMBERS[type(change)], *change) for change in changes], unicode_errors="surrogatepass"
    )
    return data


def decode_changes(data: bytes) -> list[Change]:
    """Return the changes in `data`. Raises AnnouncementError if they are damaged."""
    try:
        value = unpackb(data, use_list=False, unicode_errors="surrogatepass")
    except Exception as error:  # msgpack raises many types
        raise AnnouncementError(f"invalid msgpack: {error or type(error).__name__}") from error
    if type(value) is not tuple:
        raise AnnouncementError("expected an array of changes")
    changes: list[Change] = []
    for item in value:
        if type(item) is not tuple or not item or type(item[0]) is not int:
            raise AnnouncementError(f"change {len(changes) + 1}: expected a kind and fields")
        number, fields = item[0], item[1:]
        if not 0 <= number < len(_KINDS) or tuple(map(type, fields)) not in _SHAPES[number]:
            raise AnnouncementError(f"change {len(changes) + 1}: invalid fields")
        change = _KINDS[number]._make(fields)
        if number == 0 and (not 0 <= change.qos <= 2 or change.online < 0):
            raise AnnouncementError(f"change {len(changes) + 1}: invalid QoS or number")
        changes.append(change)
    return changes
