"""Compare the codec with the table of packet vectors, both whole and in pieces."""

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


def test_decoder_reads(good: list[Any]) -> None:
    for one in good:
        for server in one.servers:
            decoder = Decoder(one.version, server=server)
            assert decoder.feed(one.data) == [one.packet]
            assert decoder.error is None
            assert decoder.buffered == 0


def test_decoder_refuses(bad: list[Any]) -> None:
    for one in bad:
        for server in one.servers:
            decoder = Decoder(one.version, server=server)
            assert decoder.feed(one.data) == []
            assert decoder.error is not None
            assert decoder.error.code == one.error
            assert decoder.buffered == 0
            if one.answer is None:
                assert not isinstance(decoder.error, ConnectError)
            else:
                assert isinstance(decoder.error, ConnectError)
                assert decoder.error.version == one.answer


def test_decode_says_the_same(some: list[Any]) -> None:
    """`frame` followed by `decode` returns the same result as `Decoder`."""
    for one in some:
        for server in one.servers:
            code = packet = None
            try:
                found = frame(one.data, 0)
                assert found is not None
                body, end = found
                assert end == len(one.data)
                packet = decode(one.data[0], one.data[body:], one.version, server=server)
            except ProtocolError as error:
                code = error.code
            assert (packet, code) == (one.packet, one.error)


def test_encode_writes(good: list[Any]) -> None:
    for one in good:
        written = encode(one.packet, one.version or one.packet.version)
        assert (written == one.data) is one.canonical


def test_byte_by_byte_is_the_same(some: list[Any]) -> None:
    for one in some:
        for server in one.servers:
            decoder = Decoder(one.version, server=server)
            packets = []
            for i in range(len(one.data)):
                packets += decoder.feed(one.data[i : i + 1])
                assert decoder.buffered <= i + 1
            assert packets == ([] if one.packet is None else [one.packet])
            assert (decoder.error and decoder.error.code) == one.error


def test_a_body_cut_short_is_refused_or_another_packet_of_its_kind(good: list[Any]) -> None:
    for one in good:
        found = frame(one.data, 0)
        assert found is not None
        body = one.data[found[0] :]
        for server in one.servers:
            for size in range(len(body)):
                try:
                    packet = decode(one.data[0], body[:size], one.version, server=server)
                except ProtocolError:
                    continue
                assert type(packet) is type(one.packet)


def test_a_byte_too_many_is_refused(vectors: list[Any]) -> None:
    """A packet is refused if there is an extra byte after its last field."""
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
