"""The process that serves readers: ``python -P -m hookmq_spark_sink.reader``, started by `hookmq_spark_sink.process`.

It shares the streams' files with the broker and nothing else: no interpreter lock and no event loop. What it is to do
comes as one line of JSON on its standard input (so that no token is seen in a list of processes); that it listens, and
then what it counted, goes out as lines of JSON. It ends when its standard input does: with the broker.
"""

import asyncio
import errno
import json
import os
import signal
import ssl
import sys
from contextlib import suppress
from dataclasses import fields
from typing import Any, Final

from aiohttp import web
from hookmq.errors import ConfigError
from hookmq.server.settings import TlsSettings
from hookmq.server.tls import server_context

from hookmq_spark_sink.api import Api
from hookmq_spark_sink.index import raise_file_limit

TELL_EVERY: Final = 1.0
TRIES: Final = 50
AGAIN: Final = 0.1
NICE: Final = 5
"""Beside the broker on a busy machine, the broker goes first."""


def tell(**what: Any) -> None:
    """One line to the broker."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def context_of(given: dict[str, Any] | None) -> ssl.SSLContext | None:
    """For https. Raises ConfigError."""
    if given is None:
        return None
    known = {one.name for one in fields(TlsSettings)}
    return server_context(TlsSettings(**{k: v for k, v in given.items() if k in known}))


async def listen(
    runner: web.AppRunner, host: str, port: int, context: ssl.SSLContext | None
) -> None:
    """Listen there. Raises OSError. Who starts at once after a broker was killed may find its reader still there,
    which lets go as soon as it notices: an address that is taken is tried `TRIES` times, each `AGAIN` seconds later."""
    for left in reversed(range(TRIES)):
        try:
            await web.TCPSite(runner, host, port, ssl_context=context).start()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not left:
                raise
            await asyncio.sleep(AGAIN)
        else:
            return


async def serve(given: dict[str, Any]) -> int:
    """Until standard input ends. The exit code."""
    api = Api(given)
    ended = asyncio.Event()
    runner = web.AppRunner(
        api.application(), access_log=None, shutdown_timeout=0.5, handler_cancellation=True
    )
    await runner.setup()
    try:
        context = context_of(given["tls"])
        await listen(runner, given["host"], given["port"], context)
    except (OSError, ConfigError, ssl.SSLError) as error:
        tell(failed=getattr(error, "strerror", None) or str(error))
        await runner.cleanup()
        return 1
    tell(port=runner.addresses[0][1])
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), lambda: None if os.read(0, 4096) else ended.set())
    before: dict[str, Any] = {}
    while not ended.is_set():
        with suppress(TimeoutError):
            async with asyncio.timeout(TELL_EVERY):
                await ended.wait()
        counted = dict(vars(api.counts))
        if counted != before:
            before = counted
            try:
                tell(counts=counted)
            except OSError:
                break
    await runner.cleanup()
    return 0


def main() -> int:
    """The exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Signals to the whole group are the broker's; it ends this by closing the pipe.
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICE)
    raise_file_limit()
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            return 0
        line += part
    return asyncio.run(serve(json.loads(line)))


if __name__ == "__main__":
    raise SystemExit(main())
