"""Plugins that do as little as a plugin can: what the hooks themselves cost. Only for `python -m bench`."""

from hookmq.plugin import Accept, Action, Allow, Connect, Deny, Message, Plugin, hookimpl


class Auth(Plugin):
    """Decides at CONNECT, at once."""

    @hookimpl
    def on_connect(self, connect: Connect) -> Accept:
        return Accept()


class Authorize(Plugin):
    """Decides by a topic's first level, at once."""

    @hookimpl
    def authorize(self, action: Action, topic: str) -> Allow | Deny:
        return Allow() if topic.startswith(("bench/", "+/")) else Deny()


class Pass(Plugin):
    """Looks at every message and leaves it as it is."""

    @hookimpl
    def on_publish(self, message: Message) -> None:
        return None
