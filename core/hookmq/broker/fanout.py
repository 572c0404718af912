"""From one accepted message to everybody who wants it: retained store, journals, sessions, groups.

Small fan-outs happen at once. A large one is cut into slices, one a turn, so that it does not stall the others; the list
of targets is taken once, and messages of one topic go out first in, first out
[MQTT-4.6.0-5, 4.6.0-6] [MQTT311-4.6.0-5, 4.6.0-6].
"""

from collections import deque
from functools import partial

from hookmq.broker.core import Core
from hookmq.broker.deliver import offer
from hookmq.broker.retain import retain
from hookmq.broker.routes import Route, Target
from hookmq.broker.shared import offer_group
from hookmq.qos import Acknowledgement, Outgoing
from hookmq.session import Session
from hookmq.types import Direction, DropReason, Message


class FanOut:
    """One message's way to many targets, `done` of them served."""

    __slots__ = ("acknowledgement", "done", "outgoing", "sender", "targets", "waiter")

    def __init__(
        self,
        outgoing: Outgoing,
        targets: tuple[Target, ...],
        sender: Session | None,
        acknowledgement: Acknowledgement | None,
        waiter: Acknowledgement | None,
    ) -> None:
        self.outgoing = outgoing
        self.targets = targets
        self.sender = sender
        self.acknowledgement = acknowledgement
        self.waiter = waiter
        self.done = 0


def publish(
    core: Core, message: Message, sender: Session | None, acknowledgement: Acknowledgement | None
) -> int:
    """Hand `message` on to everybody and return how many matched: sessions, groups and journals. The one way a message
    takes, whoever sent it; it was authorized and transformed before.

    `acknowledgement` is made to wait for what it relies on: the last slice, unless fan-out is asynchronous, and the start
    of deliveries under back-pressure. The commit is the caller's to wait for.
    """
    route = core.router.lookup(message.topic)
    outgoing = Outgoing(message)
    if message.retain:  # [MQTT-3.3.1-8] [MQTT311-3.3.1-12]
        retain(core, message)
    for journal in route.journals:
        core.committer.journal(journal, message)
    waiter = None
    if core.settings.session.inflight_overflow == "backpressure" and acknowledgement is not None:
        waiter = _back_pressure(core, acknowledgement)
    topic = message.topic
    waiting = core.fan_outs.get(topic)
    if waiting is not None or len(route.targets) > core.settings.broker.fan_out_slice:
        _cut(core, route, FanOut(outgoing, route.targets, sender, acknowledgement, waiter))
    else:
        for target in route.targets:  # [MQTT-4.5.0-1] [MQTT311-4.5.0-1]
            _serve(core, target, outgoing, sender, waiter)
    for group in route.groups:
        offer_group(core, group, outgoing)
    if waiter is not None:
        waiter.met()
    if "on_published" in core.observed:
        client = sender.client if sender is not None else None
        core.observe("on_published", client, message, route.matched)
    return route.matched


def _back_pressure(core: Core, acknowledgement: Acknowledgement) -> Acknowledgement:
    """What the deliveries of a message count on: when all have started, or after a time, the publisher's
    acknowledgement need not wait for them any more."""
    acknowledgement.hold()
    timeout = core.settings.session.backpressure_timeout
    due = core.deadlines.after(timeout, acknowledgement.met)

    def started() -> None:
        if due.call is not None:
            due.cancel()
            acknowledgement.met()

    waiter = Acknowledgement(started)
    waiter.hold()
    return waiter


def _serve(
    core: Core,
    target: Target,
    outgoing: Outgoing,
    sender: Session | None,
    waiter: Acknowledgement | None,
) -> None:
    session = target.session
    if session is sender:
        waiter = None  # a client never waits for itself
        if target.no_local:
            remote = target.without_local()
            if remote is None:
                return
            target = remote
    message = outgoing.message
    qos = min(message.qos, target.qos)  # [MQTT-3.8.4-8] [MQTT311-3.8.4-6]
    # [MQTT-3.3.1-12, 3.3.1-13] [MQTT311-3.3.1-9]
    retain_flag = message.retain and target.retain_as_published
    offer(
        core, session, outgoing, qos, retain_flag, target.identifiers, target.subscription, waiter
    )


def _cut(core: Core, route: Route, job: FanOut) -> None:
    # What must outlive us is queued now, all of it: a message's queue entries and the sender's QoS 2 id are one batch,
    # or a crash between two slices would lose it for some, or deliver it twice. The others are served in slices.
    rest = []
    qos = job.outgoing.message.qos
    queue_qos0 = core.settings.session.queue_qos0
    for target in job.targets:
        if target.session.durable and (queue_qos0 or (qos and target.qos)):
            _serve(core, target, job.outgoing, job.sender, job.waiter)
        else:
            rest.append(target)
    job.targets = tuple(rest)
    if job.waiter is not None:
        job.waiter.hold()
    if core.settings.broker.async_fan_out:
        job.acknowledgement = None
    elif job.acknowledgement is not None:
        job.acknowledgement.hold()
    jobs = core.fan_outs.get(route.topic)
    if jobs is None:
        jobs = core.fan_outs[route.topic] = deque()
        core.router.invalidate(route.topic)  # no fast path while slices are on their way
        core.runtime.call_soon(partial(_slice, core, route.topic))
    jobs.append(job)


def _slice(core: Core, topic: str) -> None:
    """Serve the next slice of the first job of `topic`."""
    jobs = core.fan_outs[topic]
    job = jobs[0]
    end = min(job.done + core.settings.broker.fan_out_slice, len(job.targets))
    sessions = core.sessions
    message = job.outgoing.message
    for target in job.targets[job.done : end]:
        session = target.session
        if sessions.get(session.client_id) is session:
            _serve(core, target, job.outgoing, job.sender, job.waiter)
        else:  # left between two slices
            core.dropped(message, session.client, DropReason.SESSION_ENDED, Direction.OUT)
    job.done = end
    if end == len(job.targets):
        jobs.popleft()
        if job.waiter is not None:
            job.waiter.met()
        if job.acknowledgement is not None:
            job.acknowledgement.met()
    if jobs:
        core.runtime.call_soon(partial(_slice, core, topic))
    else:
        del core.fan_outs[topic]
        core.router.invalidate(topic)
    core.schedule()
