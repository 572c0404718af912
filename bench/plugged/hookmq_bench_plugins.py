"""Minimal plugins for measuring the cost of the hooks themselves. Only `python -m bench` uses them."""

from hookmq.plugin import Accept, Action, Allow, Connect, Deny, Message, Plugin, hookimpl


class Auth(Plugin):
    """Accepts every client."""

    @hookimpl
    def on_connect(self, connect: Connect) -> Accept:
        return Accept()


class Authorize(Plugin):
    """Allows or denies an action by the topic's first level."""

    @hookimpl
    def authorize(self, action: Action, topic: str) -> Allow | Deny:
        return Allow() if topic.startswith(("bench/", "+/")) else Deny()


class Pass(Plugin):
    """Receives every message and changes nothing."""

    @hookimpl
    def on_publish(self, message: Message) -> None:
        return None


class Observe(Plugin):
    """Observes every message."""

    @hookimpl
    def on_published(self, message: Message) -> None:
        return None


class Deliver(Plugin):
    """Receives every delivery and changes nothing."""

    @hookimpl
    def on_deliver(self, message: Message) -> None:
        return None
