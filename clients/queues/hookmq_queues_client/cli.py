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
from typing import Final, cast

from hookmq_queues_client.client import Client
from hookmq_queues_client.errors import QueueClientError
from hookmq_queues_client.options import Backoff
from hookmq_queues_client.worker import BACKOFF, Handler, Worker

_EPILOG = """\
The function gets a hookmq_queues_client.Message. If it returns, the message is acknowledged. If it raises Reject, the
message becomes a dead letter. If it raises another exception, the message is delivered again.

SIGTERM and SIGINT stop the worker when the running handlers have returned. A second one stops it at once.

examples:
  hookmq-worker tasks:resize --queue jobs
  hookmq-worker tasks:resize --queue jobs --group images --concurrency 8 --url mqtts://broker.example.com
"""


def _backoff(text: str) -> Backoff | None:
    try:
        return None if text == "group" else replace(BACKOFF, initial=float(text))
    except ValueError:
        most = f"{BACKOFF.maximum:g}"
        raise argparse.ArgumentTypeError(
            f"expected seconds from 0 to {most} or group, not {text!r}"
        ) from None


_WORK: Final = (
    ("--group", "NAME", str, None, "group of the queue (default: its first)"),
    ("--concurrency", "N", int, 1, "messages at a time (default: 1)"),
    ("--prefetch", "N", int, None, "messages that the worker may have (default: --concurrency)"),
    ("--timeout", "SECONDS", float, None, "time for one message; needs async def"),
    ("--retries", "N", int, None, "reject a message after this many further deliveries"),
    ("--backoff", "SECONDS", _backoff, BACKOFF,
     "longest delay after the first failure, then doubled (default: 1); group: the backoff of the group"),
    ("--grace", "SECONDS", float, 30.0, "time for running handlers to finish after SIGTERM (default: 30)"),
)  # fmt: skip
_CONNECTION: Final = (
    ("--url", "URL", str, "mqtt://127.0.0.1:1883", "mqtt://HOST[:PORT] or mqtts (default: mqtt://127.0.0.1:1883)"),
    ("--id", "ID", str, None, "client id; consumers add -1 (default: random)"),
    ("--username", "USERNAME", str, None, "user name"),
    ("--password-file", "FILE", Path, None, "read the password from the first line of FILE"),
    ("--cafile", "FILE", Path, None, "CA certificates to trust, PEM"),
    ("--cert", "FILE", Path, None, "client certificate, PEM"),
    ("--key", "FILE", Path, None, "private key of the client certificate, PEM"),
)  # fmt: skip
_LEVELS: Final = ("debug", "info", "warning", "error")


def parser() -> argparse.ArgumentParser:
    """Return the option parser."""
    made = argparse.ArgumentParser(
        "hookmq-worker", description="Call a Python function with each message of a queue.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = made.add_argument
    add("handler", metavar="MODULE:FUNCTION", help="async def, or a function that runs in a thread")
    add("--queue", required=True, metavar="NAME", help="queue to take messages from")
    add("--log-level", choices=_LEVELS, default="info", help="(default: info)")
    for group, options in ((made, _WORK), (made.add_argument_group("connection"), _CONNECTION)):
        for name, metavar, kind, default, text in options:
            group.add_argument(name, metavar=metavar, type=kind, default=default, help=text)
    return made


def load_handler(name: str) -> Handler:
    """Return the function that ``MODULE:FUNCTION`` names. Raises ValueError if there is none."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        raise ValueError(f"{name!r} is not of the form MODULE:FUNCTION, such as tasks:resize")
    sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise
        raise ValueError(
            f"there is no module {module_name!r} in {os.getcwd()} or on Python's path"
        ) from None
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ValueError(f"the module {module_name!r} has no {path!r}") from None
    if not callable(found):
        raise ValueError(f"{name} is not a function: {type(found).__name__}")
    return cast(Handler, found)


def tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """Return the TLS context that the options describe. Raises ValueError if a file cannot be used."""
    if options.key is not None and options.cert is None:
        raise ValueError("--key needs --cert")
    if options.cafile is None and options.cert is None:
        return None
    path = options.cafile
    try:
        context = ssl.create_default_context(cafile=options.cafile)
        if options.cert is not None:
            path = options.cert
            context.load_cert_chain(options.cert, options.key)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"{path}: {error}") from None
    return context


def password(path: Path | None) -> str | None:
    """Return the first line of a file. Raises ValueError if it cannot be read."""
    if path is None:
        return None
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not lines:
        raise ValueError(f"{path} is empty: its first line must be the password")
    return lines[0]


def make_worker(options: argparse.Namespace) -> tuple[Client, Worker]:
    """Return the client and the worker that the options describe. Raises ValueError for an invalid option."""
    client = Client(
        options.url, username=options.username, password=password(options.password_file),
        tls=tls_context(options), client_id=options.id,
    )  # fmt: skip
    return client, Worker(
        client.queue(options.queue), load_handler(options.handler), group=options.group,
        concurrency=options.concurrency, prefetch=options.prefetch, timeout=options.timeout,
        retries=options.retries, backoff=options.backoff, grace=options.grace,
    )  # fmt: skip


async def work(client: Client, worker: Worker) -> int:
    """Run the worker until a signal arrives. Return the number of handlers that did not finish."""
    loop = asyncio.get_running_loop()
    running = asyncio.create_task(worker.run())
    then = iter((worker.stop,))
    for number in (signal.SIGTERM, signal.SIGINT):
        # The first signal stops the worker. Any further signal cancels it.
        loop.add_signal_handler(number, lambda: next(then, running.cancel)())
    async with client:
        return await running


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0 after a signal, 2 for invalid options, and 1 if the broker refused something or a
    handler did not finish.
    """
    options = parser().parse_args(arguments)
    form = "%(asctime)s %(levelname)s %(message)s"
    logging.basicConfig(level=options.log_level.upper(), format=form, stream=sys.stderr)
    try:
        client, worker = make_worker(options)
    except ValueError as error:
        print(f"hookmq-worker: {error}", file=sys.stderr)
        return 2
    try:
        unfinished = asyncio.run(work(client, worker))
    except (QueueClientError, OSError) as error:
        print(f"hookmq-worker: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        unfinished = 1
    if unfinished:
        # A thread that is still running would keep the process alive. Its message is already back in the queue.
        logging.shutdown()
        sys.stderr.flush()
        os._exit(1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
