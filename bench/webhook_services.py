"""The services that bench.webhook sends events to. ``python -m bench.webhook_services KIND`` runs one of them.

It prints the port of the service.
"""

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from urllib.request import urlopen


class Taker(asyncio.Protocol):
    """A minimal service. It responds to every POST with 204."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            head = self.data[:end].lower()
            at = head.index(b"content-length:") + 15
            size = int(head[at:].split(b"\r\n", 1)[0])
            if len(self.data) < end + 4 + size:
                return
            self.data = self.data[end + 4 + size :]
            self.transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


async def take() -> None:
    """Run the service and print its port."""
    server = await asyncio.get_running_loop().create_server(Taker, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def services() -> Iterator[dict[str, int]]:
    """Run a service of each kind while the block runs. Yield their ports."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.webhook_services", "take"], stdout=subprocess.PIPE, text=True
    )
    with closing(socket.socket()) as silent, closing(socket.socket()) as dead:
        silent.bind(("127.0.0.1", 0))
        silent.listen(100)
        dead.bind(("127.0.0.1", 0))
        try:
            assert process.stdout is not None
            yield {
                "live": int(process.stdout.readline()),
                "silent": silent.getsockname()[1],
                "dead": dead.getsockname()[1],
            }
        finally:
            process.terminate()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@contextmanager
def receiver() -> Iterator[tuple[int, Callable[[], int]]]:
    """Run an aiohttp service that accepts everything. Yield its port, and a function that returns how many requests it
    has received.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.webhook_services", "receive"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    port = int(process.stdout.readline())

    def count() -> int:
        with urlopen(f"http://127.0.0.1:{port}/count") as answer:
            return int(answer.read())

    try:
        yield port, count
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


async def receive() -> None:
    """Run that service, and print its port."""
    from aiohttp import web

    received = 0

    async def take(request: web.Request) -> web.Response:
        nonlocal received
        body = await request.read()
        # A batch is an array of events.
        received += len(json.loads(body)) if body[:1] == b"[" else 1
        return web.Response(status=204)

    async def count(request: web.Request) -> web.Response:
        return web.Response(text=str(received))

    application = web.Application()
    application.router.add_post("/", take)
    application.router.add_get("/count", count)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run({"take": take, "receive": receive}[sys.argv[1]]())
