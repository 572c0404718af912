"""Frames exchanged by the broker and a source's process over a socket pair.

A frame consists of its length (four bytes), its kind (one byte), and data. The data is either JSON or MQTT 5 PUBLISH
packets, because the broker's codec is fast and supports every property.
"""

import asyncio
import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

from hookmq.mqtt_api import EMPTY, Publish, decode, encode, frame

from hookmq_sinks.source import Incoming

JSON: Final = 0
MESSAGES: Final = 1
LARGEST: Final = 600 << 20
"""The maximum size of a frame in bytes: more than the largest MQTT packet."""
MARK: Final = "hookmq-source-mark"
"""The user property that carries a message's mark, ``KEY=VALUE``."""
IDENTITY: Final = "hookmq-source-identity"
"""The user property that carries a message's identity. It is removed before the message is published."""
_OWN: Final = (MARK, IDENTITY)
_HEAD: Final = struct.Struct("<IB")

MessageTuple = tuple[str, bytes, int, bool, Any]
"""The arguments of `ClientHandle.publish`."""


def encode_json(value: Any) -> bytes:
    """Return a frame that contains `value` as JSON."""
    data = json.dumps(value).encode()
    return _HEAD.pack(len(data), JSON) + data


def encode_message(one: Incoming) -> bytes:
    """Return a message as a PUBLISH packet, with its mark and identity. Raises ValueError if that is not possible."""
    properties = one.properties
    if one.mark is not None or one.identity or properties.user_property:
        given = tuple(pair for pair in properties.user_property or () if pair[0] not in _OWN)
        if one.mark is not None:
            given = (*given, (MARK, "=".join(one.mark)))
        if one.identity:
            given = (*given, (IDENTITY, one.identity))
        properties = properties.replace(user_property=given or None)
    packet_id = 1 if one.qos else 0
    packet = Publish(one.topic, one.payload, one.qos, one.retain, False, packet_id, properties)
    try:
        return bytes(encode(packet, 5))
    except Exception as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def encode_frame(packets: Iterable[bytes]) -> bytes:
    """Return a frame that contains messages encoded by `encode_message`."""
    data = b"".join(packets)
    return _HEAD.pack(len(data), MESSAGES) + data


def decode_messages(data: bytes) -> Iterator[MessageTuple]:
    """Yield the messages in a frame."""
    at = 0
    while at < len(data):
        found = frame(data, at)
        assert found is not None
        start, end = found
        packet = decode(data[at], data[start:end], 5, server=False)
        assert isinstance(packet, Publish)
        yield packet.topic, packet.payload, packet.qos, packet.retain, packet.properties or EMPTY
        at = end


def split_identity(message: MessageTuple) -> tuple[str, MessageTuple]:
    """Return the message's identity ('' if it has none), and the message without that identity."""
    pairs = message[4].user_property or ()
    if not pairs or pairs[-1][0] != IDENTITY:
        return "", message
    properties = message[4].replace(user_property=pairs[:-1] or None) or EMPTY
    return pairs[-1][1], (*message[:4], properties)


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the kind and the data of the next frame. Raises EOFError at the end, and ValueError for a broken frame."""
    head = await reader.readexactly(_HEAD.size)
    size, kind = _HEAD.unpack(head)
    if size > LARGEST or kind not in (JSON, MESSAGES):
        raise ValueError("broken frame")
    return kind, await reader.readexactly(size)
