"""Deliver one accepted message to all its recipients: retained messages, journals, sessions and shared subscriptions.

A small fan-out is done at once. A large one is divided into slices, one per turn, so that other clients do not wait.
Its recipients are fixed at the start, and messages on one topic are sent in order of arrival [MQTT-4.6.0-5, 4.6.0-6]
[MQTT311-4.6.0-5, 4.6.0-6].

A message's queue entries and its publisher's QoS 2 packet id belong to one batch. Otherwise a crash between two slices
would lose the message for some recipients, or deliver it twice. So shared subscriptions and durable sessions are served
first, and the commit waits for them. Other clients' acknowledgements wait too; their traffic does not. Only one fan-out
at a time delays the commit, and the next large message waits before it is accepted (`PublishPipeline`).
"""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from hookmq.broker.delivery.deliver import deliver
from hookmq.broker.delivery.shared import offer_group
from hookmq.broker.fan_out_job import FanOutJob
from hookmq.broker.publish.retained import set_retained
from hookmq.broker.state import BrokerState
from hookmq.model.client import ClientInfo
from hookmq.model.events import Direction, DropReason
from hookmq.model.message import Message
from hookmq.routing.route import GROUP_STEPS, Recipient, Route
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.inflight import Acknowledgement, Outgoing
from hookmq.session.session import QUEUEING, UNENCODED, Session
from hookmq.storage.protocols import BoundedJournal


def publish(
    state: BrokerState,
    route: Route,
    message: Message,
    sender: Session | None,
    acknowledgement: Acknowledgement | None,
    client: ClientInfo | None,
    allowed: float | None,
    without: tuple[BoundedJournal, ...] = (),
    volatile: bool = False,
) -> int:
    """Deliver `message` along `route`, the current route of its topic. Return how many recipients match.

    Every message passes through here once it is authorized and transformed. `acknowledgement` waits for the last slice,
    unless fan-out is asynchronous. With back-pressure, it also waits until all deliveries have started. It may be None
    if neither can apply. The caller waits for the commit. `client` is the publisher, or None if it is not a client. Its
    permission is valid for `allowed` seconds; None means without limit. Journals in `without` have no room and do not
    receive the message. A `volatile` message is retained without a record.
    """
    outgoing = Outgoing(message)
    collecting = state.collecting
    if collecting is not None and (
        route.large or collecting.outgoing.message.topic == message.topic
    ):
        serve_slice(state, [collecting], collecting.kept, ALL)
    if message.retain:  # [MQTT-3.3.1-8] [MQTT311-3.3.1-12]
        set_retained(state, message, client, allowed, volatile)
    for journal in route.journals:
        if journal not in without:
            state.committer.journal(journal, message)
    waiter = None
    if acknowledgement is not None and state.queue_limits.back_pressure:
        waiter = _back_pressure(state, acknowledgement)
    topic = message.topic
    groups = route.groups
    cluster = state.cluster
    if cluster is not None:
        if route.remotes is not None and cluster.forward(message, route.remotes):
            state.committer.stored()
        if groups:
            groups = tuple(one for one in groups if one.online or not cluster.elsewhere(one.owner))
    waiting = state.fan_outs.get(topic)
    if waiting is not None or route.large:
        job = FanOutJob(outgoing, route, sender, acknowledgement, waiter)
        cut(state, job, route.recipients, groups, spread=collecting is None and waiting is None)
    else:
        for recipient in route.recipients:  # [MQTT-4.5.0-1] [MQTT311-4.5.0-1]
            serve(state, recipient, outgoing, sender, waiter)
        for group in groups:
            offer_group(state, group, outgoing)
    if waiter is not None:
        waiter.met()
    if "on_published" in state.observed:
        state.observe("on_published", client, message, route.matched)
    return route.matched


def _back_pressure(state: BrokerState, acknowledgement: Acknowledgement) -> Acknowledgement:
    """Return the waiter that a message's deliveries share. Once all of them have started, or after a timeout, the
    publisher's acknowledgement no longer waits for them."""
    acknowledgement.add_condition()
    timeout = state.settings.session.backpressure_timeout
    due = state.deadlines.after(timeout, acknowledgement.met)

    def started() -> None:
        if due.call is not None:
            due.cancel()
            acknowledgement.met()

    waiter = Acknowledgement(started)
    waiter.add_condition()
    return waiter


def serve(
    state: BrokerState,
    recipient: Recipient,
    outgoing: Outgoing,
    sender: Session | None,
    waiter: Acknowledgement | None,
) -> None:
    session = recipient.session
    if session is sender:
        waiter = None  # a client never waits for itself
        if recipient.no_local:
            remote = recipient.without_local()
            if remote is None:
                return
            recipient = remote
    message = outgoing.message
    qos = min(message.qos, recipient.qos)  # [MQTT-3.8.4-8] [MQTT311-3.8.4-6]
    # [MQTT-3.3.1-12, 3.3.1-13] [MQTT311-3.3.1-9]
    retain_flag = message.retain and recipient.retain_as_published
    deliver(
        state,
        session,
        outgoing,
        qos,
        retain_flag,
        recipient.identifiers,
        recipient.subscription,
        waiter,
    )


def cut(
    state: BrokerState,
    job: FanOutJob,
    recipients: Sequence[Recipient],
    groups: Sequence[SharedSubscription],
    spread: bool,
) -> None:
    topic = job.route.topic
    qos = job.outgoing.message.qos
    kept: list[Recipient] = []
    if qos or state.settings.session.queue_qos0:
        every = state.settings.session.queue_qos0
        kept = [one for one in recipients if one.session.durable and (every or one.qos)]
    if kept and len(kept) < len(recipients):
        rest = [one for one in recipients if not (one.session.durable and (every or one.qos))]
        job.recipients = (*groups, *kept, *rest)
    elif groups or recipients is not job.route.recipients:
        job.recipients = (*groups, *recipients)
    job.kept = len(groups) + len(kept)
    steps = GROUP_STEPS * len(groups) + len(kept)
    if spread and steps > state.settings.broker.fan_out_batch:
        state.collecting = job
        state.committer.hold_batch()
    else:
        serve_slice(state, [job], job.kept, ALL)
    if job.waiter is not None:
        job.waiter.add_condition()
    if state.settings.broker.async_fan_out:
        job.acknowledgement = None
    elif job.acknowledgement is not None:
        job.acknowledgement.add_condition()
    jobs = state.fan_outs.get(topic)
    if jobs is None:
        jobs = state.fan_outs[topic] = deque()
        if not state.fan_order:
            state.runtime.call_soon(partial(_slices, state))
        state.fan_order.append(topic)
    if job.route.local:
        state.router.invalidate(topic)  # no fast path while slices are in progress
    jobs.append(job)


def serve_slice(state: BrokerState, jobs: list[FanOutJob], end: int, steps: int) -> None:
    """Deliver the messages of `jobs` to recipients up to `end`, or until `steps` (`BrokerState.work`) are used up.

    All `jobs` have the same recipients and the same progress.
    """
    sessions = state.sessions
    first = jobs[0]
    shared = 0
    done = first.done
    enough = state.work + steps
    try:
        for recipient in first.recipients[done:end]:
            done += 1
            if isinstance(recipient, SharedSubscription):
                for job in jobs:
                    offer_group(state, recipient, job.outgoing)
                if state.work > enough:
                    break
                continue
            session = recipient.session
            if sessions.get(session.client_id) is not session:  # ended between two slices
                for job in jobs:
                    message = job.outgoing.message
                    state.dropped(message, session.client, DropReason.SESSION_ENDED, Direction.OUT)
                continue
            plain = recipient.plain and session.encoding_version > UNENCODED
            for job in jobs:
                packet = b""
                if plain and session.state != QUEUEING:
                    packet = job.packet(session.encoding_version, state.largest_packet)
                if packet:
                    session.out.append(packet)
                    state.writes.mark(session)
                    shared += 1
                else:
                    serve(state, recipient, job.outgoing, job.sender, job.waiter)
            if state.work > enough:
                break
    finally:  # otherwise one internal error would block all commits
        state.metrics.messages_delivered += shared
        if shared:
            state.writes.share(
                sum(max(map(len, (job.packets or {}).values()), default=0) for job in jobs)
            )
        for job in jobs:
            job.done = done
            if state.collecting is job and done >= job.kept:
                state.collecting = None
                state.committer.release_batch()
                state.writes.schedule()
                if state.after_collecting:
                    state.runtime.call_soon(partial(_collect_next, state))


def _collect_next(state: BrokerState) -> None:
    """Continue with the large messages that were waiting, until one of them must be served in slices."""
    state.commit_pause.commit_now()  # the commit waits for one large message, not for all
    enough = state.work + _STEPS
    while state.after_collecting and state.collecting is None:
        if state.work > enough:
            state.runtime.call_soon(partial(_collect_next, state))
            return
        state.guarded(state.after_collecting.popleft())
    state.writes.schedule()


def _together(state: BrokerState, waiting: deque[FanOutJob]) -> list[FanOutJob]:
    """Return the first jobs that one pass over their common recipients can serve. Each receiver then gets all their
    messages in one write."""
    first = waiting[0]
    jobs: list[FanOutJob] = []
    size = 0
    for job in waiting:
        size += job.outgoing.size
        if jobs and (
            job.recipients is not first.recipients
            or job.done != first.done
            or len(jobs) == _TOGETHER
            or size > state.writes.room
        ):
            break
        jobs.append(job)
    return jobs


def _slices(state: BrokerState) -> None:
    """Serve the slices of one turn, topic by topic."""
    left = state.settings.broker.fan_out_batch
    enough = state.work + _STEPS
    order = state.fan_order
    for _ in range(len(order)):
        topic = order[0]
        left -= _slice(state, topic, left, enough - state.work)
        order.popleft()
        if topic in state.fan_outs:
            order.append(topic)
        if left <= 0 or state.work > enough:
            break
    if order:
        state.runtime.call_soon(partial(_slices, state))
    state.writes.schedule()


def _slice(state: BrokerState, topic: str, most: int, steps: int) -> int:
    """Serve up to `most` recipients of the first jobs of `topic`. Return how many were served."""
    waiting = state.fan_outs[topic]
    jobs = _together(state, waiting)
    first = jobs[0]
    share = max(1, most // len(jobs))
    before = first.done
    end = min(before + share, len(first.recipients))
    state.guarded(partial(serve_slice, state, jobs, end, steps))
    if first.done == len(first.recipients):
        for job in jobs:
            waiting.popleft()
            if job.waiter is not None:
                job.waiter.met()
            if job.acknowledgement is not None:
                job.acknowledgement.met()
    if not waiting:
        del state.fan_outs[topic]
        if first.route.local or not first.route.valid:
            # Meanwhile, the connections have seen that there is no fast path. A large route never has one, and
            # compiling it for every message would take longer than a slice.
            state.router.invalidate(topic)
    return (first.done - before) * len(jobs)


_TOGETHER: Final = 64
"""Maximum number of fan-outs served in one pass."""
_STEPS: Final = 512
"""Maximum number of steps (`BrokerState.work`) for all slices of one turn together."""
ALL: Final = 1 << 60
