"""From one accepted message to everybody who wants it: retained store, journals, sessions, groups.

Small fan-outs happen at once. A large one is cut into slices, one a turn, so that it does not stall the others; the list
of targets is taken once, and messages of one topic go out first in, first out
[MQTT-4.6.0-5, 4.6.0-6] [MQTT311-4.6.0-5, 4.6.0-6].

A message's queue entries and its sender's QoS 2 id are one batch, or a crash between two slices would lose it for some,
or deliver it twice. So groups and sessions that outlive their connections come first, and while they are served the
commit waits: other clients' acknowledgements with it, their traffic not. One such job collects at a time, and the next
message for many waits before it is accepted (`Ingest`): the commit waits for one job, not for a stream of them.
"""

from collections import deque
from functools import partial
from typing import Final

from hookmq.broker.core import Core
from hookmq.broker.deliver import offer
from hookmq.broker.groups import Group
from hookmq.broker.retain import retain
from hookmq.broker.routes import GROUP_STEPS, Route, Target
from hookmq.broker.shared import offer_group
from hookmq.codec import encode_properties, encode_publish_parts
from hookmq.qos import Acknowledgement, Outgoing
from hookmq.session import BEHIND, Session
from hookmq.store import BoundedJournal
from hookmq.types import ClientInfo, Direction, DropReason, Message


class FanOut:
    """One message's way to many targets, `done` of them served; the first `kept` are groups, or outlive their
    connections."""

    __slots__ = (
        "acknowledgement", "done", "kept", "outgoing", "packets", "route", "sender", "targets", "waiter",
    )  # fmt: skip

    def __init__(
        self,
        outgoing: Outgoing,
        route: Route,
        sender: Session | None,
        acknowledgement: Acknowledgement | None,
        waiter: Acknowledgement | None,
    ) -> None:
        self.outgoing = outgoing
        self.route = route
        self.targets: tuple[Target | Group, ...] = route.targets
        self.sender = sender
        self.acknowledgement = acknowledgement
        self.waiter = waiter
        self.done = 0
        self.kept = 0
        message = outgoing.message
        shared = not (message.qos or message.retain or message.expires_at is not None)
        self.packets: dict[int, bytes] | None = {} if shared else None
        """The packet that all plain receivers of a kind take; None for a message that is not the same for all."""

    def packet(self, core: Core, kind: int) -> bytes:
        """The packet for plain receivers of `kind`; empty where each must be looked at."""
        if self.packets is None:
            return b""
        found = self.packets.get(kind)
        if found is None:
            message = self.outgoing.message
            section = encode_properties(message.properties) if kind == 5 else None
            head, tail = encode_publish_parts(
                message.topic.encode(), message.payload, 0, False, False, section
            )
            found = head + tail
            if len(found) > core.largest_packet:  # a plugin made it so; see `kind_of`
                found = b""
            self.packets[kind] = found
        return found


def publish(
    core: Core,
    message: Message,
    sender: Session | None,
    acknowledgement: Acknowledgement | None,
    client: ClientInfo | None,
    allowed: float | None,
    without: tuple[BoundedJournal, ...] = (),
) -> int:
    """Hand `message` on to everybody and return how many matched: sessions, groups and journals. The one way a message
    takes, whoever sent it; it was authorized and transformed before.

    `acknowledgement` is made to wait for what it relies on: the last slice, unless fan-out is asynchronous, and the start
    of deliveries under back-pressure. The commit is the caller's to wait for. `client` published it, None for no client;
    that is `allowed` for so many seconds, None for good. Journals of `without` have no room and
    do not get it.
    """
    route = core.router.lookup(message.topic)
    outgoing = Outgoing(message)
    collecting = core.collecting
    if collecting is not None and (
        route.large or collecting.outgoing.message.topic == message.topic
    ):
        _serve_slice(core, [collecting], collecting.kept, _ALL)
    if message.retain:  # [MQTT-3.3.1-8] [MQTT311-3.3.1-12]
        retain(core, message, client, allowed)
    for journal in route.journals:
        if journal not in without:
            core.committer.journal(journal, message)
    waiter = None
    if core.settings.session.inflight_overflow == "backpressure" and acknowledgement is not None:
        waiter = _back_pressure(core, acknowledgement)
    topic = message.topic
    waiting = core.fan_outs.get(topic)
    if waiting is not None or route.large:
        job = FanOut(outgoing, route, sender, acknowledgement, waiter)
        _cut(core, job, spread=collecting is None and waiting is None)
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


def _cut(core: Core, job: FanOut, spread: bool) -> None:
    topic = job.route.topic
    qos = job.outgoing.message.qos
    targets = job.route.targets
    groups = job.route.groups
    kept: list[Target] = []
    if qos or core.settings.session.queue_qos0:
        every = core.settings.session.queue_qos0
        kept = [one for one in targets if one.session.durable and (every or one.qos)]
    if kept and len(kept) < len(targets):
        rest = [one for one in targets if not (one.session.durable and (every or one.qos))]
        job.targets = (*groups, *kept, *rest)
    elif groups:
        job.targets = (*groups, *targets)
    job.kept = len(groups) + len(kept)
    steps = GROUP_STEPS * len(groups) + len(kept)
    if spread and steps > core.settings.broker.fan_out_slice:
        core.collecting = job
        core.committer.hold()
    else:
        _serve_slice(core, [job], job.kept, _ALL)
    if job.waiter is not None:
        job.waiter.hold()
    if core.settings.broker.async_fan_out:
        job.acknowledgement = None
    elif job.acknowledgement is not None:
        job.acknowledgement.hold()
    jobs = core.fan_outs.get(topic)
    if jobs is None:
        jobs = core.fan_outs[topic] = deque()
        if not core.fan_order:
            core.runtime.call_soon(partial(_slices, core))
        core.fan_order.append(topic)
    if job.route.simple:
        core.router.invalidate(topic)  # no fast path while slices are on their way
    jobs.append(job)


def _serve_slice(core: Core, jobs: list[FanOut], end: int, steps: int) -> None:
    """Serve targets up to `end`, or until that took so many steps (`Core.work`), with the messages of `jobs`, which have
    the same targets and have served as many."""
    sessions = core.sessions
    first = jobs[0]
    shared = 0
    done = first.done
    enough = core.work + steps
    try:
        for target in first.targets[done:end]:
            done += 1
            if isinstance(target, Group):
                for job in jobs:
                    offer_group(core, target, job.outgoing)
                if core.work > enough:
                    break
                continue
            session = target.session
            if sessions.get(session.client_id) is not session:  # left between two slices
                for job in jobs:
                    message = job.outgoing.message
                    core.dropped(message, session.client, DropReason.SESSION_ENDED, Direction.OUT)
                continue
            plain = target.plain and session.kind != 0
            for job in jobs:
                packet = b""
                if plain and session.state != BEHIND:
                    packet = job.packet(core, session.kind)
                if packet:
                    session.out.append(packet)
                    core.mark(session)
                    shared += 1
                else:
                    _serve(core, target, job.outgoing, job.sender, job.waiter)
            if core.work > enough:
                break
    finally:  # or one fault of ours would hold up everybody's commits
        core.metrics.messages_delivered += shared
        if shared:
            core.share(sum(max(map(len, (job.packets or {}).values()), default=0) for job in jobs))
        for job in jobs:
            job.done = done
            if core.collecting is job and done >= job.kept:
                core.collecting = None
                core.committer.release()
                core.schedule()
                if core.after_collecting:
                    core.runtime.call_soon(partial(_collect_next, core))


def _collect_next(core: Core) -> None:
    """Go on with messages for many that waited, until one of them is collected in slices again."""
    core.commit_now()  # the commit waits for one of them, not for all
    enough = core.work + _STEPS
    while core.after_collecting and core.collecting is None:
        if core.work > enough:
            core.runtime.call_soon(partial(_collect_next, core))
            return
        core.guarded(core.after_collecting.popleft())
    core.schedule()


def _together(core: Core, waiting: deque[FanOut]) -> list[FanOut]:
    """The first jobs that can be served in one pass over their targets: those that came while others were served. So each
    receiver gets their messages in one write, and the cost of a message does not rise as soon as fan-outs are cut."""
    first = waiting[0]
    jobs: list[FanOut] = []
    size = 0
    for job in waiting:
        size += job.outgoing.size
        if jobs and (
            job.targets is not first.targets
            or job.done != first.done
            or len(jobs) == _TOGETHER
            or size > core.write_room
        ):
            break
        jobs.append(job)
    return jobs


def _slices(core: Core) -> None:
    """Serve what is due in one turn: topics in turn, so many targets altogether."""
    left = core.settings.broker.fan_out_slice
    enough = core.work + _STEPS
    order = core.fan_order
    for _ in range(len(order)):
        topic = order[0]
        left -= _slice(core, topic, left, enough - core.work)
        order.popleft()
        if topic in core.fan_outs:
            order.append(topic)
        if left <= 0 or core.work > enough:
            break
    if order:
        core.runtime.call_soon(partial(_slices, core))
    core.schedule()


def _slice(core: Core, topic: str, most: int, steps: int) -> int:
    """Serve up to `most` targets of the first jobs of `topic`; how many that were."""
    waiting = core.fan_outs[topic]
    jobs = _together(core, waiting)
    first = jobs[0]
    share = max(1, most // len(jobs))
    before = first.done
    end = min(before + share, len(first.targets))
    core.guarded(partial(_serve_slice, core, jobs, end, steps))
    if first.done == len(first.targets):
        for job in jobs:
            waiting.popleft()
            if job.waiter is not None:
                job.waiter.met()
            if job.acknowledgement is not None:
                job.acknowledgement.met()
    if not waiting:
        del core.fan_outs[topic]
        if first.route.simple or not first.route.valid:
            # What was learnt meanwhile is that there is no fast path. Of a large route that is so anyhow, and to compile
            # it for every message would take longer than a slice.
            core.router.invalidate(topic)
    return (first.done - before) * len(jobs)


_TOGETHER: Final = 64
"""Fan-outs that are served in one pass."""
_STEPS: Final = 512
"""Steps (`Core.work`) of all slices of one turn."""
_ALL: Final = 1 << 60
