"""Decode payloads: raw bytes, text, JSON, MessagePack, CBOR, Protobuf, Sparkplug B."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, Final, Literal

from hookmq.plugin import ConfigError

from hookmq_sinks.extras import extra_hint
from hookmq_sinks.record_template import RecordError

Format = Literal["raw", "text", "json", "msgpack", "cbor", "protobuf", "sparkplug"]
Decode = Callable[[bytes], Any]
_EXTRAS: Final = {
    "msgpack": "msgpack",
    "cbor": "cbor",
    "protobuf": "protobuf",
    "sparkplug": "protobuf",
}


@dataclass(frozen=True)
class ProtobufConfig:
    """The message type of Protobuf payloads."""

    descriptors: Path = field(
        metadata={"help": "file that protoc writes with --include_imports --descriptor_set_out"}
    )
    message: str = field(metadata={"help": "full name of the message type, such as plant.Reading"})


def find_decoder(name: str, protobuf: ProtobufConfig | None = None) -> Decode:
    """Return a function that decodes payloads of this format, and that raises RecordError. For Protobuf, read the
    descriptor file. Raises ConfigError if the library or the message type is missing.
    """
    if name == "raw":
        return bytes
    try:
        if name == "protobuf":
            return _protobuf(protobuf)
        return {
            "text": _text,
            "json": _json,
            "msgpack": _msgpack,
            "cbor": _cbor,
            "sparkplug": _sparkplug,
        }[name]()
    except ImportError:
        raise ConfigError(
            f"decode: the library for {name} is not installed",
            hint=extra_hint(_EXTRAS[name]),
        ) from None


def _text() -> Decode:
    def decode(payload: bytes) -> str:
        try:
            return payload.decode()
        except UnicodeDecodeError as error:
            raise RecordError(f"the payload is not UTF-8 text: byte {error.start}") from None

    return decode


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is not JSON")


def _json() -> Decode:
    def decode(payload: bytes) -> Any:
        try:
            return json.loads(payload, parse_constant=_refuse)
        except (ValueError, RecursionError) as error:
            raise RecordError(f"the payload is not JSON: {error}") from None

    return decode


def _msgpack() -> Decode:
    import msgpack  # type: ignore[import-untyped]

    def decode(payload: bytes) -> Any:
        try:
            return msgpack.unpackb(payload, timestamp=3, strict_map_key=False)
        except Exception as error:
            raise RecordError(f"the payload is not MessagePack: {error}") from None

    return decode


def _cbor() -> Decode:
    import cbor2

    def decode(payload: bytes) -> Any:
        data = BytesIO(payload)
        try:
            value = cbor2.load(data)
        except Exception as error:
            raise RecordError(f"the payload is not CBOR: {error}") from None
        if data.tell() != len(payload):
            raise RecordError(f"the payload is not CBOR: it continues after byte {data.tell()}")
        return value

    return decode


def _protobuf(config: ProtobufConfig | None) -> Decode:
    if config is None:
        raise ConfigError("protobuf: this key is missing, which decode: protobuf needs")
    from hookmq_sinks.protobuf import decode_protobuf, protobuf_class

    return partial(decode_protobuf, protobuf_class(config.descriptors, config.message))


def _sparkplug() -> Decode:
    from hookmq_sinks.protobuf import decode_sparkplug

    return decode_sparkplug
