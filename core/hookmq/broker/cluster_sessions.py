"""Sessions in a cluster: claim a client for this node, and add or forget sessions that move between nodes."""

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from functools import partial

from hookmq.broker.connection import ClientConnection
from hookmq.broker.delivery.transmit import release_publisher
from hookmq.broker.handlers.locate import refuse
from hookmq.broker.recovery import GroupQueues, load, set_deadlines
from hookmq.broker.sessions.lifecycle import cancel_end, clear_messages, deliveries, return_shared
from hookmq.broker.sessions.subscriptions import unsubscribe
from hookmq.broker.sessions.wills import cancel_will, publish_will
from hookmq.broker.state import BrokerState
from hookmq.model.client import ClientInfo
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.session import QUEUEING, Session
from hookmq.storage.cluster import Refused, Wills
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import (
    Enqueue,
    Loaded,
    PutMessage,
    PutReceived,
    PutSession,
    PutState,
    PutSubscription,
    QueueSummary,
)


def claim(
    connection: ClientConnection, client: ClientInfo, durable: bool, enter: Callable[[], None]
) -> None:
    """Call `enter` once the cluster has made this node the only one that has the client. Refuse the client if that fails.
    The connection may have ended by then.

    `durable` is true if the session will outlive the connection.
    """
    state = connection.state
    assert state.cluster is not None
    known = state.sessions.get(client.client_id)

    def claimed(refused: Refused | None) -> None:
        if refused is not None:
            refuse(connection, refused)
            return
        try:
            enter()
        except Exception as error:
            connection.internal_error(error)

    connection.wait(None)
    state.cluster.claim(client, durable or (known is not None and known.durable), claimed)


def adopt(
    state: BrokerState, records: Iterable[Loaded], joined: bool, others: Collection[str]
) -> tuple[int, Wills]:
    """Add the sessions in `records`, which another process has stored, to a running broker. See
    `hookmq.storage.cluster.Node.adopt`.
    """
    known = {*state.sessions, *others}
    groups = set(state.groups)
    plugins = {name for name, space in state.plugin_states.spaces.items() if space.keys}
    former: list[Session] = []
    waiting = load(state, _unknown(known, plugins, records, former))
    state.next_message_id = max(state.next_message_id, state.store.next_message_id())
    added = [session for name, session in state.sessions.items() if name not in known]
    new = [one for key, one in state.groups.items() if key not in groups and one.owner in waiting]
    answers: list[StoreFailed | None] = []
    GroupQueues(state, new, answers.append).load()
    failed = answers[0] if answers else StoreFailed("a queue was not read at once")
    if failed is not None:
        state.committer.fail(failed.reason)
        return len(added), {}
    for session in added:
        return_shared(state, session)
    if joined:
        set_deadlines(state, added)
    state.writes.schedule()
    return len(added), {one.client_id: partial(publish_will, state, one) for one in former}


def _unknown(
    known: Container[str], plugins: Container[str], records: Iterable[Loaded], former: list[Session]
) -> Iterator[Loaded]:
    """Yield the records of sessions that are not in `known`, of plugins that are not in `plugins`, and of the queues of
    shared subscriptions. Add the sessions in `known` that end with their connection to `former`: they have ended, because
    their clients have others [MQTT-3.1.2-8]."""
    for item in records:
        wanted = isinstance(item, QueueSummary | PutMessage)
        if isinstance(item, PutSession):
            wanted = item.session.client_id not in known
            if not wanted and not item.session.expiry:
                former.append(Session(item.session.client.client()))
                former[-1].will = item.session.will
        elif isinstance(item, PutSubscription | PutReceived):
            wanted = item.client_id not in known
        elif isinstance(item, Enqueue | QueueSummary) and item.owner.startswith("c/"):
            wanted = item.owner[2:] not in known
        elif isinstance(item, PutState):
            wanted = item.space[2:] not in plugins
        if wanted:
            yield item


def forget(
    state: BrokerState, session: Session, code: ReasonCode, reason: str, reference: str
) -> None:
    """Remove a session from this node without ending it, because another node has it now. Record nothing and publish
    no will. Disconnect its client with `code`, and name the server `reference`.
    """
    # The end of the connection must not change the session, so remove the session first.
    del state.sessions[session.client_id]
    state.session_index.remove(session)
    cancel_end(session)
    cancel_will(session)
    if session.connection is not None:
        session.connection.disconnect(code, reason, reference)
    session.connection = None
    session.generation += 1
    session.state = QUEUEING
    session.out = []
    session.resend = session.queue_qos0 = None
    for will in state.undecided_wills.get(session.client_id, ()):
        will.stop_waiting()
    for subscription in list(session.subscriptions.values()):
        unsubscribe(state, session, subscription, record_it=False, keep_queue=True)
    for delivery in deliveries(session):
        release_publisher(state, delivery)
    clear_messages(state, session)


def forget_queues(state: BrokerState, owners: Container[str]) -> None:
    """Remove shared subscriptions without members, whose queues another node has now; see
    `hookmq.storage.cluster.Node.forget_queues`.
    """
    for key, group in list(state.groups.items()):
        if group.members or group.owner not in owners:
            continue
        state.router.unsubscribe(group.topic_filter, group)
        del state.groups[key]
        state.group_index.remove(group)
        state.queued_bytes -= sum(delivery.weight for delivery in group.queue)
        group.queue.clear()
