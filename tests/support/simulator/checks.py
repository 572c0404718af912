"""Invariants of the broker's own state.

They are checked at every step, once nothing is pending, or once all clients have left.
"""

from collections.abc import Callable

from hookmq.broker import Broker
from hookmq.broker.connection_state import Phase
from hookmq.hooks.manager import Hooks
from hookmq.model.settings import Settings
from hookmq.mqtt import topics
from hookmq.storage.records import session_owner
from hookmq_testing.runtime import VirtualRuntime

from simulator.disk import Disk

Complain = Callable[[str, str], None]
contains = topics.contains


def check_step(broker: Broker, settings: Settings, restarted: bool, complain: Complain) -> None:
    """Check the invariants that hold between any two events."""
    core = broker.state
    limits = settings.session
    total = loaded = held = 0
    for session in core.sessions.values():
        held += session.own_bytes + session.filter_bytes
        if session.filter_bytes != sum(map(len, session.subscriptions)):
            complain("limits", f"{session.client_id} counts {session.filter_bytes} of its filters")
        total += session.queued_bytes
        loaded += sum(delivery.weight for delivery in session.queue or ())
        connection = session.connection
        if connection is not None:
            resend = len(session.resend) if session.resend else 0
            if len(session.inflight) - resend > session.window:
                complain(
                    "window",
                    f"{session.client_id}: {len(session.inflight)} of {session.window} in flight",
                )
            if session.ended_at is not None:
                complain("state", f"{session.client_id} is connected and has ended")
        # Messages in flight during a crash are queued again, possibly beyond the limit.
        over = limits.max_inflight if restarted else 0
        if session.queued > limits.queue_messages + over or (
            session.queued_bytes > limits.queue_bytes and not restarted
        ):
            complain(
                "limits",
                f"{session.client_id}: {session.queued} messages, {session.queued_bytes} bytes wait",
            )
        if (
            session.queued < 0
            or session.queued_bytes < 0
            or session.stored < 0
            or session.paused < 0
        ):
            complain("limits", f"{session.client_id}: a count is below zero")
    owed: dict[str, int] = {}
    for group in core.groups.values():
        total += group.queued_bytes
        payer = group.payer
        if payer is None or payer not in group.members:
            complain("limits", f"nobody pays for group {group.owner}")
        else:
            owed[payer.client_id] = owed.get(payer.client_id, 0) + group.queued_bytes
        if len(group.queue) != group.queued:
            complain("limits", f"group {group.owner} counts {group.queued} of {len(group.queue)}")
    for session in core.sessions.values():
        if session.shared_bytes != owed.get(session.client_id, 0):
            complain(
                "limits", f"{session.client_id} pays {session.shared_bytes} bytes of its groups"
            )
    if held != core.session_bytes:
        complain("limits", f"{core.session_bytes} bytes of sessions are counted, {held} are")
    if total != core.queued_bytes:
        complain("limits", f"{core.queued_bytes} bytes are counted as waiting, {total} are")
    if loaded != core.loaded_bytes:
        complain("limits", f"{core.loaded_bytes} bytes are counted as in memory, {loaded} are")
    open_ids: set[str] = set()
    for link in broker.connections.values():
        if link.phase is Phase.OPEN and link.client is not None:
            if link.client.client_id in open_ids:
                complain("5 one", f"{link.client.client_id} is connected twice")
            open_ids.add(link.client.client_id)


def check_settled(broker: Broker, disk: Disk | None, complain: Complain) -> None:
    """Check the invariants that hold long after the last fault: nothing is pending, and the disk matches the memory."""
    core = broker.state
    if core.committer.busy:
        complain("liveness", "commits are still waiting")
    if core.fan_outs:
        complain("liveness", f"fan-outs are still on their way: {list(core.fan_outs)}")
    for session in core.sessions.values():
        connection = session.connection
        if connection is None:
            continue
        if session.paused or session.loading or session.resend:
            complain("liveness", f"{session.client_id} is still held up")
        if session.inflight or session.queued or session.queue_qos0 or session.backlog:
            complain(
                "liveness",
                f"{session.client_id}: {len(session.inflight)} in flight, {session.queued} queued",
            )
    if disk is not None:
        _check_disk(broker, disk, complain)


def _check_disk(broker: Broker, disk: Disk, complain: Complain) -> None:
    core = broker.state
    image = disk.image
    on_disk = {topic: put.message.payload for topic, put in image.retained.items()}
    retained = list(core.retained.match("#"))
    in_memory = {topic: kept.message.payload for topic, kept in retained}
    if on_disk != in_memory:
        complain("8 retained", f"the disk retains {on_disk}, memory {in_memory}")
    publishers = {kept.publisher.id: kept.publisher for _, kept in retained if kept.publisher}
    known_as = {id: publisher.client.record() for id, publisher in publishers.items()}
    if image.publishers != known_as:
        complain(
            "8 retained", f"the disk knows publishers {sorted(image.publishers)}, not {known_as}"
        )
    size = sum(kept.size for _, kept in retained) + sum(one.size for one in publishers.values())
    if core.retained_bytes != size:
        complain("limits", f"{core.retained_bytes} bytes are counted as retained, {size} are")
    recorded = {s.client_id: s for s in core.sessions.values() if s.recorded}
    if recorded.keys() != image.sessions.keys():
        complain(
            "7 disk", f"sessions on disk {sorted(image.sessions)}, in memory {sorted(recorded)}"
        )
    for client_id, session in recorded.items():
        record = image.sessions.get(client_id)
        if record is not None and record.client != session.client.record():
            complain("7 disk", f"{record.client} on disk, {session.client.record()} in memory")
        if record is not None and record.will is not session.will:
            complain("6 disk", f"{client_id}: will {record.will} on disk, {session.will} in memory")
        if not session.durable:
            continue
        known = image.subscriptions.get(client_id, {})
        if known != session.subscriptions:
            mine = list(session.subscriptions)
            complain(
                "7 disk", f"{client_id}: subscriptions on disk {list(known)}, in memory {mine}"
            )
        received = image.received.get(client_id, set())
        if received != (session.received or set()):
            complain(
                "3 disk",
                f"{client_id}: received ids on disk {received}, in memory {session.received}",
            )
        entries = len(image.queues.get(session_owner(client_id), ()))
        if entries != len(session.inflight) + session.queued:
            complain(
                "1 disk",
                f"{client_id}: {entries} entries on disk, {len(session.inflight)} and {session.queued}",
            )


def check_gone(
    broker: Broker,
    runtime: VirtualRuntime | None,
    disk: Disk | None,
    hooks: Hooks,
    complain: Complain,
) -> None:
    """Check the invariants that hold once all clients have left: none of their state remains."""
    core = broker.state
    left = {
        "connections": len(broker.connections),
        "sessions": len(core.sessions),
        "groups": len(core.groups),
        "queued bytes": core.queued_bytes,
        "fan-outs": len(core.fan_outs),
        "remembered decisions": core.remembered,
        "commits": int(core.committer.busy),
        "ends": len(core.ending),
        "dirty sessions": len(core.writes.dirty),
        "deadlines": max(0, len(core.deadlines) - 1),
        "plugin calls": hooks.in_flight(),
        "coroutines": len(runtime.tasks) if runtime is not None else 0,
        "routes": len(list(core.router.lookup("t/0").recipients)),
    }
    if disk is not None:
        image = disk.image
        left |= {
            "sessions on disk": len(image.sessions),
            "subscriptions on disk": sum(map(len, image.subscriptions.values())),
            "queues on disk": len(image.queues),
            "messages on disk": len(image.messages),
            "received ids on disk": sum(map(len, image.received.values())),
        }
    found = {name: count for name, count in left.items() if count}
    if found:
        complain("10 leak", f"left behind: {found}")
