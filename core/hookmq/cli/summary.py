"""What a configuration means in practice, for `check` and for the banner of `serve`: who can reach the broker, who may
connect, what they may do and what survives a restart."""

from dataclasses import dataclass
from typing import Final

from hookmq.config.model import Config
from hookmq.hooks.manager import Hooks
from hookmq.server.addresses import is_loopback, parse_bind
from hookmq.server.settings import ListenerSettings

SURVIVES: Final = {
    "memory": "nothing survives a restart",
    "os": "survives the end of the process, not a power cut",
    "group": "survives a power cut",
}
"""What each kind of durability survives."""


@dataclass(frozen=True, slots=True)
class Warning:
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
    return listener.type == "unix" or is_loopback(parse_bind(listener.bind)[0])


def deciders(hooks: Hooks, hook: str) -> list[str]:
    """The ids of the plugins that implement `hook`, in their order."""
    return [one.instance.id for one in hooks.registry[hook] if not one.instance.disabled]


def who_connects(config: Config, hooks: Hooks) -> str:
    """Who may connect, in words."""
    return _rule(deciders(hooks, "on_connect"), config.auth.default, "everybody", "nobody")


def what_is_allowed(config: Config, hooks: Hooks) -> str:
    """What clients may do, in words."""
    return _rule(deciders(hooks, "authorize"), config.authz.default, "everything", "nothing")


def _rule(plugins: list[str], default: str, all_: str, none: str) -> str:
    fallback = all_ if default == "allow" else none
    if not plugins:
        return f"{fallback}: no plugin decides, and the default is {default}"
    return f"as {', then '.join(plugins)} decide{'s' if len(plugins) == 1 else ''}, else {fallback}"


def durability(hooks: Hooks) -> str:
    """What survives a restart, in words."""
    providers = hooks.registry["provide_store"]
    if not providers:
        return f"memory: {SURVIVES['memory']}"
    instance = providers[0].instance
    kind = getattr(instance.plugin.config, "durability", None)
    survives = f" ({kind}: {SURVIVES[kind]})" if kind in SURVIVES else ""
    return f"plugin {instance.id}{survives}"


def warnings(config: Config, hooks: Hooks) -> list[Warning]:
    """What is allowed but may not be meant."""
    found = []
    anonymous = config.auth.default == "allow" and not deciders(hooks, "on_connect")
    remote = [listener for listener in config.listeners if not is_local(listener)]
    if anonymous and remote:
        names = ", ".join(f"{listener.name} ({listener.bind})" for listener in remote)
        found.append(
            Warning(
                "auth.anonymous_remote",
                f"everybody who reaches {names} may connect: set auth.default to deny and name a plugin that decides",
                (("listeners", [listener.name for listener in remote]),),
            )
        )
    elif anonymous:
        found.append(
            Warning("auth.anonymous", "anonymous clients are allowed, from this machine only")
        )
    if config.auth.default == "deny" and not deciders(hooks, "on_connect"):
        text = "nobody can connect: auth.default is deny and no plugin answers on_connect"
        found.append(Warning("auth.nobody", text))
    if not hooks.registry["provide_store"]:
        text = "sessions, queues and retained messages are in memory: a restart forgets them"
        found.append(Warning("store.memory", text))
        journals = deciders(hooks, "provide_journal")
        if journals:
            text = (
                f"{', '.join(journals)}: with a store in memory a journal keeps all it has, and exactly-once across"
                " a restart is not promised"
            )
            found.append(Warning("journal.volatile_store", text, (("plugins", journals),)))
    return found
