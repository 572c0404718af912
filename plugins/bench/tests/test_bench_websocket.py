"""Test the client side of a WebSocket against the same library's server side. Also test connections over WebSocket."""

import pytest
from hookmq.mqtt_api import Connack, encode
from hookmq.plugin import Connect
from hookmq_bench.connection import Connection
from hookmq_bench.websocket import WebSocket, WebSocketError
from unwired import Bench, Wire
from websockets.frames import Frame
from websockets.http11 import Request
from websockets.server import ServerProtocol


class Server:
    """The server side of a WebSocket."""

    def __init__(self) -> None:
        self.protocol = ServerProtocol(subprotocols=["mqtt"])  # type: ignore[list-item]

    def take(self, data: bytes) -> bytes:
        """Accept a request, or return the data of the frames in `data`."""
        self.protocol.receive_data(data)
        found = b""
        for event in self.protocol.events_received():
            if isinstance(event, Request):
                self.protocol.send_response(self.protocol.accept(event))
            elif isinstance(event, Frame):
                found += bytes(event.data)
        return found

    def sent(self) -> bytes:
        return b"".join(self.protocol.data_to_send())


def opened() -> tuple[WebSocket, Server]:
    client, server = WebSocket("ws://127.0.0.1/mqtt"), Server()
    server.take(client.hello())
    assert not client.opened
    assert client.receive(server.sent()) == b""
    assert client.opened
    return client, server


@pytest.mark.parametrize("size", [0, 1, 200, 70_000])
@pytest.mark.parametrize("piece", [7, 1 << 20])
def test_data_in_both_directions_cut_anywhere(size: int, piece: int) -> None:
    client, server = opened()
    data = bytes(range(256)) * (size // 256) + bytes(size % 256)
    assert server.take(client.wrap(data)) == data
    server.protocol.send_binary(data)
    wire = server.sent()
    got = b"".join(client.receive(wire[at : at + piece]) for at in range(0, len(wire), piece))
    assert got == data


def test_a_ping_is_answered() -> None:
    client, server = opened()
    server.protocol.send_ping(b"there?")
    assert client.receive(server.sent()) == b""
    assert server.take(client.answers()) == b"there?"


def test_a_refusal_and_what_is_none() -> None:
    client, server = WebSocket("ws://127.0.0.1/mqtt"), Server()
    client.hello()
    server.protocol.send_response(server.protocol.reject(404, "no such thing"))
    with pytest.raises(WebSocketError, match="404"):
        client.receive(server.sent())
    client, _ = opened()
    with pytest.raises(WebSocketError, match="invalid WebSocket frame"):
        client.receive(b"\xff\xff\xff\xff")


def test_a_connection_stops_writing_once_its_websocket_is_closed(bench: Bench) -> None:
    connection = Connection(bench.turn, 4)
    server = Server()
    connect = encode(Connect("c", 4, True, 60), 4)
    connection._websocket, connection._connect = WebSocket("ws://127.0.0.1/mqtt"), connect
    wire = Wire()
    told: list[str] = []
    connection.lost = told.append

    def hear(data: bytes) -> None:
        bench.turn.buffer[: len(data)] = data
        connection.buffer_updated(len(data))

    connection.connection_made(wire)  # type: ignore[arg-type]
    server.take(wire.take())
    hear(server.sent())
    assert server.take(wire.take()) == connect
    server.protocol.send_binary(encode(Connack(0), 4))
    server.protocol.send_close(1009, "too big")
    hear(server.sent())
    assert wire.ended == "closed"
    connection.put(b"\xc0\0")
    bench.loop.run()
    assert (
        server.take(wire.take()) == b"\x03\xf1too big"
    )  # the answer to the end, and nothing behind it
    connection.connection_lost(None)
    assert "1009" in told[0]
    assert "too big" in told[0]
