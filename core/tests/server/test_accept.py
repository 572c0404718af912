"""Test connections that are refused or cannot be accepted. They cause few log lines and leak no resources."""

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from hookmq.server import accept


@contextmanager
def no_descriptors_left() -> Iterator[None]:
    """Use every file descriptor below the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as held:
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        while True:
            descriptor = os.open(os.devnull, os.O_RDONLY)
            held.callback(os.close, descriptor)
            if descriptor >= used:
                break
        resource.setrlimit(resource.RLIMIT_NOFILE, (descriptor + 1, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def test_out_of_descriptors_is_logged_once_and_waited_out(
    listen: Any, broker: Any, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accept, "RETRY", 0.2)
    listener = await listen()
    loop = asyncio.get_running_loop()
    if type(loop).__module__.startswith("uvloop"):
        pytest.skip("libuv closes what comes meanwhile, without a word")
    said: list[object] = []
    loop.set_exception_handler(lambda _, context: said.append(context))
    host, _, port = listener.address.rpartition(":")
    clients = [socket.socket() for _ in range(8)]
    try:
        with no_descriptors_left():
            for client in clients:
                client.setblocking(False)
                client.connect_ex((host, int(port)))
            await until(lambda: said or log.records[1:])
            for _ in range(50):
                await asyncio.sleep(0)
            lines = [event for event in log.events() if event == "listener.accept_failed"]
            assert len(lines) + len(said) <= len(clients)
        await until(lambda: len(broker.connections) == len(clients) or said)
    finally:
        for client in clients:
            client.close()
