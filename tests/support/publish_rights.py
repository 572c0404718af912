"""A plugin that controls who may publish, and a helper that checks which retained messages a new subscriber receives."""

from collections.abc import Callable
from typing import Any

from hookmq.hooks.broker_handle import BrokerHandle
from hookmq.hooks.verdicts import Accept, Allow, Deny
from hookmq.model.client import ClientInfo
from hookmq.model.events import Action
from hookmq.model.message import Message
from hookmq.mqtt.packets import Publish
from hookmq_testing import Harness, HookRecorder, MemoryClient
from hookmq_testing.runtime import Event

Make = Callable[..., Harness]


class Rights(HookRecorder):
    """A plugin that denies every publish by the clients in `denied`. If `late` is set, it decides only after a delay."""

    def __init__(self, late: bool = False) -> None:
        super().__init__("on_connect", "authorize", id="rights")
        self.denied: set[str] = set()
        self.asked: list[tuple[str, Action, str]] = []
        self.cache_for: float | None = None
        self.max_qos = 2
        self.undecided = False
        self.gate: Event | None = None
        """The event that late decisions wait for, or None to decide after 10 ms."""
        self.harness: Harness
        self.answer("on_connect", self._accept)
        self.answer("authorize", self._later if late else self._judge)

    def _accept(self, client: ClientInfo) -> Accept:
        claims = {"of": client.client_id, "set": [1, 2]}
        return Accept(identity=client.username, claims=claims)

    def _judge(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None
    ) -> Allow | Deny:
        if action is Action.SUBSCRIBE:
            return Allow()
        assert client.claims == {"of": client.client_id, "set": [1, 2]}
        assert message is not None
        self.asked.append((client.client_id, action, topic))
        if self.undecided:
            raise RuntimeError("ill")
        if client.identity in self.denied or client.client_id in self.denied:
            return Deny(cache_for=self.cache_for)
        return Allow(self.cache_for, self.max_qos)

    async def _later(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None
    ) -> Allow | Deny:
        if action is not Action.SUBSCRIBE:
            await (self.gate or self.harness.clock.sleep(0.01))
        return self._judge(client, action, topic, message)

    @property
    def handle(self) -> BrokerHandle:
        """Return the plugin's broker handle."""
        return self.harness.handle("rights")


def started(make: Make, rights: Rights, **options: Any) -> Harness:
    """Start a broker with this plugin."""
    harness = rights.harness = make(plugins=[rights], **options)
    return harness


def fetched(harness: Harness, filter: str = "#", name: str = "reader") -> set[str]:
    """Return the topics of the messages that a new subscriber receives."""
    client: MemoryClient = harness.connect(name)
    client.subscribe(filter)
    harness.advance(5)
    found = {p.topic for p in client.unread if isinstance(p, Publish)}
    client.disconnect()
    return found
