"""Describe what a configuration means in practice: who can connect, what clients may do, and what survives a restart.
`check` and the banner of `serve` print this.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from hookmq.cli.config_args import STORAGE
from hookmq.cli.listener_access import ListenerAccess, listener_access
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
"""The events that the broker's state survives, by durability."""


@dataclass(frozen=True, slots=True)
class StartupNotice:
    """A fact that an operator should know: a log event and its text."""

    event: str
    text: str
    fields: tuple[tuple[str, object], ...] = ()


def url_of(listener: ListenerSettings) -> str:
    """Return a listener's URL."""
    scheme = {"tcp": "mqtt", "tls": "mqtts", "unix": "unix"}.get(listener.type, listener.type)
    path = listener.websocket.path if listener.type in ("ws", "wss") else ""
    return f"{scheme}://{listener.bind}{path}"


def is_local(listener: ListenerSettings) -> bool:
    """Return whether only this machine can reach the listener."""
    return listener.type == "unix" or bound_to_loopback(listener.bind)


def _implementing(hooks: Hooks, hook: str) -> list[str]:
    return [one.instance.id for one in hooks.registry[hook] if not one.instance.disabled]


def permissions(config: Config, hooks: Hooks) -> str:
    """Describe what clients may do."""
    default = config.authz.default
    fallback = "everything" if default == "allow" else "nothing"
    plugins = _implementing(hooks, "authorize")
    if not plugins:
        return f"{fallback}: no plugin authorizes, and authz.default is {default}"
    return f"{', then '.join(plugins)} decide{'s' if len(plugins) == 1 else ''}, else {fallback}"


def promise(hooks: Hooks) -> str | None:
    """Return the store's durability (a key of `SURVIVES`), or None if the plugin that provides the store does not declare
    it.

    A plugin declares it with a `durability` attribute on itself or on its configuration.
    """
    providers = hooks.registry["provide_store"]
    if not providers:
        return "memory"
    plugin = providers[0].instance.plugin
    kind = getattr(plugin, "durability", getattr(plugin.config, "durability", None))
    return kind if kind in SURVIVES else None


def store_folder(hooks: Hooks) -> str:
    """Return the absolute path of the store's folder, or '' if there is none. It comes from the `folder` attribute of the
    plugin that provides the store.
    """
    providers = hooks.registry["provide_store"]
    folder = getattr(providers[0].instance.plugin, "folder", None) if providers else None
    return "" if folder is None else os.path.abspath(folder)


def _promised(hooks: Hooks) -> str:
    kind = promise(hooks)
    return f" ({kind}: {SURVIVES[kind]})" if kind is not None else ""


def durability(hooks: Hooks) -> str:
    """Describe where the state is stored, and what survives a restart."""
    providers = hooks.registry["provide_store"]
    if not providers:
        return f"memory: {SURVIVES['memory']}"
    folder = store_folder(hooks)
    return f"plugin {providers[0].instance.id}{f' in {folder}' if folder else ''}{_promised(hooks)}"


def notices(config: Config, hooks: Hooks) -> list[StartupNotice]:
    """Return notices about effects of the configuration that may be unintended."""
    found = [
        StartupNotice(
            "http.insecure",
            f"anyone who can reach {one.name} ({one.bind}) can read the metrics and use the routes of plugins:"
            " set http.token",
            (("listener", one.name),),
        )
        for one in config.listeners
        if one.type in HTTP and not one.http.token and not is_local(one)
    ]
    found += _access_notices(config, listener_access(config, hooks))
    found += [
        StartupNotice("plugin.note", f"{instance.id}: {text}", (("plugin", instance.id),))
        for instance in hooks.plugins
        for text in instance.plugin.notes
    ]
    if promise(hooks) == "memory":
        text = "sessions, queues and retained messages are in memory: a restart loses them"
        if not hooks.registry["provide_store"]:
            wanted = any(entry.use == STORAGE for _, entry in config.active)
            text += f"; to keep them, {how_to_install(STORAGE) if wanted else f'add the plugin {STORAGE}'}"
        found.append(StartupNotice("store.memory", text))
        journals = _implementing(hooks, "provide_journal")
        if journals:
            text = (
                f"{', '.join(journals)}: with a store in memory, a journal never deletes its entries, and exactly-once"
                " does not hold across a restart"
            )
            fields = (("plugins", journals),)
            found.append(StartupNotice("journal.volatile_store", text, fields))
    return found


def _access_notices(config: Config, access: list[ListenerAccess]) -> list[StartupNotice]:
    found = []
    opened = [one.listener for one in access if one.open]
    remote = [one for one in opened if not is_local(one)]
    if remote:
        names = ", ".join(f"{listener.name} ({listener.bind})" for listener in remote)
        text = f"anyone who can reach {names} may connect: {_remedy(config, access)}"
        fields = (("listeners", [listener.name for listener in remote]),)
        found.append(StartupNotice("auth.anonymous_remote", text, fields))
    elif opened:
        text = "anonymous clients may connect, from this machine only"
        found.append(StartupNotice("auth.anonymous", text))
    shut = [one.listener.name for one in access if one.shut]
    if shut:
        where = "" if len(shut) == len(access) else f" to {', '.join(shut)}"
        text = f"no client can connect{where}: auth.default is deny and no plugin authenticates"
        found.append(StartupNotice("auth.nobody", text, (("listeners", shut),)))
    conflicts = {one.conflict(): one.listener.name for one in reversed(access)}
    found += [
        StartupNotice("auth.refuse_each_other", f"{name}: {text}", (("listener", name),))
        for text, name in sorted(conflicts.items())
        if text
    ]
    return found


def _remedy(config: Config, access: list[ListenerAccess]) -> str:
    """Describe how to secure an open broker."""
    if config.auth.default == "allow":
        return "set auth.default to deny and add a plugin that authenticates"
    ids = {one.id for way in access for one, said in way.plugins if said and said.anybody}
    return f"{', '.join(sorted(ids))} accepts clients without a user name"


def banner(config: Config, hooks: Hooks, addresses: Mapping[str, str]) -> str:
    """Return the text that `serve` prints when it is ready. `addresses` holds the listeners' actual addresses."""
    from importlib_metadata import version

    from hookmq import BUILD

    lines = [f"HookMQ {version('hookmq')}, {BUILD.kind}, is ready."]
    listeners = [replace(one, bind=addresses.get(one.name, one.bind)) for one in config.listeners]
    lines += [f"  {one.name:<8} {url_of(one)}" for one in listeners]
    if hooks.plugins:
        lines.append(f"  plugins  {', '.join(one.id for one in hooks.plugins)}")
    folder = store_folder(hooks)
    if folder:
        lines.append(f"  data     {folder}{_promised(hooks)}")
    lines += [f"  note     {notice.text}" for notice in notices(config, hooks)]
    if BUILD.unused:
        lines.append(f"  note     {BUILD.reason}")
    tcp = next((one for one in listeners if one.type == "tcp"), None)
    if tcp is not None:
        at = _options(tcp)
        lines += [
            "Try it in another terminal:",
            f"  hookmq sub{at} -t 'hello/#' -v",
            f"  hookmq pub{at} -t hello/world -m 'it works'",
        ]
    return "\n".join(lines) + "\n"


def _options(listener: ListenerSettings) -> str:
    """Return the `pub` and `sub` options that connect to a listener."""
    host, port = parse_bind(listener.bind)
    options = "" if host in ("127.0.0.1", "localhost", EVERY, "0.0.0.0", "::") else f" -h {host}"
    return options if port == 1883 else f"{options} -p {port}"
