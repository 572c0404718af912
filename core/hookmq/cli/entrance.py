"""Who can come in at each listener, and by what: as the configuration and its plugins have it."""

from dataclasses import dataclass

from hookmq.config.model import Config
from hookmq.hooks.entry import PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.plugin import Admission
from hookmq.server.settings import HTTP, ListenerSettings


@dataclass(frozen=True, slots=True)
class Entrance:
    """One listener for MQTT clients and the plugins that are asked about its clients, with what each says of itself;
    None if it says nothing."""

    listener: ListenerSettings
    plugins: tuple[tuple[PluginInstance, Admission | None], ...]
    default_allow: bool

    @property
    def certified(self) -> bool:
        """Whether clients need a certificate, which a proxy may have verified: `identity` is taken from it."""
        if self.listener.identity:
            return True
        tls = self.listener.tls
        return tls is not None and tls.client_certificates == "required"

    @property
    def admitting(self) -> list[tuple[PluginInstance, Admission | None]]:
        """The plugins that let somebody in."""
        return [(one, said) for one, said in self.plugins if said is None or said.who]

    @property
    def refusing(self) -> list[tuple[PluginInstance, Admission]]:
        """The plugins that refuse clients although another might accept them."""
        return [(one, said) for one, said in self.plugins if said and said.others != "left"]

    @property
    def open(self) -> bool:
        """Whether clients come in without a user name, a token or a certificate."""
        if self.certified:
            return False
        left = all(said is not None and said.others != "refused" for _, said in self.plugins)
        opened = any(said is not None and said.anybody for _, said in self.plugins)
        return (self.default_allow and left) or opened

    @property
    def shut(self) -> bool:
        """Whether nobody comes in."""
        return not self.default_allow and not self.admitting

    def text(self) -> str:
        """Return who comes in, in words."""
        everybody = "everybody with a certificate" if self.certified else "everybody"
        fallback = everybody if self.default_allow else "nobody"
        if not self.admitting:
            default = "allow" if self.default_allow else "deny"
            return f"{fallback}: no plugin authenticates, and auth.default is {default}"
        found = [
            f"whom {one.id} accepts" if said is None else f"{said.who} ({one.id})"
            for one, said in self.admitting
        ]
        if any(said.others == "refused" for _, said in self.refusing):
            fallback = "nobody"
        joined = " and at once " if len(found) > 1 and self.refusing else " or "
        return f"{joined.join(found)}, else {fallback}"

    def conflict(self) -> str:
        """Return why users of one plugin are refused by another, and what to set; empty if they are not."""
        if len(self.admitting) < 2 or not self.refusing:
            return ""
        refused = []
        for one, _ in self.refusing:
            others = [other.id for other, _ in self.admitting if other is not one]
            if others:
                refused.append(
                    f"{one.id} refuses clients that only {' or '.join(others)} would accept"
                )
        if not refused:
            return ""
        shared = "; ".join(
            f"{one.id}: {said.to_share}" for one, said in self.refusing if said.to_share
        )
        hint = f". To let in who passes either, set {shared}" if shared else ""
        return f"{', '.join(refused)}{hint}"


def entrances(config: Config, hooks: Hooks) -> list[Entrance]:
    """Return the entrances for MQTT clients, in the order of the configuration."""
    asked: dict[str, PluginInstance] = {}
    for hook in ("on_connect", "on_auth"):
        for one in hooks.registry[hook]:
            if not one.instance.disabled:
                asked[one.instance.id] = one.instance
    ordered = [one for one in hooks.plugins if one.id in asked]
    return [
        Entrance(
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
