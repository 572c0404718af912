"""The stored form of messages: a block holds the messages of one commit, in offset order."""

import struct
from collections.abc import Sequence
from math import isnan, nan
from typing import Final

from hookmq.mqtt_api import EMPTY, In, decode_section, encode_section
from hookmq.plugin import Message
from hookmq.storage_api import make_message

_HEAD: Final = struct.Struct("<BBHHHIIdd")
"""Version, QoS with `_NO_SENDER`, lengths of topic, sender, origin, properties and payload, arrival time and expiry
time."""
_VERSION: Final = 1
_NO_SENDER: Final = 4
"""The bit for a message without a sender."""
_RETAIN: Final = 8
"""The bit for a message with RETAIN."""
PER_RECORD: Final = _HEAD.size

Names = dict[tuple[int, int, bytes], tuple[str, str, str]]
"""Topics, senders and origins by their stored form, as `decode_block` keeps them."""


def size_of(message: Message) -> int:
    """Return the size of a message in bytes, as it counts against a limit: payload, topic, properties and a header."""
    size = PER_RECORD + len(message.topic) + len(message.payload)
    if message.properties is not EMPTY:
        size += message.properties.extent()
    return size


def encode_block(messages: Sequence[Message], retain: bool = False) -> bytes:
    """Return the messages as bytes. RETAIN is left out unless `retain` is set. Does not block."""
    parts: list[bytes] = []
    names: dict[tuple[str, str | None, str], tuple[int, int, int, bytes]] = {}
    for message in messages:
        key = (message.topic, message.sender, message.origin)
        named = names.get(key)
        if named is None:
            named = names[key] = _encode_names(*key)
        section = b""
        if message.properties is not EMPTY:
            section = encode_section(message.properties, In.PUBLISH)
        expires = nan if message.expires_at is None else message.expires_at
        flags = message.qos | (_NO_SENDER if message.sender is None else 0)
        if retain and message.retain:
            flags |= _RETAIN
        parts += (
            _HEAD.pack(
                _VERSION, flags, named[0], named[1], named[2],
                len(section), len(message.payload), message.received_at, expires,
            ),
            named[3], section, message.payload,
        )  # fmt: skip
    return b"".join(parts)


def _encode_names(topic: str, sender: str | None, origin: str) -> tuple[int, int, int, bytes]:
    """Return the lengths of the three encoded strings, and the strings joined together."""
    texts = (topic.encode(), (sender or "").encode(), origin.encode())
    return len(texts[0]), len(texts[1]), len(texts[2]), b"".join(texts)


def decode_block(data: bytes, names: Names | None = None) -> list[Message]:
    """Return the messages in a block. Raises ValueError if the bytes are damaged.

    Many messages have the same topic, sender and origin. When decoding several blocks, pass the same dict as `names`,
    initially empty. Each combination is then decoded only once. The dict grows with each new combination.
    """
    found: list[Message] = []
    if names is None:
        names = {}
    unpack, head, end, at = _HEAD.unpack_from, _HEAD.size, len(data), 0
    try:
        while at < end:
            version, flags, topic, sender, origin, section, payload, received, expires = unpack(
                data, at
            )
            if version != _VERSION:
                raise ValueError(f"unknown version {version}")
            at += head
            after = at + topic + sender + origin
            key = (topic, sender, data[at:after])
            named = names.get(key)
            if named is None:
                named = names[key] = _decode_names(*key)
            at = after
            properties = EMPTY
            if section:
                at += section
                properties = decode_section(data[after:at], In.PUBLISH)
            after = at
            at += payload
            found.append(
                make_message(
                    named[0], data[after:at], flags & 3, flags & _RETAIN != 0, properties,
                    None if flags & _NO_SENDER else named[1], named[2], received,
                    None if isnan(expires) else expires,
                )
            )  # fmt: skip
        if at > end:
            raise ValueError("a record is incomplete")
    except Exception as error:
        raise ValueError(f"not a block of messages: {error}") from error
    return found


def _decode_names(topic: int, sender: int, texts: bytes) -> tuple[str, str, str]:
    """Return the three strings in `texts`. `topic` and `sender` are the lengths of the first two."""
    after = topic + sender
    return texts[:topic].decode(), texts[topic:after].decode(), texts[after:].decode()
