"""This broker, as its cluster sees it: the implementation of `hookmq.storage.cluster.Node`."""

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from functools import partial

from hookmq.broker.cluster_delivery import chosen, deliver_packets, deliver_to, hand_on
from hookmq.broker.cluster_sessions import adopt, forget, forget_queues
from hookmq.broker.connection import ClientConnection
from hookmq.broker.plugin_connection import PluginConnection
from hookmq.broker.publish.retained import clear, keep_retained
from hookmq.broker.retained_expiry import Kept
from hookmq.broker.state import BrokerState
from hookmq.model.client import ClientInfo
from hookmq.model.events import EndedBy
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.storage.cluster import RelayTarget, Remote, Wanted, Wills
from hookmq.storage.records import Loaded


class ClusterNode:
    """What the other nodes of a cluster cause on this one."""

    __slots__ = ("_state",)

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def add_remote(self, remote: Remote, subscription: Subscription) -> None:
        self._state.router.subscribe(subscription.topic_filter, remote, subscription)

    def remove_remote(self, remote: Remote, topic_filter: str) -> None:
        self._state.router.unsubscribe(topic_filter, remote)

    def deliver(self, message: Message, wanted: Wanted, groups: Collection[str]) -> None:
        state = self._state
        route = state.router.lookup(message.topic)
        recipients = chosen(route.recipients, wanted)
        shared = [one for one in route.groups if one.owner in groups] if groups else []
        if recipients or shared:
            deliver_to(state, route, message, recipients, shared)

    def deliver_packets(self, sender: str, five: bool, data: bytes, wanted: Wanted | None) -> None:
        deliver_packets(self._state, sender, five, data, wanted)

    def forget_routes(self) -> None:
        self._state.router.clear_cache()

    def hand_on(self, owner: str) -> None:
        _, share, topic_filter = owner.split("/", 2)
        if (group := self._state.groups.get((share, topic_filter))) is not None:
            hand_on(self._state, group)

    def flush(self) -> None:
        self._state.writes.schedule()

    def touch(self) -> None:
        self._state.committer.stored()
        self._state.writes.schedule()

    def after_commit(self, call: Callable[[], None]) -> None:
        self._state.committer.after_commit(call)
        self._state.writes.schedule()

    def adopt(
        self, records: Iterable[Loaded], joined: bool = True, others: Collection[str] = ()
    ) -> tuple[int, Wills]:
        return adopt(self._state, records, joined, others)

    def release(
        self, client_ids: Sequence[str], code: ReasonCode, reason: str, reference: str = ""
    ) -> None:
        state = self._state
        for client_id in client_ids:
            if (session := state.sessions.get(client_id)) is not None:
                state.guarded(partial(forget, state, session, code, reason, reference))
        state.writes.schedule()

    def forget_queues(self, owners: Container[str]) -> None:
        forget_queues(self._state, owners)

    def clients(self) -> list[str]:
        sessions = self._state.sessions.values()
        return [
            session.client_id
            for session in sessions
            if isinstance(session.connection, ClientConnection)
            and not isinstance(session.connection, PluginConnection)
        ]

    def disconnect(
        self, client_id: str, code: ReasonCode, reason: str, reference: str = ""
    ) -> bool:
        state = self._state
        session = state.sessions.get(client_id)
        connection = session.connection if session is not None else None
        if not isinstance(connection, ClientConnection):
            return False
        by = EndedBy.TAKEOVER if code is ReasonCode.SESSION_TAKEN_OVER else EndedBy.SERVER
        connection.disconnect(code, reason, reference, by)
        state.writes.schedule()
        return True

    def retain(self, message: Message, publisher: ClientInfo | None) -> None:
        # The limits on retained messages do not apply: every node of a cluster has the same messages.
        state, topic = self._state, message.topic
        if message.payload:
            owner = None if publisher is None else state.publishers.find(publisher)
            keep_retained(state, Kept(message, owner))
            state.observe_retained(topic, message)
        elif (known := state.retained.get(topic)) is not None:
            clear(state, topic, known, False)

    def relay_target(self, listener: str) -> RelayTarget | None:
        return self._state.relay_target(listener)

    def fail(self, reason: str) -> None:
        self._state.committer.fail(reason)
