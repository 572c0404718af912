"""``hookmq sinks``: manage the sinks and sources of a running broker from a terminal."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

from hookmq.cli_api import count

from hookmq_admin.api_client import DEFAULT_URL, TOKEN, ApiClient, RequestRefused, add_options, part
from hookmq_admin.cli import run_command
from hookmq_admin.tables import print_fields, print_table

EXAMPLES: Final = f"""\
examples:
  hookmq sinks list --token-file admin.token
  hookmq sinks test plant
  hookmq sinks pause plant
  hookmq sinks seek plant 2026-01-31T06:00:00Z
  hookmq sinks purge plant
  hookmq sinks deliveries webhook --event 4f1c-17
  hookmq sinks dead-letters plant --limit 5
  hookmq sinks dead-letters plant --replay

The token is in --token-file or ${TOKEN}. The plugin admin is at {DEFAULT_URL} unless --url names another place.
exit codes: 0 done, 1 refused, problems found or not reachable, 2 usage error"""
LIST: Final = (
    "name",
    "driver",
    "state",
    "lag",
    "behind",
    "bytes",
    "written",
    "dead_letters",
    "reason",
)

SOURCES: Final = ("source", "driver", "state", "received", "refused", "dead_letters", "reason")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = (
        "Manage the sinks of a running broker, which write messages to other systems, and its sources, which receive "
        "messages from other systems. An instance of the plugin webhook is a sink whose name is its plugin id."
    )
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(
        name: str,
        help: str,
        run: Callable[[ApiClient, argparse.Namespace], Any],
        sink: bool = True,
        source: bool = False,
    ) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = commands.add_parser(
            name, help=help, description=f"{help}."
        )
        add_options(found)
        if sink:
            found.add_argument(
                "sink", help=f"the name of the {'sink or source' if source else 'sink'}"
            )
        found.set_defaults(run=lambda arguments: run_command(run, arguments))
        return found

    command("list", "List the sinks and sources", _list, sink=False)
    command("status", "Print the state of one sink or source", _status, source=True)
    command(
        "test",
        "Open the target of a sink and check it, or the origin of a source",
        _test,
        source=True,
    )
    command(
        "pause", "Pause a sink, which continues to store messages, or a source", _pause, source=True
    )
    command("resume", "Resume a sink or source", _resume, source=True)
    seek = command("seek", "Move the cursor, from where all messages are written again", _seek)
    seek.add_argument(
        "position", help="first, next, an offset, a time as ISO 8601, or @ and epoch seconds"
    )
    command("purge", "Discard all messages that wait: move the cursor to next", _purge)
    deliveries = command(
        "deliveries",
        "List the latest attempts of a webhook to send events, newest first",
        _deliveries,
    )
    deliveries.add_argument(
        "--event", metavar="ID", help="only attempts for the event with this id"
    )
    deliveries.add_argument(
        "-n", "--limit", type=count, default=20, help="maximum number of attempts (default: 20)"
    )
    letters = command(
        "dead-letters",
        "List the messages that the target did not take, or that a source could not publish",
        _dead_letters,
        source=True,
    )
    letters.add_argument(
        "-n", "--limit", type=count, default=20, help="maximum number of messages (default: 20)"
    )
    choice = letters.add_mutually_exclusive_group()
    choice.add_argument("--replay", action="store_true", help="write or publish all of them again")
    choice.add_argument("--purge", action="store_true", help="delete all of them")


def _path(arguments: argparse.Namespace) -> str:
    return f"/sinks/{part(arguments.sink)}"


def _find(api: ApiClient, arguments: argparse.Namespace) -> tuple[str, Any]:
    """Return the API path and the state of the sink with the given name. If there is none, look for a source with that
    name.
    """
    path = _path(arguments)
    try:
        return path, api.ask("GET", path)
    except RequestRefused as error:
        if error.status != 404:
            raise
    source = f"/sources/{part(arguments.sink)}"
    try:
        return source, api.ask("GET", source)
    except RequestRefused as error:
        if error.status not in (404, 409):
            raise
        raise RequestRefused(f"there is no sink or source {arguments.sink!r}", 404) from None


def _list(api: ApiClient, arguments: argparse.Namespace) -> None:
    items = api.ask("GET", "/sinks")["items"]
    sources = _sources(api)
    if arguments.json:
        both = [{"kind": "sink", **one} for one in items] + [
            {"kind": "source", **one} for one in sources
        ]
        print(json.dumps(both, indent=2))
        return
    for one in items:
        one["written"] = one["counts"]["written"]
        one["behind"] = _age(one["lag_seconds"])
        one["reason"] = one["reason"] or "-"
    if items or not sources:
        print_table(items, LIST)
    for one in sources:
        one["source"] = one["name"]
        one |= {"received": one["counts"]["received"], "refused": one["counts"]["refused"]}
        one["reason"] = one["reason"] or "-"
    if sources:
        if items:
            print()
        print_table(sources, SOURCES)


def _sources(api: ApiClient) -> list[Any]:
    """Return the sources. The list is empty if the broker's sink plugin does not manage sources."""
    try:
        return list(api.ask("GET", "/sources")["items"])
    except RequestRefused as error:
        if error.status == 409:
            return []
        raise


def _age(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}s"


def _status(api: ApiClient, arguments: argparse.Namespace) -> Any:
    _, found = _find(api, arguments)
    if arguments.json:
        return found
    if "lag_seconds" in found:
        found["lag_seconds"] = _age(found["lag_seconds"])
    print_fields(found)
    return None


def _test(api: ApiClient, arguments: argparse.Namespace) -> Any:
    path = _find(api, arguments)[0]
    word = "target" if path.startswith("/sinks/") else "origin"
    problems = api.ask("POST", path + "/test", body={})["problems"]
    if arguments.json:
        print(json.dumps(problems, indent=2))
    else:
        for one in problems:
            where = f"{word}.{one['key']}: " if one["key"] else ""
            hint = f" ({one['hint']})" if one["hint"] else ""
            print(f"{where}{one['message']}{hint}")
    if problems:
        return 1
    if not arguments.json:
        print(f"the {word} is ready")
    return None


def _pause(api: ApiClient, arguments: argparse.Namespace) -> Any:
    return api.ask("POST", _find(api, arguments)[0] + "/pause", body={})


def _resume(api: ApiClient, arguments: argparse.Namespace) -> Any:
    return api.ask("POST", _find(api, arguments)[0] + "/resume", body={})


def _seek(api: ApiClient, arguments: argparse.Namespace) -> Any:
    return api.ask("POST", _path(arguments) + "/seek", body={"position": arguments.position})


def _purge(api: ApiClient, arguments: argparse.Namespace) -> Any:
    return api.ask("POST", _path(arguments) + "/seek", body={"position": "next"})


def _deliveries(api: ApiClient, arguments: argparse.Namespace) -> None:
    query = {"event": arguments.event, "limit": arguments.limit}
    items = api.ask("GET", _path(arguments) + "/deliveries", query)["items"]
    if arguments.json:
        print(json.dumps(items, indent=2))
        return
    for one in items:
        one["took"] = f"{one['seconds'] * 1000:.0f}ms"
        one["reason"] = one["reason"] or "-"
    print_table(items, ("at", "id", "event", "attempt", "result", "took", "reason"))
    if not items:
        print("# none", file=sys.stderr)


def _dead_letters(api: ApiClient, arguments: argparse.Namespace) -> Any:
    path = _find(api, arguments)[0] + "/dead-letters"
    if arguments.replay:
        found = api.ask("POST", path + "/replay", body={})
        if found["failed"]:
            raise RequestRefused(
                f"{found['written']} written, {found['failed']} are dead letters again"
            )
        return found
    if arguments.purge:
        return api.ask("DELETE", path)
    items = list(_listed(api, path, arguments.limit))
    if arguments.json:
        print(json.dumps(items, indent=2))
        return None
    for one in items:
        payload = one.get("payload", {})
        one["payload"] = payload.get("text", payload.get("base64", ""))
    print_table(items, ("number", "offset", "topic", "reason", "bytes", "payload"))
    if not items:
        print("# none", file=sys.stderr)
    return None


def _listed(api: ApiClient, path: str, limit: int) -> Iterator[Any]:
    after: int | None = None
    while limit > 0:
        page = api.ask("GET", path, {"after": after, "limit": min(limit, 100)})
        yield from page["items"]
        limit -= len(page["items"])
        after = page["after"]
        if after is None:
            return
