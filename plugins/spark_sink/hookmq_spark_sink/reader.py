"""The reader process: ``python -P -m hookmq_spark_sink.reader``, started by `hookmq_spark_sink.process`.

The process shares only the streams' files with the broker, not the interpreter lock or the event loop. It reads its
settings as one line of JSON from standard input, so that tokens do not appear in a process list. It writes lines of
JSON: first that it is listening, then its counters. It ends when its standard input closes, which happens when the
broker ends.
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
from hookmq.plugin import ConfigError
from hookmq.server_api import TlsSettings, server_context

from hookmq_spark_sink.api import Api
from hookmq_spark_sink.index import raise_file_limit

TELL_EVERY: Final = 1.0
TRIES: Final = 50
AGAIN: Final = 0.1
NICE: Final = 5
"""Niceness of the reader process, which gives the broker priority on a busy machine."""


def tell(**what: Any) -> None:
    """Send one line to the broker."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def context_of(given: dict[str, Any] | None) -> ssl.SSLContext | None:
    """Return the TLS context for https, or None for http. Raises ConfigError if the files cannot be used."""
    if given is None:
        return None
    known = {one.name for one in fields(TlsSettings)}
    return server_context(TlsSettings(**{k: v for k, v in given.items() if k in known}))


async def listen(
    runner: web.AppRunner, host: str, port: int, context: ssl.SSLContext | None
) -> None:
    """Listen on `host` and `port`. Raises OSError if that fails.

    The reader of a killed broker may hold the address for a moment. If the address is in use, try `TRIES` times, with
    `AGAIN` seconds in between.
    """
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
    """Serve requests until standard input ends. Return the exit code."""
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
        await api.let_go()
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
    """Run the reader process. Return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Only the broker handles signals to the process group. It ends this process by closing the pipe.
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
