"""What a configuration means in practice, for `check` and for the banner of `serve`: who can reach the broker, who may
connect, what they may do and what survives a restart."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from hookmq.cli.entrance import Entrance, entrances
from hookmq.cli.source import STORAGE
from hookmq.config.model import Config
from hookmq.config.plugins import how_to_install
from hookmq.hooks.manager import Hooks
from hookmq.server.addresses import EVERY, bound_to_loopback, parse_bind
from hookmq.server.settings import HTTP, ListenerSettings

SURVIVES: Final = {
    "memory": "nothing survives a restart",
    "os": "survives the end of the process, not a power cut",
    "group": "survives a power cut",
}
"""What each kind of durability survives."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Something an operator should know: a log event and its text."""

    event: str
    text: str
    fields: tuple[tuple[str, object], ...] = ()


def where(listener: ListenerSettings) -> str:
    """A listener as a URL, for people."""
    scheme = {"tcp": "mqtt", "tls": "mqtts", "unix": "unix"}.get(listener.type, listener.type)
    path = listener.websocket.path if listener.type in ("ws", "wss") else ""
    return f"{scheme}://{listener.bind}{path}"


def is_local(listener: ListenerSettings) -> bool:
    """Whether only this machine reaches the listener."""
    return listener.type == "unix" or bound_to_loopback(listener.bind)


def deciders(hooks: Hooks, hook: str) -> list[str]:
    """The ids of the plugins that implement `hook`, in their order."""
    return [one.instance.id for one in hooks.registry[hook] if not one.instance.disabled]


def what_is_allowed(config: Config, hooks: Hooks) -> str:
    """What clients may do, in words."""
    return _rule(deciders(hooks, "authorize"), config.authz.default, "everything", "nothing")


def _rule(plugins: list[str], default: str, all_: str, none: str) -> str:
    fallback = all_ if default == "allow" else none
    if not plugins:
        return f"{fallback}: no plugin decides, and the default is {default}"
    return f"as {', then '.join(plugins)} decide{'s' if len(plugins) == 1 else ''}, else {fallback}"


def promise(hooks: Hooks) -> str | None:
    """What an acknowledgement promises: a key of `SURVIVES`; None where the plugin that provides the store does not tell.
    It tells by an attribute `durability` of its own or of its configuration."""
    providers = hooks.registry["provide_store"]
    if not providers:
        return "memory"
    plugin = providers[0].instance.plugin
    kind = getattr(plugin, "durability", getattr(plugin.config, "durability", None))
    return kind if kind in SURVIVES else None


def kept_in(hooks: Hooks) -> str:
    """The folder of the store, absolute; '' where there is none, or the plugin that provides it does not tell. It tells
    by an attribute `folder`."""
    providers = hooks.registry["provide_store"]
    folder = getattr(providers[0].instance.plugin, "folder", None) if providers else None
    return "" if folder is None else os.path.abspath(folder)


def durability(hooks: Hooks) -> str:
    """What survives a restart, and where it lies, in words."""
    providers = hooks.registry["provide_store"]
    if not providers:
        return f"memory: {SURVIVES['memory']}"
    instance = providers[0].instance
    kind = promise(hooks)
    survives = f" ({kind}: {SURVIVES[kind]})" if kind is not None else ""
    folder = kept_in(hooks)
    return f"plugin {instance.id}{f' in {folder}' if folder else ''}{survives}"


def _install(config: Config, hooks: Hooks) -> str:
    """How to keep what would be forgotten, where no plugin keeps it; '' where one was told to forget."""
    if hooks.registry["provide_store"]:
        return ""
    if any(entry.use == STORAGE for _, entry in config.active):
        return f"; to keep them, {how_to_install(STORAGE)}"
    return f"; to keep them: the plugin {STORAGE}"


def notices(config: Config, hooks: Hooks) -> list[Notice]:
    """What is allowed but may not be meant."""
    found = []
    ways = entrances(config, hooks)
    remote = [one for one in config.listeners if not is_local(one)]
    found += [
        Notice(
            "http.insecure",
            f"everybody who reaches {one.name} ({one.bind}) reads the metrics and uses the routes of plugins:"
            " set http.token",
            (("listener", one.name),),
        )
        for one in remote
        if one.type in HTTP and not one.http.token
    ]
    opened = [one.listener for one in ways if one.open]
    remote = [one for one in opened if not is_local(one)]
    if remote:
        names = ", ".join(f"{listener.name} ({listener.bind})" for listener in remote)
        found.append(
            Notice(
                "auth.anonymous_remote",
                f"everybody who reaches {names} may connect: {_closing(config, ways)}",
                (("listeners", [listener.name for listener in remote]),),
            )
        )
    elif opened:
        found.append(
            Notice("auth.anonymous", "anonymous clients are allowed, from this machine only")
        )
    shut = [one.listener.name for one in ways if one.shut]
    if shut:
        where_ = "" if len(shut) == len(ways) else f" to {', '.join(shut)}"
        text = f"nobody can connect{where_}: auth.default is deny and no plugin authenticates"
        found.append(Notice("auth.nobody", text, (("listeners", shut),)))
    conflicts = {one.conflict(): one.listener.name for one in reversed(ways)}
    for text, name in sorted(conflicts.items()):
        if text:
            fields = (("listener", name),)  # the log adds the text
            found.append(Notice("auth.refuse_each_other", f"{name}: {text}", fields))
    found += [
        Notice("plugin.note", f"{instance.id}: {text}", (("plugin", instance.id),))
        for instance in hooks.plugins
        for text in instance.plugin.notes
    ]
    if promise(hooks) == "memory":
        text = "sessions, queues and retained messages are in memory: a restart forgets them"
        found.append(Notice("store.memory", text + _install(config, hooks)))
        journals = deciders(hooks, "provide_journal")
        if journals:
            text = (
                f"{', '.join(journals)}: with a store in memory a journal keeps all it has, and exactly-once across"
                " a restart is not promised"
            )
            found.append(Notice("journal.volatile_store", text, (("plugins", journals),)))
    return found


def _closing(config: Config, ways: list[Entrance]) -> str:
    """How an open broker is closed."""
    if config.auth.default == "allow":
        return "set auth.default to deny and name a plugin that authenticates"
    ids = {one.id for way in ways for one, said in way.plugins if said is not None and said.anybody}
    return f"{', '.join(sorted(ids))} accepts clients without a user name"


def banner(config: Config, hooks: Hooks, addresses: Mapping[str, str]) -> str:
    """What `serve` tells people when it is ready. `addresses` are where the listeners really listen."""
    from importlib_metadata import version

    from hookmq import BUILD

    lines = [f"HookMQ {version('hookmq')}, {BUILD.kind}, is ready."]
    local: list[ListenerSettings] = []
    for listener in config.listeners:
        actual = replace(listener, bind=addresses.get(listener.name, listener.bind))
        local.append(actual)
        lines.append(f"  {listener.name:<8} {where(actual)}")
    if hooks.plugins:
        lines.append(f"  plugins  {', '.join(one.id for one in hooks.plugins)}")
    folder = kept_in(hooks)
    if folder:
        kind = promise(hooks)
        lines.append(f"  data     {folder}{f' ({kind}: {SURVIVES[kind]})' if kind else ''}")
    lines += [f"  note     {notice.text}" for notice in notices(config, hooks)]
    if BUILD.unused:
        lines.append(f"  note     {BUILD.reason}")
    tcp = next((one for one in local if one.type == "tcp"), None)
    if tcp is not None:
        at = _options(tcp)
        lines += [
            "Try it in another terminal:",
            f"  hookmq sub{at} -t 'hello/#' -v",
            f"  hookmq pub{at} -t hello/world -m 'it works'",
        ]
    return "\n".join(lines) + "\n"


def _options(listener: ListenerSettings) -> str:
    """The options that lead `pub` and `sub` to a listener."""
    host, port = parse_bind(listener.bind)
    options = "" if host in ("127.0.0.1", "localhost", EVERY, "0.0.0.0", "::") else f" -h {host}"
    return options if port == 1883 else f"{options} -p {port}"
