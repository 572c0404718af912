"""Test the proxies between the parts of a cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from clusterkill.network import Link, Network

SHORT = 0.05
"""Seconds in which bytes would arrive on a link that is not cut."""
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Pair:
    """A connection through a link: both ends."""

    link: Link
    near: Ends
    far: Ends
    accepted: asyncio.Queue[Ends]
    """Further connections at the far end."""

    async def send(self, there: bool, data: bytes = b"x") -> None:
        (self.near if there else self.far)[1].write(data)

    async def arrives(self, there: bool, seconds: float = 10) -> bytes:
        """Return the bytes that arrive within some seconds."""
        reader = (self.far if there else self.near)[0]
        try:
            return await asyncio.wait_for(reader.read(1000), seconds)
        except TimeoutError:
            return b"nothing"


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    accepted: asyncio.Queue[Ends] = asyncio.Queue()
    writers = []

    def accept(*ends: Any) -> None:
        writers.append(ends[1])
        accepted.put_nowait(ends)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    link = Link(server.sockets[0].getsockname()[1])
    await link.open()
    near = await asyncio.open_connection("127.0.0.1", link.port)
    yield Pair(link, near, await accepted.get(), accepted)
    link.close()
    server.close()
    await end(near[1], *writers)


async def end(*writers: asyncio.StreamWriter) -> None:
    """Close connections."""
    for writer in writers:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def test_bytes_pass_in_both_directions(pair: Pair) -> None:
    await pair.send(True, b"there")
    assert await pair.arrives(True) == b"there"
    await pair.send(False, b"back")
    assert await pair.arrives(False) == b"back"


@pytest.mark.parametrize(("cut", "there", "back"), [
    ("both", False, False), ("there", False, True), ("back", True, False),
])  # fmt: skip
async def test_a_cut_holds_bytes_until_it_is_healed(
    pair: Pair, cut: str, there: bool, back: bool
) -> None:
    pair.link.set(cut)  # type: ignore[arg-type]
    for forward, passes in ((True, there), (False, back)):
        await pair.send(forward)
        expected = b"x" if passes else b"nothing"
        assert await pair.arrives(forward, 10 if passes else SHORT) == expected
    pair.link.set()
    for forward, passed in ((True, there), (False, back)):
        if not passed:
            assert await pair.arrives(forward) == b"x"


async def test_a_large_transfer_survives_a_cut(pair: Pair) -> None:
    data = bytes(range(256)) * 40_000
    pair.near[1].write(data)
    pair.link.set("both")
    await asyncio.sleep(0)
    pair.link.set()
    assert await pair.far[0].readexactly(len(data)) == data


async def test_the_end_of_a_connection_is_held_too(pair: Pair) -> None:
    pair.link.set("there")
    await pair.send(True)
    pair.near[1].close()
    assert await pair.arrives(True, SHORT) == b"nothing"
    pair.link.set()
    assert await pair.arrives(True) == b"x"
    assert await pair.arrives(True) == b""


async def test_a_link_that_refuses_ends_connections_and_accepts_none(pair: Pair) -> None:
    pair.link.set("refuse")
    with pytest.raises(ConnectionResetError):
        await pair.near[0].read()
    reader, writer = await asyncio.open_connection("127.0.0.1", pair.link.port)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    await end(writer)


async def test_a_new_connection_waits_while_the_link_is_cut(pair: Pair) -> None:
    pair.link.set("back")
    _, writer = await asyncio.open_connection("127.0.0.1", pair.link.port)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pair.accepted.get(), SHORT)
    pair.link.set()
    await asyncio.wait_for(pair.accepted.get(), 10)
    await end(writer)


async def test_delayed_bytes_arrive_later_and_in_order(pair: Pair) -> None:
    loop = asyncio.get_running_loop()
    pair.link.set(delay=0.1)
    start = loop.time()
    await pair.send(True, b"1")
    await pair.send(True, b"2")
    assert await pair.far[0].readexactly(2) == b"12"
    assert loop.time() - start >= 0.1


async def test_a_target_that_does_not_listen_ends_the_connection() -> None:
    link = Link(1)
    await link.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    await end(writer)
    link.close()


def test_parts_of_a_network() -> None:
    network = Network()
    for start, end in (("a", "n0"), ("a", "n1"), ("n0", "n1"), ("n1", "n0"), ("", "a")):
        network.add(start, end, 1)
    network.part({"a", "n0"}, {"n1"}, "there")
    cuts = {ends: link.cut for ends, link in network.links.items()}
    assert cuts == {
        ("a", "n0"): "",
        ("a", "n1"): "there",
        ("n0", "n1"): "there",
        ("n1", "n0"): "back",
        ("", "a"): "back",
    }
    network.heal()
    assert not any(link.cut for link in network.links.values())
    network.close()
