"""Test single connections: which bytes form a response, and when a connection ends."""

import asyncio
from collections.abc import Callable
from typing import Any

import httptools
import pytest
from hookmq_webhook.http_connection import MAX_HEAD, Connection, ExchangeFailed, Response

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"


class Pipe(asyncio.Transport):
    """A transport that keeps all written bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.unsent = 0
        self.aborted = False

    def write(self, data: Any) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


Make = Callable[[], tuple[Connection, Pipe]]


@pytest.fixture
def connect() -> Make:
    def made() -> tuple[Connection, Pipe]:
        connection, pipe = Connection(), Pipe()
        connection.connection_made(pipe)
        return connection, pipe

    return made


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_responses_in_pieces(connect: Make, size: int) -> None:
    connection, pipe = connect()
    for sent, expected in (
        (NO_CONTENT, Response(204, {}, b"")),
        (b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 3\r\n\r\nabc",
         Response(200, {"x-a": "1", "content-length": "3"}, b"abc")),
        (b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
         Response(503, {"transfer-encoding": "chunked"}, b"abc")),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + NO_CONTENT,
         Response(204, {}, b"")),
    ):  # fmt: skip
        future = connection.request(b"ask", 100)
        for at in range(0, len(sent), size):
            assert not future.done()
            connection.data_received(sent[at : at + size])
        assert await future == expected
        assert connection.ready
    assert pipe.written == b"ask" * 4


async def test_a_body_that_ends_with_the_connection(connect: Make) -> None:
    connection, _ = connect()
    future = connection.request(b"", 100)
    connection.data_received(b"HTTP/1.1 200 OK\r\n\r\nabc")
    assert not future.done()
    connection.connection_lost(None)
    assert await future == Response(200, {}, b"abc")
    assert not connection.ready


async def test_a_body_beyond_the_limit(connect: Make) -> None:
    connection, pipe = connect()
    future = connection.request(b"", 3)
    connection.data_received(b"HTTP/1.1 500 No\r\nContent-Length: 9\r\n\r\nabc")
    assert not future.done()
    connection.data_received(b"defghi")
    response = await future
    assert (response.status, response.body, response.whole) == (500, b"abc", False)
    assert pipe.aborted
    assert not connection.ready


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"", "connection closed: before the answer"),
        (b"HTTP/1.1 200", "connection closed: before the answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab", "connection closed: the answer is incomplete"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "connection closed: the answer is incomplete"),
        (b"220 ready for mail\r\n\r\n", "malformed answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "malformed answer"),
        (b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", "malformed answer"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * MAX_HEAD, "malformed answer: the headers are too long"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 4000, "malformed answer: the headers are too long"),
    ],
)  # fmt: skip
async def test_responses_that_are_none(connect: Make, sent: bytes, reason: str) -> None:
    connection, pipe = connect()
    future = connection.request(b"", 100)
    if sent:
        connection.data_received(sent)
    connection.connection_lost(None)
    with pytest.raises(ExchangeFailed) as raised:
        await future
    assert str(raised.value) == reason
    assert pipe.aborted
    assert not connection.ready


async def test_the_reason_of_a_lost_connection(connect: Make) -> None:
    connection, _ = connect()
    future = connection.request(b"", 100)
    connection.connection_lost(ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        await future


async def test_responses_that_nobody_requested(connect: Make) -> None:
    connection, pipe = connect()
    future = connection.request(b"", 100)
    connection.data_received(NO_CONTENT * 2)
    assert (await future).status == 204
    assert not connection.ready
    connection, pipe = connect()
    future = connection.request(b"", 100)
    connection.data_received(NO_CONTENT)
    assert connection.ready
    connection.data_received(NO_CONTENT)
    assert pipe.aborted
    assert not connection.ready


async def test_connections_that_are_not_used_again(connect: Make) -> None:
    for sent in (
        b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
    ):  # fmt: skip
        connection, _ = connect()
        future = connection.request(b"", 100)
        connection.data_received(sent)
        assert (await future).status in (200, 204)
        assert not connection.ready
    connection, pipe = connect()
    future = connection.request(b"", 100)
    pipe.unsent = 1  # the service responds before it has read the whole request
    connection.data_received(NO_CONTENT)
    assert (await future).status == 204
    assert not connection.ready


async def test_a_tunnel(connect: Make) -> None:
    connection, _ = connect()
    task = asyncio.create_task(connection.open_tunnel(b"CONNECT"))
    await asyncio.sleep(0)
    connection.data_received(b"HTTP/1.1 200 Connection established\r\n\r\n")
    assert await task == 200
    future = connection.request(b"", 100)
    connection.data_received(NO_CONTENT)
    assert (await future).status == 204


async def test_a_caller_that_stops_waiting(connect: Make) -> None:
    connection, pipe = connect()
    future = connection.request(b"", 100)
    future.cancel()
    connection.data_received(NO_CONTENT)
    connection.connection_lost(None)
    connection, pipe = connect()
    connection.request(b"", 100)
    connection.close()
    connection.data_received(NO_CONTENT)
    assert pipe.aborted


def test_the_parser_is_strict() -> None:
    parser = httptools.HttpResponseParser(Connection())
    with pytest.raises(httptools.HttpParserError):
        parser.feed_data(
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
