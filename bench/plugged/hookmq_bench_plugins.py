"""Minimal plugins for measuring the cost of the hooks themselves. Only `python -m bench` uses them."""

from hookmq.plugin import Accept, Action, Allow, Connect, Deny, Message, Plugin, hookimpl


class Auth(Plugin):
    """A plugin that accepts every client."""

    @hookimpl
    def on_connect(self, connect: Connect) -> Accept:
        return Accept()


class Authorize(Plugin):
    """A plugin that allows or denies an action by the topic's first level."""

    @hookimpl
    def authorize(self, action: Action, topic: str) -> Allow | Deny:
        return Allow() if topic.startswith(("bench/", "+/")) else Deny()


class Pass(Plugin):
    """A plugin that receives every message and changes nothing."""

    @hookimpl
    def on_publish(self, message: Message) -> None:
        return None


class Observe(Plugin):
    """A plugin that observes every message."""

    @hookimpl
    def on_published(self, message: Message) -> None:
        return None


class Deliver(Plugin):
    """A plugin that receives every delivery and changes nothing."""

    @hookimpl
    def on_deliver(self, message: Message) -> None:
        return None
