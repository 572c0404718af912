"""Plugins for the simulated broker. They delay, raise, refuse, drop, replace, redirect, answer and observe.

Their decisions depend only on the topic, so they are the same after a crash or a retransmission. Delays and failures
are random.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final, Protocol

from hookmq.model.client import Certificate
from hookmq.mqtt.topics import parse_share
from hookmq.plugin import (
    Accept,
    Action,
    Auth,
    BrokerHandle,
    Challenge,
    ClientInfo,
    Connect,
    Context,
    Deny,
    Drop,
    Message,
    Plugin,
    Subscription,
    hookimpl,
)
from hookmq.storage.protocols import Journal
from hookmq_testing.runtime import VirtualRuntime


class World(Protocol):
    """The parts of the world that plugins use."""

    chance: Random
    calm: bool
    denied: set[tuple[str, str]]
    """(client id, filter) pairs that must not be subscribed to."""
    allowed: set[tuple[str, bytes]]
    """(client id, payload) pairs that were allowed before delivery."""

    def current(self) -> VirtualRuntime:
        """Return the runtime of the running broker."""

    def plugin_delay(self) -> float:
        """Return the delay of the next answer in seconds; 0 means at once."""

    def plugin_fails(self) -> bool:
        """Return whether the next answer raises an exception."""

    def unsure(self, client_id: str, filter: str) -> None:
        """Record that a subscription may be lost because no plugin was able to decide on it."""

    def echo(self) -> bytes:
        """Return the payload of a message that a plugin publishes."""

    def turned(self) -> None:
        """Record that a session has started, resumed or ended."""

    def journal(self, name: str) -> Journal:
        """Return the journal with this name for a starting broker."""

    def complain(self, invariant: str, text: str) -> None:
        """Report a violated invariant."""

    def timer_called(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        """Record a call of the keeper's timer."""


class Broken(Exception):
    """The exception that these plugins raise."""


class Part(Plugin):
    """The base class of the simulator's plugins."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(None, Context(name))
        self.world = world

    def answer(self, verdict: Any, delay: float = -1.0, fails: bool | None = None) -> Any:
        """Return `verdict` now or as an awaitable, or raise an exception."""
        world = self.world
        if world.plugin_fails() if fails is None else fails:
            raise Broken("as planned")
        if delay < 0:
            delay = world.plugin_delay()
        return self._later(verdict, delay) if delay else verdict

    async def _later(self, verdict: Any, delay: float) -> Any:
        await self.world.current().sleep(delay)
        return verdict


def certificate_of(number: int) -> Certificate:
    """Return the certificate of the connection with this number."""
    return Certificate(f"link{number}", f"CN=link{number}", (f"san{number}",), f"{number:064x}")


def claims_of(client: ClientInfo) -> dict[str, Any]:
    """Return a client's claims."""
    return {
        "port": client.peer.port,
        "groups": [client.client_id, {"keep_alive": client.keep_alive}],
    }


class Gate(Part):
    """A plugin that accepts every client, some after an exchange of AUTH packets."""

    @hookimpl
    def on_connect(self, client: ClientInfo, connect: Connect) -> Any:
        if client.username == "bad":
            return Deny()
        return self.answer(None, 0.2 if client.username == "slow" else -1.0)

    @hookimpl
    def on_auth(self, client: ClientInfo, auth: Auth) -> Any:
        if auth.properties.authentication_method != "SIM":
            return None
        data = auth.properties.authentication_data
        return self.answer(Challenge(b"1") if not data or data == b"0" else Accept())


class Acl(Part):
    """A plugin that denies certain topics, and decides on every delivery."""

    authorize_actions = frozenset(Action)

    @hookimpl
    def authorize(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None
    ) -> Any:
        world = self.world
        if client.peer.certificate != certificate_of(client.peer.port) or (
            client.claims != claims_of(client)
        ):
            # It may have connected to a broker that crashed since.
            world.complain(
                "12 client", f"{client} is asked about with {client.peer} and {client.claims}"
            )
        if action is Action.DELIVER:
            assert message is not None
            world.allowed.add((client.client_id, message.payload.partition(b".")[0]))
            return None
        if action is Action.SUBSCRIBE:
            plain = parse_share(topic)[1]
            for client_id, filter in world.denied:
                if client_id == client.client_id and self.contains(filter, plain):
                    world.unsure(client_id, topic)  # an MQTT 3.1 client is granted it nevertheless
                    return Deny()
            delay, fails = world.plugin_delay(), world.plugin_fails()
            if fails or delay > 0.2:
                world.unsure(client.client_id, topic)
            return self.answer(None, delay, fails)
        return self.answer(Deny() if topic.startswith("deny/") else None)


class Shaper(Part):
    """A plugin that refuses, drops, redirects and answers messages."""

    @hookimpl
    def on_publish(self, client: ClientInfo | None, message: Message, broker: Any) -> Any:
        kind, _, rest = message.topic.partition("/")
        verdict: Any = None
        if kind == "deny":
            verdict = Deny()
        elif kind == "drop":
            verdict = Drop()
        elif kind == "boom":
            raise Broken("as planned")
        elif kind == "mv":
            verdict = message.replace(topic=rest)
        elif kind == "echo":
            broker.publish("e/0", self.world.echo(), message.qos)
        return self.answer(verdict)


class Courier(Part):
    """A plugin that processes every delivery and replaces some."""

    @hookimpl
    def on_deliver(self, client: ClientInfo, message: Message, subscription: Subscription) -> Any:
        if message.topic == "t/2" and message.payload:
            if client.client_id.endswith("3"):
                return Drop()
            return message.replace(payload=message.payload + b"+")
        return None


class Filter(Part):
    """A plugin that lowers the QoS of some subscriptions."""

    @hookimpl
    def on_subscribe(self, client: ClientInfo, subscription: Subscription) -> Any:
        delay, fails = self.world.plugin_delay(), self.world.plugin_fails()
        if fails:
            self.world.unsure(
                client.client_id, subscription.filter
            )  # an MQTT 3.1 client is granted it nevertheless
        changed = None
        if subscription.topic_filter == "t/+" and subscription.qos == 2:
            changed = subscription.replace(qos=1)
        return self.answer(changed, delay, fails)


class Mourner(Part):
    """A plugin that processes wills."""

    @hookimpl
    def on_will(self, client: ClientInfo, message: Message) -> Any:
        return self.answer(message.replace(payload=message.payload + b"+"))


class Watch(Part):
    """A plugin that observes every event, because the core takes different code paths when there is an observer."""

    @hookimpl
    def on_session(self, client: ClientInfo, event: Any) -> None:
        pass

    @hookimpl
    def on_published(self, client: ClientInfo, message: Message, matched: int) -> None:
        pass

    @hookimpl
    def on_delivered(self, client: ClientInfo, message: Message, qos: int) -> None:
        pass

    @hookimpl
    def on_dropped(self, client: ClientInfo, message: Message, why: Any) -> None:
        pass

    @hookimpl
    def on_retained(self, topic: str, message: Message | None) -> None:
        pass

    @hookimpl
    def on_disconnect(self, client: ClientInfo, reason: Any) -> None:
        pass


class Warden(Part):
    """A plugin that observes sessions and gives clients claims. Through its handle, the world disconnects clients and
    revokes permissions.
    """

    @hookimpl
    def on_connect(self, client: ClientInfo, connect: Connect) -> Any:
        return Accept(claims=claims_of(client))

    @hookimpl
    def on_session(self, client: ClientInfo, event: Any) -> None:
        self.world.turned()


class Scribe(Part):
    """A plugin that provides a journal under its own name."""

    @hookimpl
    def provide_journal(self) -> Journal:
        return self.world.journal(self.id)


class Timekeeper(Part):
    """A plugin that keeps state and sets timers. The world makes the changes through the plugin's handle."""

    @hookimpl
    def on_timer(self, key: str, data: bytes, broker: BrokerHandle) -> None:
        if not self.world.calm and self.world.chance.random() < 0.1:
            raise Broken("as planned")
        self.world.timer_called(key, data, broker)


PARTS: Final[dict[str, Callable[[World, str], Part]]] = {
    "gate": Gate, "acl": Acl, "shaper": Shaper, "courier": Courier, "filter": Filter, "mourner": Mourner,
    "watch": Watch, "warden": Warden, "log": Scribe, "outbox": Scribe, "all": Scribe,
    "keeper": Timekeeper,
}  # fmt: skip
