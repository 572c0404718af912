"""``hookmq queues``: manage the queues of a running broker from a terminal."""

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from hookmq.cli_api import count, seconds
from hookmq.plugin import ConfigError, HookMQError
from hookmq_toolkit.yaml_places import parse

from hookmq_admin.api_client import DEFAULT_URL, TOKEN, ApiClient, RequestRefused, add_options, part
from hookmq_admin.cli import run_command
from hookmq_admin.tables import print_fields, print_table, shown

EXAMPLES: Final = f"""\
examples:
  hookmq queues list --token-file admin.token
  hookmq queues create jobs --set groups=[work] --set max_messages=10000
  hookmq queues peek failed --limit 5
  hookmq queues pause jobs --group work
  hookmq queues redrive failed --reason delivery-limit --rate 50
  hookmq queues seek events --group etl 2026-01-31T06:00:00Z
  hookmq queues delete jobs --force

The token is in --token-file or ${TOKEN}. The plugin admin is at {DEFAULT_URL} unless --url names another place.
exit codes: 0 done, 1 refused, stopped or not reachable, 2 usage error"""
INTERVAL: Final = 0.5
"""Seconds between requests for a redrive's progress."""
LIST: Final = (
    "name", "type", "made_by", "messages", "delayed", "bytes", "oldest", "consumers", "unacknowledged", "redelivered",
    "state",
)  # fmt: skip
GROUPS: Final = (
    "name", "unsettled", "unacknowledged", "delayed", "next", "oldest", "consumer_count", "stalled", "paused",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Manage the queues of a running broker."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(
        name: str,
        help: str,
        run: Callable[[ApiClient, argparse.Namespace], Any],
        queue: bool = True,
    ) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = commands.add_parser(
            name, help=help, description=f"{help}."
        )
        add_options(found)
        if queue:
            found.add_argument("queue", help="the name of the queue")
        found.set_defaults(run=lambda arguments: run_command(run, arguments))
        return found

    command("list", "List the queues", _list, queue=False)
    command("show", "Print one queue with its settings and counts", _show)
    command(
        "groups", "List the groups of a queue, or the consumers of one group", _groups
    ).add_argument("--group", help="list the consumers of this group")
    peek = command("peek", "Print messages without delivering them", _peek)
    peek.add_argument("--group", default="", help="the group (default: the first one)")
    peek.add_argument("--after", type=_offset, help="only messages above this offset")
    peek.add_argument(
        "-n", "--limit", type=count, default=20, help="maximum number of messages (default: 20)"
    )
    purge = command("purge", "Drop all messages that no consumer has", _purge)
    purge.add_argument("--group", help="only for this group (default: for all groups)")
    purge.add_argument("--force", action="store_true", help="do not ask")
    for name, help in (
        ("pause", "Pause the deliveries, even after a restart"),
        ("resume", "Resume the deliveries"),
    ):
        one = command(name, help, _pause)
        one.set_defaults(action=name)
        one.add_argument("--group", help="only those of this group")
    _add_redrive(command)
    seek = command("seek", "Move a group of a stream to a position", _seek)
    seek.add_argument("--group", required=True, help="the group")
    seek.add_argument(
        "position", help="first, last, next, an offset, a time as ISO 8601, or @ and epoch seconds"
    )
    create = command("create", "Create a queue", _create)
    change = command("change", "Change some settings of a queue", _change)
    for one in (create, change):
        one.add_argument(
            "--set", action="append", default=[], type=_pair, metavar="KEY=VALUE", dest="pairs",
            help="a setting, with a value as in YAML; may be repeated",
        )  # fmt: skip
        one.add_argument("--file", type=Path, help="YAML file with settings; - reads stdin")
    delete = command("delete", "Delete a queue, if it is empty", _delete)
    delete.add_argument("--force", action="store_true", help="even if it has unsettled messages")


def _add_redrive(command: Callable[..., argparse.ArgumentParser]) -> None:
    redrive = command(
        "redrive", "Move dead letters back to the queues that they come from", _redrive
    )
    add = redrive.add_argument
    add("--group", help="the group in which they are settled (default: the first one)")
    add("--from", dest="source", metavar="QUEUE", help="only dead letters of this queue")
    add("--topic", metavar="FILTER", help="only those published to topics that match this filter")
    add("--reason", help="only those with this reason: delivery-limit, rejected or expired")
    add(
        "--older-than",
        type=seconds,
        metavar="TIME",
        help="only those of at least this age, such as 2h",
    )
    add(
        "--rate",
        type=_rate,
        default=1000.0,
        help="maximum number of messages per second (default: 1000)",
    )
    add("-n", "--limit", type=count, help="most messages")
    choice = redrive.add_mutually_exclusive_group()
    choice.add_argument("--no-wait", action="store_true", help="do not wait for the end")
    choice.add_argument("--status", action="store_true", help="print the progress of a redrive")
    choice.add_argument("--stop", action="store_true", help="stop a redrive")


def _offset(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not an offset")
    return int(text)


def _rate(text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0.01 <= found <= 1e6:
        raise argparse.ArgumentTypeError(f"expected a number from 0.01 to 1000000, not {text!r}")
    return found


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not re.fullmatch(r"[a-z_]+", key):
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, not {text!r}")
    try:
        return key, _plain(value, "--set")
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _plain(text: str, source: str) -> Any:
    """Return a YAML value. Raises ConfigError."""
    found = parse(text, source)
    return None if found is None else found.value


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    found: Any = {}
    if arguments.file is not None:
        try:
            text = (
                sys.stdin.read()
                if str(arguments.file) == "-"
                else arguments.file.read_text("utf-8")
            )
        except (OSError, UnicodeDecodeError) as error:
            raise HookMQError(f"option --file: {error}") from None
        found = _plain(text, str(arguments.file)) or {}
        if not isinstance(found, dict):
            raise ConfigError(f"{arguments.file}: expected a mapping of settings")
    return {**found, **dict(arguments.pairs)}


def _path(arguments: argparse.Namespace) -> str:
    return f"/queues/{part(arguments.queue)}"


def _list(api: ApiClient, arguments: argparse.Namespace) -> None:
    items = api.ask("GET", "/queues")["items"]
    if arguments.json:
        print(json.dumps(items, indent=2))
        return
    for one in items:
        groups = one["groups"]
        one["consumers"] = sum(group["consumer_count"] for group in groups)
        one["unacknowledged"] = sum(group["unacknowledged"] for group in groups)
        one["redelivered"] = one["counts"].get("redelivered", 0)
        words = [
            "paused" if one["paused"] else "",
            "full" if one["full"] else "",
            *(
                f"{group['name']} paused"
                for group in groups
                if group["paused"] and not one["paused"]
            ),
            *(f"{group['name']} stalled" for group in groups if group["stalled"]),
        ]
        one["state"] = ", ".join(filter(None, words)) or "-"
        one["oldest"] = _age(one["oldest"])
    print_table(items, LIST)


def _age(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}s"


def _show(api: ApiClient, arguments: argparse.Namespace) -> Any:
    found = api.ask("GET", _path(arguments))
    if not arguments.json:
        groups = found.pop("groups")
        print_fields({**found, "oldest": _age(found["oldest"])})
        print()
        _print_groups(groups)
        return None
    return found


def _print_groups(groups: list[dict[str, Any]]) -> None:
    print_table([{**one, "oldest": _age(one["oldest"])} for one in groups], GROUPS)


def _groups(api: ApiClient, arguments: argparse.Namespace) -> None:
    groups = api.ask("GET", _path(arguments))["groups"]
    if arguments.group is None:
        if arguments.json:
            print(json.dumps(groups, indent=2))
        else:
            _print_groups(groups)
        return
    chosen = next((one for one in groups if one["name"] == arguments.group), None)
    if chosen is None:
        known = ", ".join(one["name"] for one in groups)
        raise RequestRefused(f"the queue has no group {arguments.group!r}, only: {known}")
    if arguments.json:
        print(json.dumps(chosen["consumers"], indent=2))
        return
    print_table(
        chosen["consumers"],
        ("client_id", "filter", "active", "unacknowledged", "timed_out", "stalled"),
    )
    left = chosen["consumer_count"] - len(chosen["consumers"])
    if left > 0:
        print(f"# and {left} more", file=sys.stderr)


def _peek(api: ApiClient, arguments: argparse.Namespace) -> None:
    items = list(_peeked(api, arguments))
    if arguments.json:
        print(json.dumps(items, indent=2))
        return
    for one in items:
        payload = one.get("payload", {})
        one["payload"] = payload.get("text", payload.get("base64", ""))
        one.update(_dead_letter(one))
    columns = ["offset", "state", "deliveries", "client_id", "topic", "bytes", "payload"]
    if any("reason" in one for one in items):
        columns[4:4] = ["from", "reason"]
    print_table(items, columns)
    if not items and not arguments.group:
        print("# none in the first group; --group names another one", file=sys.stderr)


def _dead_letter(message: Any) -> dict[str, str]:
    """Return where a dead letter comes from and why it was rejected. For any other message, return an empty dict."""
    pairs = (message.get("properties") or {}).get("user_properties") or ()
    found = {key: value for key, value in pairs if key.startswith("dead-letter-")}
    if "dead-letter-reason" not in found:
        return {}
    text = found.get("dead-letter-description")
    why = found["dead-letter-reason"] + (f": {text}" if text else "")
    return {"from": found.get("dead-letter-id", "-"), "reason": why}


def _peeked(api: ApiClient, arguments: argparse.Namespace) -> Iterator[Any]:
    after, left = arguments.after, arguments.limit
    while left > 0:
        query = {"group": arguments.group, "after": after, "limit": min(left, 100)}
        page = api.ask("GET", _path(arguments) + "/messages", query)
        yield from page["items"]
        left -= len(page["items"])
        after = page["after"]
        if after is None:
            return


def _purge(api: ApiClient, arguments: argparse.Namespace) -> Any:
    what = (
        f"the group {arguments.group} of {arguments.queue}" if arguments.group else arguments.queue
    )
    if not arguments.force and not _asked(f"Drop all messages of {what} that no consumer has?"):
        raise RequestRefused("nothing was dropped; use --force to drop them without a question")
    return api.ask("DELETE", _path(arguments) + "/messages", {"group": arguments.group})


def _asked(question: str) -> bool:
    if not sys.stdin.isatty():
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _pause(api: ApiClient, arguments: argparse.Namespace) -> Any:
    body = {"group": arguments.group}
    return api.ask("POST", f"{_path(arguments)}/{arguments.action}", body=body)


def _seek(api: ApiClient, arguments: argparse.Namespace) -> Any:
    body = {"group": arguments.group, "position": arguments.position}
    return api.ask("POST", _path(arguments) + "/seek", body=body)


def _create(api: ApiClient, arguments: argparse.Namespace) -> Any:
    body = {"name": arguments.queue, "settings": _settings(arguments)}
    return _made(api.ask("POST", "/queues", body=body), arguments)


def _change(api: ApiClient, arguments: argparse.Namespace) -> Any:
    body = {"settings": _settings(arguments)}
    return _made(api.ask("PATCH", _path(arguments), body=body), arguments)


def _made(found: Any, arguments: argparse.Namespace) -> Any:
    return found if arguments.json else {"name": found["name"], **found["settings"]}


def _delete(api: ApiClient, arguments: argparse.Namespace) -> Any:
    return api.ask("DELETE", _path(arguments), {"force": arguments.force})


def _redrive(api: ApiClient, arguments: argparse.Namespace) -> Any:
    path = _path(arguments) + "/redrive"
    if arguments.status:
        return api.ask("GET", path)
    if arguments.stop:
        return api.ask("DELETE", path)
    names = ("group", "topic", "reason", "older_than", "rate", "limit")
    body = {name: getattr(arguments, name) for name in names}
    found = api.ask("POST", path, body={**body, "queue": arguments.source})
    if arguments.no_wait:
        return found
    shows = sys.stderr.isatty()
    try:
        while found["state"] == "running":
            if shows:
                print(f"\r{_progress(found)}\x1b[K", end="", file=sys.stderr, flush=True)
            time.sleep(INTERVAL)
            found = api.ask("GET", path)
    except KeyboardInterrupt:
        api.ask("DELETE", path)
        print("\nThe redrive was stopped. Messages that were moved stay moved.", file=sys.stderr)
        return 130
    if shows:
        print("\r\x1b[K", end="", file=sys.stderr)
    if found["state"] != "done":
        raise RequestRefused(
            f"the redrive {found['state']}: {_progress(found)} {found['note']}".rstrip()
        )
    return found


def _progress(found: Any) -> str:
    waiting = f", waiting for room in {shown(found['waiting_for'])}" if found["waiting_for"] else ""
    text = f"{found['moved']} moved, {found['skipped']} skipped, {found['examined']} of {found['total']} examined"
    return text + waiting
