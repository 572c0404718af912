"""Test the channel between a broker and its processes."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from hookmq_toolkit.channel import Channel, Frames, Refused, encode_frame
from hypothesis import given
from hypothesis import strategies as st

Pair = tuple[Channel, Channel]


@pytest.fixture
async def connect() -> AsyncIterator[Callable[..., Any]]:
    made: list[Channel] = []

    async def pair(*protocols: Callable[[], Channel]) -> list[Channel]:
        loop = asyncio.get_running_loop()
        for protocol, end in zip(protocols, socket.socketpair(), strict=True):
            _, channel = await loop.create_unix_connection(protocol, sock=end)
            made.append(channel)
        return made

    yield pair
    for channel in made:
        channel.close()
    for channel in made:
        await channel.closed


async def test_values_and_requests(connect: Any) -> None:
    taken: list[Any] = []
    arrived = asyncio.Event()

    def take(value: Any) -> None:
        taken.append(value)
        if len(taken) == 2:
            arrived.set()

    async def answer(request: Any) -> Any:
        if request == "no":
            raise Refused("not now")
        if request == "broken":
            raise ValueError("a bug")
        return {"twice": request * 2}

    one, two = await connect(lambda: Channel(taken.append), lambda: Channel(take, answer))
    one.write(("a", 1, b"\x00", None, {"k": [1.5, True]}))
    one.write("b" * 300_000)
    await arrived.wait()
    assert taken == [("a", 1, b"\x00", None, {"k": [1.5, True]}), "b" * 300_000]
    assert await one.ask(21) == {"twice": 42}
    with pytest.raises(Refused, match="not now"):
        await one.ask("no")
    with pytest.raises(Refused, match="ValueError: a bug"):
        await one.ask("broken")
    with pytest.raises(Refused, match="no requests are answered here"):
        await two.ask(1)
    assert two.frames == 6
    assert one.open
    assert one.backlog == 0


async def test_requests_end_with_the_channel(connect: Any) -> None:
    async def never(request: Any) -> None:
        await asyncio.Event().wait()

    one, two = await connect(
        lambda: Channel(lambda value: None), lambda: Channel(lambda value: None, never)
    )
    asked = one.ask(1)
    two.close()
    with pytest.raises(Refused, match="the process ended"):
        await asked
    with pytest.raises(Refused, match="not running"):
        await one.ask(2)
    one.write("dropped")
    assert not one.open


async def test_values_that_cannot_be_encoded_are_an_error(connect: Any) -> None:
    one, _ = await connect(lambda: Channel(lambda value: None), lambda: Channel(lambda value: None))
    with pytest.raises(ValueError, match="unmarshallable"):
        one.write(object())


@given(st.lists(st.one_of(st.integers(), st.binary(), st.text())), st.integers(1, 7))
def test_frames_are_cut_as_they_were_made(values: list[Any], step: int) -> None:
    frames = Frames()
    data = b"".join(map(encode_frame, values))
    found = []
    for at in range(0, len(data), step):
        found += frames.feed(data[at : at + step])
    assert found == values
