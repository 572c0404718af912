"""Implement `hookmq webhook`, which lists and resends dead letters."""

import argparse
import asyncio
import json
import sys
import time
from datetime import UTC, datetime

from hookmq.plugin import ConfigError, StoreError

from hookmq_webhook.deadletter import Dead, DeadLetters, at_once, replay
from hookmq_webhook.dispatch import Answer, Verdict
from hookmq_webhook.instances import instance_of
from hookmq_webhook.plugin import WebhookPlugin
from hookmq_webhook.routes import shown


def _open(instance: WebhookPlugin) -> DeadLetters:
    folder = instance.dead_folder
    if folder is None:
        raise ConfigError(f"{instance.id} has no file of dead letters")
    dead = DeadLetters(folder, at_once, instance.config.dead_letter.max_bytes)
    dead.open()
    return dead


def run_list(arguments: argparse.Namespace) -> int:
    """Run `hookmq webhook deadletter list`."""
    try:
        dead = _open(instance_of(arguments))
    except StoreError as error:
        return _unusable(error)
    try:
        count = 0
        for one in dead.read():
            count += 1
            print(json.dumps(shown(one)) if arguments.json else _line(one))
        if not count and not arguments.json:
            print("none", file=sys.stderr)
    finally:
        dead.close()
    return 0


def run_replay(arguments: argparse.Namespace) -> int:
    """Run `hookmq webhook deadletter replay`."""
    instance = instance_of(arguments)
    try:
        dead = _open(instance)
        try:
            return asyncio.run(_replay(instance, dead, frozenset(arguments.only)))
        finally:
            dead.close()
    except (StoreError, OSError) as error:
        return _unusable(error)


def _unusable(error: Exception) -> int:
    print(f"hookmq webhook: {error}", file=sys.stderr)
    if "in use" in str(error):
        print("use the http listener of the running broker instead; see --help", file=sys.stderr)
    return 1


async def _replay(instance: WebhookPlugin, dead: DeadLetters, only: frozenset[str]) -> int:
    from hookmq_webhook.sender import Sender

    sender = Sender(instance.config, instance.requests, time.monotonic)
    total = len(only) or dead.waiting
    seen: set[str] = set()

    def told(one: Dead, answer: Answer) -> None:
        seen.add(one.id)
        if answer.verdict is not Verdict.ARRIVED:
            print(f"{one.id}: {answer.reason}", file=sys.stderr)
        if len(seen) % 100 == 0:
            print(f"{len(seen)} of {total}", file=sys.stderr)

    try:
        done = await replay(dead, sender.send, lambda one: not only or one.id in only, told)
    finally:
        await sender.close()
    unknown = sorted(only - seen) if not done.failed else []
    for id in unknown:
        print(f"{id}: not found", file=sys.stderr)
    left = dead.waiting
    print(f"{done.arrived} arrived, {done.failed} failed, {left} left")
    return 1 if done.failed or unknown else 0


def _line(one: Dead) -> str:
    when = datetime.fromtimestamp(one.time, UTC).isoformat(timespec="seconds")
    about = " ".join(filter(None, (one.event.client, one.event.topic)))
    tries = f"{one.attempts} attempt{'' if one.attempts == 1 else 's'}"
    return f"{when} {one.id} {one.event.type} {about}: {one.reason}, {tries}"
