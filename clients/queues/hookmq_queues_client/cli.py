"""The command ``hookmq-worker``."""

import argparse
import asyncio
import importlib
import logging
import os
import signal
import ssl
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from hookmq_queues_client.client import Client
from hookmq_queues_client.errors import QueueClientError
from hookmq_queues_client.worker import BACKOFF, Handler, Worker

_EPILOG = """\
The function gets a hookmq_queues_client.Message. If it returns, the message is acknowledged. If it raises Reject, the
message becomes a dead letter. If it raises another exception, the message is delivered again.

SIGTERM and SIGINT stop the worker when the running handlers have returned. A second one stops it at once.

examples:
  hookmq-worker tasks:resize --queue jobs
  hookmq-worker tasks:resize --queue jobs --group images --concurrency 8 --url mqtts://broker.example.com
"""


class UsageError(Exception):
    """Raised for a wrong option."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    made = argparse.ArgumentParser(
        "hookmq-worker",
        description="Call a Python function with each message of a queue.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("handler", metavar="MODULE:FUNCTION", help="async def, or a function that runs in a thread")
    add("--queue", required=True, metavar="NAME", help="queue to take messages from")
    add("--group", metavar="NAME", help="group of the queue (default: its first)")
    add("--concurrency", type=int, default=1, metavar="N", help="messages at a time (default: 1)")
    add(
        "--prefetch",
        type=int,
        metavar="N",
        help="messages that the worker may have (default: --concurrency)",
    )
    add("--timeout", type=float, metavar="SECONDS", help="time for one message; needs async def")
    add(
        "--retries",
        type=int,
        metavar="N",
        help="reject a message after this many further deliveries",
    )
    add(
        "--backoff",
        type=float,
        default=BACKOFF.initial,
        metavar="SECONDS",
        help="delay after the first failure, which doubles with each (default: %(default)g)",
    )
    add(
        "--grace",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="time to finish after SIGTERM (default: 30)",
    )
    connection = made.add_argument_group("connection").add_argument
    connection(
        "--url",
        default="mqtt://127.0.0.1:1883",
        help="mqtt://HOST[:PORT] or mqtts (default: %(default)s)",
    )
    connection("-i", "--id", metavar="ID", help="client id; consumers add -1 (default: random)")
    connection("-u", "--username", help="user name")
    connection(
        "--password-file",
        type=Path,
        metavar="FILE",
        help="read the password from the first line of FILE",
    )
    connection("--cafile", type=Path, metavar="FILE", help="CA certificates to trust, PEM")
    connection("--cert", type=Path, metavar="FILE", help="client certificate, PEM")
    connection(
        "--key", type=Path, metavar="FILE", help="private key of the client certificate, PEM"
    )
    made.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="(default: info)",
    )
    return made


def load_handler(name: str) -> Handler:
    """Return the function that ``MODULE:FUNCTION`` names. Raises UsageError if there is none."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise UsageError(f"{name!r} is not of the form MODULE:FUNCTION, such as tasks:resize")
    sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise UsageError(
            f"there is no module {module_name!r} in {os.getcwd()} or on Python's path"
        ) from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise UsageError(f"the module {module_name!r} has no {path!r}") from None
    if not callable(found):
        raise UsageError(f"{name} is not a function: {type(found).__name__}")
    return cast(Handler, found)


def tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS context that the options ask for. Raises UsageError if a file cannot be used."""
    if options.key is not None and options.cert is None:
        raise UsageError("--key needs --cert")
    if options.cafile is None and options.cert is None:
        return None
    path = options.cafile
    try:
        context = ssl.create_default_context(cafile=options.cafile)
        if options.cert is not None:
            path = options.cert
            context.load_cert_chain(options.cert, options.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{path}: {error}") from None
    return context


def password(path: Path | None) -> str | None:
    """Return the first line of a file. Raises UsageError if it cannot be read."""
    if path is None:
        return None
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    if not lines:
        raise UsageError(f"{path} is empty: its first line must be the password")
    return lines[0]


async def work(options: argparse.Namespace) -> int:
    """Run the worker until a signal. Return the number of handlers that did not finish."""
    try:
        client = Client(
            options.url,
            username=options.username,
            password=password(options.password_file),
            tls=tls_context(options),
            client_id=options.id,
        )
        worker = Worker(
            client.queue(options.queue),
            load_handler(options.handler),
            group=options.group,
            concurrency=options.concurrency,
            prefetch=options.prefetch,
            timeout=options.timeout,
            retries=options.retries,
            backoff=replace(BACKOFF, initial=options.backoff),
            grace=options.grace,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(worker.run())
    signals = 0

    def stop() -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            worker.stop()
        else:
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    async with client:
        return await running


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0 after a signal, 2 for wrong options, and 1 if the broker refused or a handler did not
    finish.
    """
    options = parser().parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
        stream=sys.stderr,
    )
    try:
        unfinished = asyncio.run(work(options))
    except UsageError as error:
        print(f"hookmq-worker: {error}", file=sys.stderr)
        return 2
    except (QueueClientError, OSError) as error:
        print(f"hookmq-worker: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        unfinished = 1
    if unfinished:
        # A thread that still runs would keep the process. Its message is back in the queue.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
