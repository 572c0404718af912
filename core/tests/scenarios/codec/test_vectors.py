"""Compare the codec with the table of packet vectors, whole and in pieces."""

import re
from collections import Counter
from typing import Any

import pytest
from hookmq.mqtt.connect_packet import ConnectError
from hookmq.mqtt.decoder import decode
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.framing import frame
from hookmq_testing.decoder import Decoder


def test_decoder_reads(good: Any) -> None:
    for server in good.servers:
        decoder = Decoder(good.version, server=server)
        assert decoder.feed(good.data) == [good.packet]
        assert decoder.error is None
        assert decoder.buffered == 0


def test_decoder_refuses(bad: Any) -> None:
    for server in bad.servers:
        decoder = Decoder(bad.version, server=server)
        assert decoder.feed(bad.data) == []
        assert decoder.error is not None
        assert decoder.error.code == bad.error
        assert decoder.buffered == 0
        if bad.answer is None:
            assert not isinstance(decoder.error, ConnectError)
        else:
            assert isinstance(decoder.error, ConnectError)
            assert decoder.error.version == bad.answer


def test_decode_says_the_same(vector: Any) -> None:
    """`frame` and `decode` together return the same result as `Decoder`."""
    for server in vector.servers:
        code = packet = None
        try:
            found = frame(vector.data, 0)
            assert found is not None
            body, end = found
            assert end == len(vector.data)
            packet = decode(vector.data[0], vector.data[body:], vector.version, server=server)
        except ProtocolError as error:
            code = error.code
        assert (packet, code) == (vector.packet, vector.error)


def test_encode_writes(good: Any) -> None:
    written = encode(good.packet, good.version or good.packet.version)
    assert (written == good.data) is good.canonical


def test_byte_by_byte_is_the_same(vector: Any) -> None:
    for server in vector.servers:
        decoder = Decoder(vector.version, server=server)
        packets = []
        for i in range(len(vector.data)):
            packets += decoder.feed(vector.data[i : i + 1])
            assert decoder.buffered <= i + 1
        assert packets == ([] if vector.packet is None else [vector.packet])
        assert (decoder.error and decoder.error.code) == vector.error


def test_a_body_cut_short_is_refused_or_another_packet_of_its_kind(good: Any) -> None:
    found = frame(good.data, 0)
    assert found is not None
    body = good.data[found[0] :]
    for server in good.servers:
        for size in range(len(body)):
            try:
                packet = decode(good.data[0], body[:size], good.version, server=server)
            except ProtocolError:
                continue
            assert type(packet) is type(good.packet)


def test_a_byte_too_many_is_refused(vectors: list[Any]) -> None:
    """A packet with a byte after its last field is refused."""
    tried = 0
    for row in vectors:
        kind = type(row.packet).__name__
        if row.packet is None or kind in ("Publish", "Suback"):
            continue
        if kind == "Unsuback" and row.version == 5:
            continue
        found = frame(row.data, 0)
        assert found is not None
        body = row.data[found[0] :]
        if row.version == 5 and kind.startswith(("Pub", "Disconnect", "Auth")):
            whole = 4 if kind.startswith("Pub") else 2
            if len(body) < whole:
                continue
        tried += 1
        with pytest.raises(ProtocolError):
            decode(row.data[0], body + b"\0", row.version, server=row.servers[0])
    assert tried > 100


def test_the_table_is_wide(vectors: list[Any]) -> None:
    assert max(Counter(v.id for v in vectors).values()) == 1
    kinds = Counter(type(v.packet).__name__ for v in vectors if v.packet is not None)
    assert len(kinds) == 15
    for version in (3, 4, 5):
        assert sum(v.version == version for v in vectors) > 40
    assert {v.error for v in vectors} == {None, 0x81, 0x82, 0x84, 0x90}


def test_statement_ids_are_well_formed(vectors: list[Any]) -> None:
    for vector in vectors:
        for statement in vector.proves:
            assert re.fullmatch(r"MQTT(311)?-\d+\.\d+\.\d+-\d+", statement), vector.id
