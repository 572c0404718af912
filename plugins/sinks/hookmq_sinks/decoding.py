"""Decode payloads: raw bytes, text, JSON, MessagePack, CBOR."""

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any, Final, Literal

from hookmq.plugin import ConfigError

from hookmq_sinks.record_template import RecordError

Format = Literal["raw", "text", "json", "msgpack", "cbor"]
Decode = Callable[[bytes], Any]
_EXTRAS: Final = {"msgpack": "msgpack", "cbor": "cbor2"}


def find_decoder(name: str) -> Decode:
    """Return the function that decodes payloads of this format. It raises RecordError. Raises ConfigError if the library
    for the format is not installed."""
    if name == "raw":
        return bytes
    try:
        return {"text": _text, "json": _json, "msgpack": _msgpack, "cbor": _cbor}[name]()
    except ImportError:
        extra = _EXTRAS.get(name, name)
        raise ConfigError(
            f"decode: the library for {name} is not installed",
            hint=f"run: pip install 'hookmq-sinks[{name}]', which installs {extra}",
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
