"""``hookmq admin``: use the API from a terminal."""

import argparse
import json
import sys
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from hookmq.cli_api import count, qos, seconds
from hookmq.plugin import HookMQError
from hookmq_toolkit.files import write_secret

from hookmq_admin import (
    accounts_cli,
    backup_cli,
    config_cli,
    diagnosis_cli,
    drain_cli,
    log_cli,
    streams_cli,
    trace_cli,
)
from hookmq_admin.api_client import (
    DEFAULT_URL,
    TOKEN,
    ApiClient,
    BrokerUnreachable,
    RequestRefused,
    add_options,
    part,
)
from hookmq_admin.tables import print_fields, print_table, say_ready, shown
from hookmq_admin.tokens import ROLES

EXAMPLES: Final = f"""\
examples:
  hookmq admin overview --token-file admin.token
  hookmq admin clients --online --username ann
  hookmq admin kick lamp-7 --reason service
  hookmq admin subs --topic light/1
  hookmq admin tail 'light/#' --json
  hookmq admin tokens create grafana --role viewer --output grafana.token
  hookmq admin users add ann --group staff
  hookmq admin rules add --group staff allow publish,subscribe 'light/#'
  hookmq admin access ann publish light/1

The token is in --token-file or ${TOKEN}. The plugin is at {DEFAULT_URL} unless --url names another place.
exit codes: 0 done or allowed, 1 refused, denied or not reachable, 2 usage error"""
Run = Callable[[ApiClient, argparse.Namespace], Any]
UNREACHABLE: Final = (
    "check that the broker runs with the plugin admin, and that --url is its address"
)
UNAUTHORIZED: Final = (
    f"check --token-file or ${TOKEN}: the token may be expired, revoked, or of another broker"
)
CLIENT_COLUMNS: Final = (
    "client_id", "identity", "connected", "listener", "address", "version", "subscriptions", "inflight", "queued",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.description = "Inspect and change a running broker."
    parser.epilog = EXAMPLES
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, help: str, run: Run, to: Any = commands) -> argparse.ArgumentParser:
        found: argparse.ArgumentParser = to.add_parser(name, help=help, description=f"{help}.")
        add_options(found)
        found.set_defaults(run=lambda arguments: run_command(run, arguments))
        return found

    command("overview", "Print the most important figures", _overview)
    clients = command("clients", "List and search clients", _clients)
    clients.add_argument("prefix", nargs="?", default="", help="the beginning of the client id")
    clients.add_argument("--username", help="the beginning of the user name")
    clients.add_argument("--listener", help="the name of the listener")
    clients.add_argument("--address", help="the beginning of the address")
    state = clients.add_mutually_exclusive_group()
    state.add_argument("--online", action="store_const", const=True, dest="connected")
    state.add_argument("--offline", action="store_const", const=False, dest="connected")
    _limit(clients)
    _one(command("client", "Print one client and its subscriptions", _client))
    kick = _one(command("kick", "Disconnect a client", _kick))
    kick.add_argument("--reason", help="the reason, for the log and for MQTT 5 clients")
    kick.add_argument("--end-session", action="store_true", help="also end its session")
    ban = _one(command("ban", "Ban a client id, with the plugin ratelimit", _ban))
    ban.add_argument(
        "--for", type=seconds, default=3600, dest="seconds", metavar="TIME", help="how long"
    )
    ban.add_argument("--reason", help="the reason")
    _one(command("unban", "Lift the bans of a client id", _unban))
    queue = _one(command("queue", "List the messages that wait for a client", _queue))
    queue.add_argument("--purge", action="store_true", help="drop them instead")
    _limit(queue)
    subs = command("subs", "List subscriptions, or who gets the messages of a topic", _subs)
    what = subs.add_mutually_exclusive_group()
    what.add_argument("--filter", help="only subscriptions that overlap this filter")
    what.add_argument("--topic", help="who gets the messages of this topic, and why")
    what.add_argument("--client", help="only subscriptions of this client")
    _limit(subs)
    retained = command("retained", "List or clear retained messages", _retained)
    retained.add_argument("filter", nargs="?", default="#", help="a topic filter (default: #)")
    retained.add_argument("--clear", action="store_true", help="clear them instead")
    _limit(retained)
    publish = command("publish", "Publish a message in the name of the token", _publish)
    publish.add_argument("topic")
    publish.add_argument(
        "payload", nargs="?", default="", help="the payload; - reads it from stdin"
    )
    publish.add_argument("--qos", type=qos, default=1, help="the QoS (default: 1)")
    publish.add_argument("--retain", action="store_true")
    tail = command("tail", "Follow the messages of a filter", _tail)
    tail.add_argument("filter")
    tail.add_argument(
        "--rate", type=count, default=50, help="most messages per second (default: 50)"
    )
    tail.add_argument("--retained", action="store_true", help="begin with retained messages")
    tail.add_argument("-C", "--count", type=count, help="end after this many messages")
    diagnosis_cli.register(command)
    trace_cli.register(command)
    log_cli.register(commands, command)
    streams_cli.register(command)
    drain_cli.register(command)
    backup_cli.register(command)
    command("listeners", "List the listeners", _listeners)
    command("plugins", "List the plugins and their failures", _plugins)
    config_cli.register(command)
    _limit(command("audit", "List changes, the newest first", _audit))
    _tokens(commands, command)
    accounts_cli.register(commands, command)


def _tokens(commands: Any, command: Callable[..., argparse.ArgumentParser]) -> None:
    group = commands.add_parser("tokens", help="list, create and revoke tokens")
    tokens = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    command("list", "List the tokens", _token_list, tokens)
    create = command("create", "Create a token and print it once", _token_create, tokens)
    create.add_argument("name")
    create.add_argument("--role", choices=ROLES, required=True)
    create.add_argument(
        "--expires-in", type=seconds, metavar="TIME", help="when it expires, as 30d"
    )
    create.add_argument("--identity", help="publish under this name (default: admin:NAME)")
    create.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write it to a new file with mode 0600"
    )
    revoke = command("revoke", "Revoke a token", _token_revoke, tokens)
    revoke.add_argument("id")


def _limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-n", "--limit", type=count, default=1000, help="most items (default: 1000)"
    )


def _one(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("client_id")
    return parser


def run_command(run: Run, arguments: argparse.Namespace) -> int:
    """Run a command. If it returns an exit code, return that code. Print any other value."""
    try:
        found = run(ApiClient.of(arguments), arguments)
    except KeyboardInterrupt:
        return 130
    except BrokerUnreachable as error:
        raise BrokerUnreachable(f"{error}; {UNREACHABLE}") from error
    except RequestRefused as error:
        if error.status != 401:
            raise
        raise RequestRefused(f"{error}; {UNAUTHORIZED}", error.status) from error
    if type(found) is int:
        return found
    if found is not None:
        if arguments.json:
            print(json.dumps(found, indent=2))
        else:
            print_fields(found)
    return 0


def _table(arguments: argparse.Namespace, items: Iterable[Any], *columns: str) -> None:
    rows = list(items)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    else:
        print_table(rows, columns)


def _overview(api: ApiClient, arguments: argparse.Namespace) -> Any:
    return api.ask("GET", "/overview")


def _clients(api: ApiClient, arguments: argparse.Namespace) -> None:
    query = {"client_id": arguments.prefix, "connected": arguments.connected}
    query |= {name: getattr(arguments, name) for name in ("username", "listener", "address")}
    _table(arguments, api.pages("/clients", query, arguments.limit), *CLIENT_COLUMNS)


def _path(arguments: argparse.Namespace) -> str:
    return f"/clients/{part(arguments.client_id)}"


def _client(api: ApiClient, arguments: argparse.Namespace) -> Any:
    found = api.ask("GET", _path(arguments))
    found["filters"] = [
        one["filter"] for one in api.pages(_path(arguments) + "/subscriptions", {}, 1000)
    ]
    return found


def _kick(api: ApiClient, arguments: argparse.Namespace) -> Any:
    if arguments.end_session:
        return api.ask("DELETE", _path(arguments) + "/session", {"reason": arguments.reason})
    return api.ask("POST", _path(arguments) + "/disconnect", body={"reason": arguments.reason})


def _ban(api: ApiClient, arguments: argparse.Namespace) -> Any:
    body = {"seconds": arguments.seconds, "reason": arguments.reason}
    return api.ask("POST", _path(arguments) + "/ban", body=body)


def _unban(api: ApiClient, arguments: argparse.Namespace) -> Any:
    return api.ask("DELETE", _path(arguments) + "/ban")


def _queue(api: ApiClient, arguments: argparse.Namespace) -> Any:
    path = _path(arguments) + "/queue"
    if arguments.purge:
        return api.ask("DELETE", path)
    _table(arguments, api.pages(path, {}, arguments.limit), "topic", "qos", "bytes", "sender")
    return None


def _subs(api: ApiClient, arguments: argparse.Namespace) -> None:
    if arguments.topic is not None:
        found = api.pages("/subscribers", {"topic": arguments.topic}, arguments.limit)
        _table(arguments, found, "client_id", "connected", "filter", "qos", "why", "denied_by")
        return
    query = {"filter": arguments.filter, "client_id": arguments.client}
    found = api.pages("/subscriptions", query, arguments.limit)
    _table(arguments, found, "client_id", "filter", "qos")


def _retained(api: ApiClient, arguments: argparse.Namespace) -> Any:
    query = {"filter": arguments.filter}
    if arguments.clear:
        return api.ask("DELETE", "/retained", query)
    found = api.pages("/retained", query, arguments.limit)
    _table(arguments, found, "topic", "qos", "bytes", "payload.text")
    return None


def _publish(api: ApiClient, arguments: argparse.Namespace) -> Any:
    given = arguments.payload
    payload = sys.stdin.buffer.read() if given == "-" else given.encode("utf-8", "surrogateescape")
    body = {
        "topic": arguments.topic,
        "payload_base64": b64encode(payload).decode(),
        "qos": arguments.qos,
        "retain": arguments.retain,
    }
    return api.ask("POST", "/publish", body=body)


def _tail(api: ApiClient, arguments: argparse.Namespace) -> None:
    query = {"filter": arguments.filter, "rate": arguments.rate, "retained": arguments.retained}
    events = api.events("/tail", query, say_ready)
    for name, data in _until(events, arguments.count):
        if arguments.json:
            print(json.dumps({"event": name, **data}), flush=True)
        elif name == "message":
            payload = data["payload"]
            text = payload.get("text", payload.get("base64", ""))
            print(shown(data["topic"]), shown(text), flush=True)
        else:
            print(f"# {name}: {shown(data)}", file=sys.stderr, flush=True)


def _until(events: Iterator[tuple[str, Any]], most: int | None) -> Iterator[tuple[str, Any]]:
    """Yield events, stopping after `most` messages."""
    seen = 0
    for name, data in events:
        yield name, data
        seen += name == "message"
        if most is not None and seen >= most:
            return


def _listeners(api: ApiClient, arguments: argparse.Namespace) -> None:
    items = api.ask("GET", "/listeners")["items"]
    _table(arguments, items, "name", "type", "address", "connections", "max_connections")


def _plugins(api: ApiClient, arguments: argparse.Namespace) -> None:
    items = api.ask("GET", "/plugins")["items"]
    for one in items:
        hooks = one["hooks"]
        failures = ("error", "timeout")
        one["failures"] = sum(h["outcomes"].get(name, 0) for h in hooks for name in failures)
        one["dropped"] = sum(hook["dropped"] for hook in hooks)
        one["implements"] = [hook["name"] for hook in hooks]
    columns = ("id", "version", "disabled", "circuit_open", "failures", "dropped", "implements")
    _table(arguments, items, *columns)


def _audit(api: ApiClient, arguments: argparse.Namespace) -> None:
    found = api.pages("/audit", {}, arguments.limit)
    rows = [
        {**one, "time": shown(one["time"], "time")} if not arguments.json else one for one in found
    ]
    _table(arguments, rows, "time", "name", "address", "action", "arguments", "status", "result")


def _token_list(api: ApiClient, arguments: argparse.Namespace) -> None:
    items = api.ask("GET", "/tokens")["items"]
    if not arguments.json:
        items = [{**one, "expires_at": shown(one["expires_at"], "expires_at")} for one in items]
    _table(arguments, items, "id", "name", "role", "identity", "created_by", "expires_at")


def _token_create(api: ApiClient, arguments: argparse.Namespace) -> Any:
    body = {"name": arguments.name, "role": arguments.role}
    body |= {"expires_in": arguments.expires_in, "identity": arguments.identity}
    output: Path | None = arguments.output
    if output is None:
        found = api.ask("POST", "/tokens", body=body)
        if arguments.json:
            return found
        print(found["token"])
        return None
    try:
        write_secret(output, "")  # before the token exists, because it could not be shown again
    except OSError as error:
        raise HookMQError(f"cannot write {output}: {error.strerror}") from None
    try:
        found = api.ask("POST", "/tokens", body=body)
    except BaseException:
        output.unlink(missing_ok=True)
        raise
    try:
        output.write_text(found.pop("token") + "\n", "utf-8")
    except OSError as error:
        text = f"cannot write {output}: {error.strerror}; revoke the token {found['id']}"
        raise HookMQError(text) from None
    return found if arguments.json else None


def _token_revoke(api: ApiClient, arguments: argparse.Namespace) -> Any:
    return api.ask("DELETE", f"/tokens/{part(arguments.id)}")
