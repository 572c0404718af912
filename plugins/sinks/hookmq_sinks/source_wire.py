"""Frames between the broker and the process of a source, on a socket pair.

A frame has its length in four bytes, one byte for its kind, and data. The data is JSON, or MQTT 5 PUBLISH packets: the
broker's codec is fast, and has a form for every property.
"""

import asyncio
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

from hookmq.mqtt_api import EMPTY, Publish, decode, encode, frame

from hookmq_sinks.source import Incoming

JSON: Final = 0
MESSAGES: Final = 1
LARGEST: Final = 600 << 20
"""The largest frame in bytes: more than the largest packet of MQTT."""
MARK: Final = "hookmq-source-mark"
"""The user property with the mark of a message, ``KEY=VALUE``."""
_HEAD: Final = struct.Struct("<IB")

MessageTuple = tuple[str, bytes, int, bool, Any]
"""The arguments of `ClientHandle.publish`."""


def encode_json(value: Any) -> bytes:
    """Return a frame with JSON."""
    data = json.dumps(value).encode()
    return _HEAD.pack(len(data), JSON) + data


def encode_messages(messages: Sequence[Incoming]) -> bytes:
    """Return a frame with messages and their marks."""
    parts = []
    for one in messages:
        properties = one.properties
        if one.mark is not None:
            given = tuple(pair for pair in properties.user_property or () if pair[0] != MARK)
            properties = properties.replace(user_property=(*given, (MARK, "=".join(one.mark))))
        parts.append(
            encode(
                Publish(
                    one.topic,
                    one.payload,
                    one.qos,
                    one.retain,
                    False,
                    1 if one.qos else 0,
                    properties,
                ),
                5,
            )
        )
    data = b"".join(parts)
    return _HEAD.pack(len(data), MESSAGES) + data


def decode_messages(data: bytes) -> Iterator[MessageTuple]:
    """Yield the messages of a frame."""
    at = 0
    while at < len(data):
        found = frame(data, at)
        assert found is not None
        start, end = found
        packet = decode(data[at], data[start:end], 5, server=False)
        assert isinstance(packet, Publish)
        yield packet.topic, packet.payload, packet.qos, packet.retain, packet.properties or EMPTY
        at = end


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Return the kind and the data of the next frame. Raises EOFError at the end, and ValueError for a broken frame."""
    head = await reader.readexactly(_HEAD.size)
    size, kind = _HEAD.unpack(head)
    if size > LARGEST or kind not in (JSON, MESSAGES):
        raise ValueError("broken frame")
    return kind, await reader.readexactly(size)
