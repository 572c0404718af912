"""Run the process that sends one plugin instance's events.

`hookmq_webhook.process` starts ``python -P -m hookmq_webhook.child FD``. FD is the file descriptor of a socket, on which
the process receives events and returns verdicts. The process ends when the broker ends.
"""

import asyncio
import pickle
import signal
import socket
import sys
import time
from typing import Any, cast

from hookmq_webhook.config import WebhookConfig
from hookmq_webhook.events import Event
from hookmq_webhook.filters import keep_fields
from hookmq_webhook.process import Frames, frame
from hookmq_webhook.queues import Numbered
from hookmq_webhook.requests import request_maker
from hookmq_webhook.sender import Sender


class Child(asyncio.Protocol):
    """Passes events from the socket to a `Sender`, and returns the sender's verdicts."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._frames = Frames()
        self._sender: Sender | None = None
        self._leaving: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is unrelated

    def data_received(self, data: bytes) -> None:
        for value in self._frames.feed(data):
            if isinstance(value, bytes):
                self._use(*pickle.loads(value))
            else:
                task = asyncio.get_running_loop().create_task(self._send(*value))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def _use(self, config: WebhookConfig, plugin_id: str) -> None:
        before = self._sender
        requests = request_maker(config, plugin_id, keep_fields(config.filters.fields))
        self._sender = Sender(config, requests, time.monotonic, time.time)
        if before is not None:
            task = asyncio.get_running_loop().create_task(self._retire(before, set(self._tasks)))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def _retire(self, sender: Sender, tasks: "set[asyncio.Task[None]]") -> None:
        """Close a sender after its requests in progress have finished."""
        if tasks:
            await asyncio.wait(tasks)
        await sender.close()

    async def _send(self, serial: int, rows: list[Any]) -> None:
        sender = self._sender
        assert sender is not None
        events = [Numbered(n, Event(*fields), size, id) for n, fields, size, id in rows]
        answer = await sender.send(events)
        counts = (sender.sent, sender.bytes, sender.statuses)
        sender.sent, sender.bytes, sender.statuses = 0, 0, {}
        if self._transport is not None:
            self._transport.write(
                frame((serial, answer.verdict.value, answer.reason, answer.after, counts))
            )

    async def close(self) -> None:
        """Cancel all requests in progress."""
        for task in (*self._tasks, *self._leaving):
            task.cancel()
        if self._sender is not None:
            await self._sender.close()


async def main(fd: int) -> None:
    """Send events until the broker closes the socket."""
    loop = asyncio.get_running_loop()
    _, child = await loop.create_unix_connection(Child, sock=socket.socket(fileno=fd))
    await child.ended
    await child.close()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(
            number, signal.SIG_IGN
        )  # the broker handles signals, and lets this process finish
    asyncio.run(main(int(sys.argv[1])))
