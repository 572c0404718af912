"""The commands for users, groups and rules, and the commands that explain decisions."""

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

from hookmq.cli_api import count, qos
from hookmq.plugin import ConfigError, HookMQError
from hookmq_toolkit.files import write_secret
from hookmq_toolkit.passwords.prompt import add_password_options, read_password

from hookmq_admin.api_client import ApiClient, part
from hookmq_admin.tables import print_fields, print_table, shown

MAX_PASSWORD: Final = 4096
TESTED: Final = ("publish", "subscribe", "deliver", "will")
"""The actions that ``hookmq admin access`` tests. Importing the API's list would take longer than running the
command."""
ACTIONS: Final = ("publish", "subscribe", "deliver", "will", "all")
"""The actions of rules."""
USER_COLUMNS: Final = ("name", "enabled", "has_password", "groups", "rules", "note")
RULE_COLUMNS: Final = ("id", "rule", "actions", "topic", "qos", "retain")
Arguments = argparse.Namespace
Run = Callable[[ApiClient, Arguments], Any]
Command = Callable[..., argparse.ArgumentParser]


def register(commands: Any, command: Command) -> None:
    """Add the commands. ``command(name, help, run, to)`` adds one to a group of commands."""
    _users(commands, command)
    _groups(commands, command)
    _rules(commands, command)
    group = _nested(commands, "accounts", "export and import all users and groups")
    one = command("export", "Print all users and groups as one document", _export, group)
    one.add_argument("--hashes", action="store_true", help="include the hashes of passwords")
    one.add_argument("-o", "--output", metavar="FILE", help="write a new file with mode 0600")
    one = command("import", "Create or change all users and groups of a document", _import, group)
    one.add_argument("file", metavar="FILE", help="the document; - reads it from stdin")
    one.add_argument("--replace", action="store_true", help="delete all other users and groups")
    one.add_argument("--check", action="store_true", help="validate it and change nothing")
    one = command("access", "Test whether a user may do something, and explain why", _access)
    one.add_argument("user", metavar="USER", help="the user; - for the user of --client")
    one.add_argument("action", metavar="ACTION", choices=TESTED, help=", ".join(TESTED))
    one.add_argument("topic", metavar="TOPIC", help="topic, or topic filter")
    one.add_argument("--client", metavar="ID", help="the client id")
    one.add_argument("--qos", type=qos, default=0, help="the QoS (default: 0)")
    one.add_argument("--retain", action="store_true", help="the message has the RETAIN flag set")
    one.add_argument("--listener", help="the name of its listener (default: default)")
    one.add_argument("--address", help="its address")
    one.add_argument("--vouched-by", metavar="plugin:ID", help="what authenticated the client")
    one = command("credentials", "Test whether a client would be accepted, and explain why", _credentials)  # fmt: skip
    one.add_argument("user", metavar="USER", help="the user name")
    one.add_argument("--client", metavar="ID", help="the client id (default: a random one)")
    one.add_argument("--listener", help="the name of its listener (default: default)")
    one.add_argument("--address", help="its address (default: that of this command)")
    add_password_options(one)


def _nested(commands: Any, name: str, help: str) -> Any:
    parser = commands.add_parser(name, help=help)
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _users(commands: Any, command: Command) -> None:
    group = _nested(commands, "users", "list, add, change and delete users")
    one = command("list", "List and search users", _user_list, group)
    one.add_argument("search", nargs="?", default="", help="a part of the name")
    one.add_argument("--group", help="only users with this group")
    state = one.add_mutually_exclusive_group()
    state.add_argument("--enabled", action="store_const", const=True, dest="enabled")
    state.add_argument("--disabled", action="store_const", const=False, dest="enabled")
    _limit(one)
    one = _named(command("show", "Print one user and its rules", _of("user", _show), group))
    one = _named(command("add", "Add a user", _user_add, group))
    _fields(one)
    one.add_argument("--disabled", action="store_true", help="the user cannot connect yet")
    one.add_argument("--no-password", action="store_true", help="set the password later")
    add_password_options(one)
    one = _named(command("change", "Change the groups or the note of a user", _user_change, group))
    _fields(one)
    one.add_argument("--no-groups", action="store_true", help="remove all groups")
    one = _named(command("password", "Set the password of a user", _user_password, group))
    add_password_options(one)
    _named(command("delete", "Delete a user", _of("user", _delete), group))
    for name, enabled in (("enable", True), ("disable", False)):
        _named(command(name, f"{name.title()} a user", _enabling(enabled), group))


def _groups(commands: Any, command: Command) -> None:
    group = _nested(commands, "groups", "list, add and delete groups")
    one = command("list", "List and search groups", _group_list, group)
    one.add_argument("search", nargs="?", default="", help="a part of the name")
    _limit(one)
    _named(command("show", "Print one group and its rules", _of("group", _show), group))
    one = _named(command("add", "Add a group", _group_add, group))
    one.add_argument("--note", help="a note for people")
    _named(command("delete", "Delete a group that no user has", _of("group", _delete), group))


def _rules(commands: Any, command: Command) -> None:
    group = _nested(commands, "rules", "list, add and delete rules of a user or group")
    one = command("list", "List the rules of a user or group", _rule_list, group)
    _owner(one)
    one = command("add", "Add a rule to a user or group", _rule_add, group)
    _owner(one)
    one.add_argument("permission", metavar="PERMISSION", choices=("allow", "deny"), help="allow or deny")  # fmt: skip
    one.add_argument("actions", metavar="ACTIONS", help=f"{', '.join(ACTIONS)}; several with commas")  # fmt: skip
    one.add_argument("topic", metavar="TOPIC", nargs="+", help="topic filters")
    one.add_argument("--qos", type=qos, help="the highest QoS to which the rule applies")
    flag = one.add_mutually_exclusive_group()
    flag.add_argument("--retain", action="store_const", const=True, help="only retained messages")
    flag.add_argument(
        "--no-retain", action="store_const", const=False, dest="retain", help="only other messages"
    )
    one.add_argument(
        "--first",
        action="store_const",
        const=0,
        dest="position",
        help="insert it before the others",
    )
    one = command("delete", "Delete a rule of a user or group", _rule_delete, group)
    _owner(one)
    one.add_argument("id", type=count, help="the number of the rule")


def _owner(parser: argparse.ArgumentParser) -> None:
    owner = parser.add_mutually_exclusive_group(required=True)
    owner.add_argument("--user", metavar="NAME", help="the user")
    owner.add_argument("--group", metavar="NAME", help="the group")


def _named(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("name", metavar="NAME")
    return parser


def _fields(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-g", "--group", action="append", metavar="NAME", dest="groups",
        help="group of the user; may be repeated; replaces existing groups",
    )  # fmt: skip
    parser.add_argument("--note", help="a note for people")


def _limit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--limit", type=count, default=1000, help="most items (default: 1000)")  # fmt: skip


def _password(arguments: Arguments, twice: bool) -> str:
    user = getattr(arguments, "name", "") or arguments.user
    found = read_password(user, arguments.stdin, arguments.password_file, twice, MAX_PASSWORD)
    try:
        return found.decode()
    except UnicodeDecodeError:
        raise HookMQError("the password is not valid UTF-8") from None


# users and groups ----------------------------------------------------------------------------------------------------

Kind = Literal["user", "group"]


def _of(kind: Kind, run: Callable[[ApiClient, Arguments, Kind], Any]) -> Run:
    return lambda api, arguments: run(api, arguments, kind)


def _path(kind: Kind, name: str) -> str:
    return f"/{kind}s/{part(name)}"


def _user_list(api: ApiClient, arguments: Arguments) -> None:
    query = {"search": arguments.search, "group": arguments.group, "enabled": arguments.enabled}
    _accounts(arguments, list(api.pages("/users", query, arguments.limit)), USER_COLUMNS)


def _group_list(api: ApiClient, arguments: Arguments) -> None:
    found = list(api.pages("/groups", {"search": arguments.search}, arguments.limit))
    _accounts(arguments, found, ("name", "rules", "note"))


def _accounts(arguments: Arguments, found: list[Any], columns: tuple[str, ...]) -> None:
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print_table([{**one, "rules": len(one["rules"])} for one in found], columns)


def _show(api: ApiClient, arguments: Arguments, kind: Kind) -> Any:
    found = api.ask("GET", _path(kind, arguments.name))
    if arguments.json:
        return found
    print_fields({name: value for name, value in found.items() if name != "rules"})
    print()
    print_table(map(_rule_row, found["rules"]), RULE_COLUMNS)
    return None


def _user_add(api: ApiClient, arguments: Arguments) -> Any:
    body = {"name": arguments.name, "groups": arguments.groups, "note": arguments.note}
    if arguments.disabled:
        body["enabled"] = False
    if not arguments.no_password:
        body["password"] = _password(arguments, True)
    elif arguments.stdin or arguments.password_file:
        raise ConfigError("--no-password excludes --stdin and --password-file")
    return _done(arguments, "added", api.ask("POST", "/users", body=body))


def _user_change(api: ApiClient, arguments: Arguments) -> Any:
    groups = [] if arguments.no_groups else arguments.groups
    body = {"groups": groups, "note": arguments.note}
    return _done(arguments, "changed", api.ask("PATCH", _path("user", arguments.name), body=body))


def _user_password(api: ApiClient, arguments: Arguments) -> Any:
    body = {"password": _password(arguments, True)}
    found = api.ask("PUT", _path("user", arguments.name) + "/password", body=body)
    return _done(arguments, "changed", found)


def _enabling(enabled: bool) -> Run:
    def run(api: ApiClient, arguments: Arguments) -> Any:
        found = api.ask("PATCH", _path("user", arguments.name), body={"enabled": enabled})
        return _done(arguments, "enabled" if enabled else "disabled", found)

    return run


def _group_add(api: ApiClient, arguments: Arguments) -> Any:
    body = {"name": arguments.name, "note": arguments.note}
    return _done(arguments, "added", api.ask("POST", "/groups", body=body))


def _delete(api: ApiClient, arguments: Arguments, kind: Kind) -> Any:
    return _done(arguments, "deleted", api.ask("DELETE", _path(kind, arguments.name)))


def _done(arguments: Arguments, what: str, found: Any) -> Any:
    if arguments.json:
        return found
    print(f"{shown(arguments.name)} {what}")
    return None


# rules ---------------------------------------------------------------------------------------------------------------


def _owner_path(arguments: Arguments) -> str:
    if arguments.user is not None:
        return _path("user", arguments.user)
    return _path("group", arguments.group)


def _rule_list(api: ApiClient, arguments: Arguments) -> None:
    _rule_table(arguments, api.ask("GET", _owner_path(arguments)))


def _rule_add(api: ApiClient, arguments: Arguments) -> None:
    body = {
        arguments.permission: [one.strip() for one in arguments.actions.split(",")],
        "topic": arguments.topic,
        "qos": arguments.qos,
        "retain": arguments.retain,
        "position": arguments.position,
    }
    _rule_table(arguments, api.ask("POST", _owner_path(arguments) + "/rules", body=body))


def _rule_delete(api: ApiClient, arguments: Arguments) -> None:
    path = f"{_owner_path(arguments)}/rules/{arguments.id}"
    _rule_table(arguments, api.ask("DELETE", path))


def _rule_table(arguments: Arguments, found: Any) -> None:
    if arguments.json:
        print(json.dumps(found["rules"], indent=2))
    else:
        print_table(map(_rule_row, found["rules"]), RULE_COLUMNS)


def _rule_row(rule: Any) -> Any:
    permission = "allow" if "allow" in rule else "deny"
    return {**rule, "rule": permission, "actions": rule[permission]}


# documents -----------------------------------------------------------------------------------------------------------


def _export(api: ApiClient, arguments: Arguments) -> None:
    found = api.ask("GET", "/accounts", {"hashes": arguments.hashes})
    text = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
    if arguments.output is None:
        sys.stdout.write(text)
        return
    try:
        write_secret(Path(arguments.output), text)
    except OSError as error:
        raise HookMQError(
            f"cannot write {arguments.output}: {os.strerror(error.errno or 0)}"
        ) from None


def _import(api: ApiClient, arguments: Arguments) -> Any:
    try:
        text = (
            sys.stdin.read() if arguments.file == "-" else Path(arguments.file).read_text("utf-8")
        )
        document = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read the document: {error}", source=arguments.file) from None
    if not isinstance(document, dict):
        raise ConfigError("expected a JSON object", source=arguments.file)
    body = {**document, "replace": arguments.replace, "check": arguments.check}
    return api.ask("POST", "/accounts", body=body)


# decisions -----------------------------------------------------------------------------------------------------------


def _access(api: ApiClient, arguments: Arguments) -> int:
    body = {
        "user": None if arguments.user == "-" else arguments.user,
        "client_id": arguments.client,
        "action": arguments.action,
        "topic": arguments.topic,
        "qos": arguments.qos,
        "retain": arguments.retain,
        "listener": arguments.listener,
        "address": arguments.address,
        "vouched_by": arguments.vouched_by,
    }
    found = api.ask("POST", "/access", body=body)
    return _explained(arguments, found, found["allowed"])


def _credentials(api: ApiClient, arguments: Arguments) -> int:
    body = {
        "username": arguments.user,
        "password": _password(arguments, False),
        "client_id": arguments.client,
        "listener": arguments.listener,
        "address": arguments.address,
    }
    found = api.ask("POST", "/credentials", body=body)
    return _explained(arguments, found, found["accepted"])


def _explained(arguments: Arguments, found: Any, good: bool) -> int:
    """Print a decision. Return the exit code."""
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(shown(found["why"]))
        rows = [{**one, "plugin": one["plugin"] or "(default)"} for one in found["plugins"]]
        print_table(rows, ("plugin", "verdict", "rule", "reason"))
    return 0 if good else 1
