"""Implement `hookmq webhook test`, `listen`, `schema`, `secret` and `key`, for developers of receivers."""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiohttp import web
from hookmq.plugin import BindError, ConfigError, HookMQError
from hookmq_toolkit.files import write_secret
from hookmq_webhook_receiver import (
    Ledger,
    Received,
    VerificationError,
    new_private_key,
    new_secret,
    public_key,
    read,
    verify,
)
from hookmq_webhook_receiver.keys import parse_key

from hookmq_webhook.catalog import CATALOG
from hookmq_webhook.dispatch import Verdict
from hookmq_webhook.filters import select
from hookmq_webhook.http_connection import Response
from hookmq_webhook.instances import instance_of
from hookmq_webhook.plugin import WebhookPlugin
from hookmq_webhook.queues import Numbered
from hookmq_webhook.reference import FOLDER
from hookmq_webhook.samples import sample
from hookmq_webhook.sender import Sender

ANSWER: Final = 200
"""Maximum number of response characters to print."""
LARGEST: Final = 64 << 20
"""Largest request that `listen` accepts, in bytes."""

# test -------------------------------------------------------------------------------------------------------------------


class Probe(Sender):
    """A sender that remembers the status and the text of the last response."""

    status = 0
    words = ""

    def count(self, response: Response) -> None:
        """Count and remember a response."""
        super().count(response)
        self.status = response.status
        text = response.body[:ANSWER].decode("utf-8", "replace")
        self.words = text + ("..." if len(response.body) > ANSWER else "")


def run_test(arguments: argparse.Namespace) -> int:
    """Run `hookmq webhook test`."""
    instance = instance_of(arguments)
    chosen = select(arguments.event or instance.config.events)
    names = [name for name in CATALOG if name in chosen]
    if not names:
        raise ConfigError("there is no sample of these events", hint="--event message.published")
    return asyncio.run(_test(instance, names))


async def _test(instance: WebhookPlugin, names: list[str]) -> int:
    probe = Probe(instance.config, instance.requests, time.monotonic)
    epoch = f"test{os.urandom(6).hex()}"
    code = 0
    try:
        for number, name in enumerate(names):
            event = sample(name, time.time())
            probe.status, probe.words = 0, ""
            began = time.monotonic()
            answer = await probe.send([Numbered(number, event, 0, f"{epoch}-{number}")])
            took = f"{(time.monotonic() - began) * 1000:.0f} ms"
            shown = f", {json.dumps(probe.words)}" if probe.words else ""
            if answer.verdict is Verdict.ARRIVED:
                print(f"{name}: arrived, {probe.status}, {took}{shown}")
            else:
                code = 1
                print(f"{name}: failed, {answer.reason}, {took}{shown}")
    finally:
        await probe.close()
    return code


# listen -----------------------------------------------------------------------------------------------------------------


def run_listen(arguments: argparse.Namespace) -> int:
    """Run `hookmq webhook listen`."""
    secrets = secrets_of(arguments.secret_file) if arguments.secret_file else []
    if not 200 <= arguments.status <= 599:
        raise ConfigError("option --status: expected 200 to 599")
    asyncio.run(_listen(arguments, secrets))
    return 0


def secrets_of(path: Path) -> list[str]:
    """Return the secrets in a file. Raises ConfigError with a message that does not contain the secrets."""
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
        for line in lines:
            parse_key(line)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {_problem(error)}") from None
    if not lines:
        raise ConfigError(f"{path}: contains no secret")
    return lines


def _problem(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return "not a text file" if isinstance(error, UnicodeDecodeError) else str(error)


async def _listen(arguments: argparse.Namespace, secrets: list[str]) -> None:
    over = asyncio.Event()
    ledger = Ledger()
    left = arguments.count

    async def receive(request: web.Request) -> web.StreamResponse:
        nonlocal left
        try:
            body = await request.read()
        except web.HTTPRequestEntityTooLarge:
            return web.Response(status=413)
        status = arguments.status
        for line in told(request.headers, body, secrets, ledger):
            if line is None:
                status = 401
            else:
                print(line, flush=True)
        left -= 1
        if left == 0:
            over.set()
        return web.Response(status=status)

    application = web.Application(client_max_size=LARGEST)
    application.router.add_route("*", "/{tail:.*}", receive)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, arguments.host, arguments.port)
        try:
            await site.start()
        except (OSError, OverflowError) as error:
            place = f"{arguments.host}:{arguments.port}"
            raise BindError(place, str(error)) from None
        host, port = runner.addresses[0][:2]
        print(f"listening on http://{host}:{port}/", flush=True)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, over.set)
        await over.wait()
    finally:
        await runner.cleanup()


def told(
    headers: Mapping[str, str], body: bytes, secrets: list[str], ledger: Ledger
) -> list[str | None]:
    """Return the lines to print for a request, in printable ASCII.

    If the list contains None, the request must be refused.
    """
    if secrets:
        try:
            verify(headers, body, secrets)
        except VerificationError as error:
            return [ascii(f"refused: {error}")[1:-1], None]
    try:
        events = read(headers, body)
    except (ValueError, RecursionError) as error:
        return [ascii(f"not an event of HookMQ: {error}")[1:-1]]
    return [_shown(event, ledger, bool(secrets)) for event in events]


def _shown(event: Received, ledger: Ledger, verified: bool) -> str:
    notes = ["verified" if verified else "not verified"]
    if not ledger.take(event):
        notes.append("repeated")
    missing = len(ledger.missing())
    if missing:
        notes.append(f"{missing} missing")
    head = (
        f"{event.time} {event.type} {event.id} (sequence {event.sequence} of epoch {event.epoch})"
    )
    if event.subject:
        head += f" {event.subject}"
    about = {**event.extra, "data": event.data}
    text = json.dumps(about, indent=2, default=lambda data: f"<{len(data)} bytes>")
    return f"{ascii(head)[1:-1]} ({', '.join(notes)})\n{text}"


# schema, secret ---------------------------------------------------------------------------------------------------------


def run_schema(arguments: argparse.Namespace) -> int:
    """Run `hookmq webhook schema`."""
    name = arguments.event
    if name is None:
        for kind in CATALOG.values():
            print(f"{kind.name:24} {kind.help}")
        return 0
    if name not in CATALOG:
        select([name.replace("*", "")])  # raises an error that suggests the closest name
        raise HookMQError(f"{name!r} has no schema")
    sys.stdout.write((FOLDER / f"{name}.json").read_text("utf-8"))
    return 0


def run_key(arguments: argparse.Namespace) -> int:
    """Run `hookmq webhook key`."""
    path: Path | None = arguments.public
    if path is not None:
        try:
            print(public_key(path.read_text("utf-8")))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path}: {_problem(error)}") from None
        return 0
    private = new_private_key()
    if arguments.output is None:
        print(private)
    else:
        write_secret(arguments.output, f"{private}\n")
    print(public_key(private))
    return 0


def run_secret(arguments: argparse.Namespace) -> int:
    """Run `hookmq webhook secret`."""
    if arguments.output is None:
        print(new_secret())
    else:
        write_secret(arguments.output, f"{new_secret()}\n")
    return 0
