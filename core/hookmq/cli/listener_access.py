"""Determine from the configuration and its plugins which clients may connect to each listener."""

from dataclasses import dataclass

from hookmq.config.model import Config
from hookmq.hooks.instance import PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.plugin import Admission
from hookmq.server.settings import HTTP, ListenerSettings


@dataclass(frozen=True, slots=True)
class ListenerAccess:
    """A listener for MQTT clients, and the plugins that authenticate its clients, each with its `Admission` or None."""

    listener: ListenerSettings
    plugins: tuple[tuple[PluginInstance, Admission | None], ...]
    default_allow: bool

    @property
    def certified(self) -> bool:
        """True if clients need a certificate. If `identity` is set, a proxy may have verified it."""
        tls = self.listener.tls
        required = tls is not None and tls.client_certificates == "required"
        return required or bool(self.listener.identity)

    @property
    def admitting(self) -> list[tuple[PluginInstance, Admission | None]]:
        """The plugins that can accept clients."""
        return [(one, said) for one, said in self.plugins if said is None or said.who]

    @property
    def refusing(self) -> list[tuple[PluginInstance, Admission]]:
        """The plugins that refuse clients that another plugin might accept."""
        return [(one, said) for one, said in self.plugins if said and said.others != "left"]

    @property
    def open(self) -> bool:
        """True if a client can connect without a user name, token or certificate."""
        if self.certified:
            return False
        left = all(said is not None and said.others != "refused" for _, said in self.plugins)
        opened = any(said is not None and said.anybody for _, said in self.plugins)
        return (self.default_allow and left) or opened

    @property
    def shut(self) -> bool:
        """True if no client can connect."""
        return not self.default_allow and not self.admitting

    def text(self) -> str:
        """Describe which clients may connect."""
        everybody = "everybody with a certificate" if self.certified else "everybody"
        fallback = everybody if self.default_allow else "nobody"
        if not self.admitting:
            default = "allow" if self.default_allow else "deny"
            return f"{fallback}: no plugin authenticates, and auth.default is {default}"
        found = [
            f"clients that {one.id} accepts" if said is None else f"{said.who} ({one.id})"
            for one, said in self.admitting
        ]
        if any(said.others == "refused" for _, said in self.refusing):
            fallback = "nobody"
        joined = " and also " if len(found) > 1 and self.refusing else " or "
        return f"{joined.join(found)}, else {fallback}"

    def conflict(self) -> str:
        """Describe how plugins refuse each other's users, and the remedy. Return '' if there is no
        conflict.
        """
        refused = []
        for one, _ in self.refusing if len(self.admitting) > 1 else ():
            others = [other.id for other, _ in self.admitting if other is not one]
            if others:
                accepted = " or ".join(others)
                refused.append(f"{one.id} refuses clients that only {accepted} would accept")
        if not refused:
            return ""
        remedies = [f"{one.id}: {said.to_share}" for one, said in self.refusing if said.to_share]
        hint = (
            f". To accept clients that pass either, set {'; '.join(remedies)}" if remedies else ""
        )
        return f"{', '.join(refused)}{hint}"


def listener_access(config: Config, hooks: Hooks) -> list[ListenerAccess]:
    """Return a `ListenerAccess` for each MQTT listener, in the configuration's order."""
    asked = {
        one.instance.id
        for hook in ("on_connect", "on_auth")
        for one in hooks.registry[hook]
        if not one.instance.disabled
    }
    ordered = [one for one in hooks.plugins if one.id in asked]
    return [
        ListenerAccess(
            listener,
            tuple(
                (one, one.plugin.admission)
                for one in ordered
                if one.entry.listeners is None or listener.name in one.entry.listeners
            ),
            config.auth.default == "allow",
        )
        for listener in config.listeners
        if listener.type not in HTTP
    ]
