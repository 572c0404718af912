"""What expires in the store while nobody reads it: queued messages of clients that are away.

Whoever reads a queue drops what has expired on its way out [MQTT-3.3.2-5]; what nobody reads is looked for once a
minute, where the store can find it (`ExpiringStore`), and leaves in slices: one page of entries, one commit, the next
page. So the room it took is free again, on the disk and in the session's bounds, and no turn of the loop takes long.
"""

from collections import deque
from functools import partial
from typing import Final

from hookmq.broker.core import Core
from hookmq.broker.groups import Group
from hookmq.broker.queue import unqueue
from hookmq.broker.send import finish
from hookmq.broker.shared import left_group
from hookmq.qos import Delivery
from hookmq.session import Session
from hookmq.store import Dequeue, Expired, ExpiringStore, StoreFailed
from hookmq.types import Direction, DropReason

EVERY: Final = 60.0
"""Seconds from the end of one look at everything to the next."""
SLICE: Final = 256
"""Entries taken away in one turn."""

Found = dict[int, int]
"""The message id of each entry, by its place in the queue."""


def watch_expiry(core: Core) -> None:
    """Look in a while, and again and again, if the store can find what has expired."""
    if isinstance(core.store, ExpiringStore):
        core.deadlines.after(EVERY, partial(_look, core, core.store, None))


def _look(core: Core, store: ExpiringStore, place: object) -> None:
    if core.failed is not None:
        return
    # Who ends from now on, or whose end is not on record, may be found and is not meant: another session, with places of
    # its own in a queue of the same name, may have come meanwhile.
    core.ended_meanwhile = set(core.ending)
    store.expired(core.runtime.time(), place, SLICE, partial(_found, core, store))


def _found(core: Core, store: ExpiringStore, result: Expired | StoreFailed) -> None:
    if isinstance(result, StoreFailed):
        core.committer.fail(result.reason)
        return
    ended, core.ended_meanwhile = core.ended_meanwhile or (), None
    owners: dict[str, list[tuple[int, int, int]]] = {}
    for owner, seq, size, message in result.entries:
        owners.setdefault(owner, []).append((seq, size, message))
    held: list[Session] = []
    for owner, entries in owners.items():
        if owner.startswith("g/"):
            share, _, topic_filter = owner[2:].partition("/")
            group = core.groups.get((share, topic_filter))
            if group is not None:
                _drop_of_group(core, group, {seq: message for seq, _, message in entries})
            continue
        session = core.sessions.get(owner[2:])
        # A page that is on its way may hold the same entries: whoever sends them will find that they have expired.
        if session is None or session.reading or session.client_id in ended:
            continue
        if _drop(core, session, entries):
            # Nor may a page be read before these are gone from the store.
            session.reading = True
            session.on_page = None
            held.append(session)
    core.committer.then(partial(_gone, core, store, result.place, held))
    core.schedule()


def _gone(core: Core, store: ExpiringStore, place: object, held: list[Session]) -> None:
    """What was found is gone from the store: go on, and let those who wait for a page read it."""
    for session in held:
        if core.sessions.get(session.client_id) is session:
            session.reading = False
            then, session.on_page = session.on_page, None
            if then is not None:
                then(core, session)
    if place is None:
        watch_expiry(core)
    else:
        core.runtime.call_soon(partial(core.guarded, partial(_look, core, store, place)))
    core.schedule()


def _drop(core: Core, session: Session, entries: list[tuple[int, int, int]]) -> bool:
    """Take expired entries out of a session's queue; whether some were in the store only."""
    loaded: Found = {}
    stored = 0
    for seq, size, message in entries:
        if seq <= session.loaded_seq:
            loaded[seq] = message
            continue
        stored += 1
        session.queued -= 1
        session.queued_bytes -= size
        core.queued_bytes -= size
        core.committer.add(Dequeue(session.owner, seq))
    if stored:
        session.stored -= stored
        core.metrics.count_drop(DropReason.EXPIRED, Direction.OUT, stored)
    if loaded and session.queue:
        for delivery in _taken(session.queue, loaded):
            unqueue(core, session, delivery, counted=True)
            finish(core, session, delivery)
            core.dropped(
                delivery.outgoing.message, session.client, DropReason.EXPIRED, Direction.OUT
            )
    return stored > 0


def _drop_of_group(core: Core, group: Group, found: Found) -> None:
    for delivery in _taken(group.queue, found):
        left_group(core, group, delivery)
        message = delivery.outgoing.message
        core.dropped(message, None, DropReason.EXPIRED, Direction.OUT, group.owner)


def _taken(queue: deque[Delivery], found: Found) -> list[Delivery]:
    """Take what was `found` out of `queue`; what left it meanwhile, or is another message now, is not there."""
    taken = [one for one in queue if one.seq in found and one.outgoing.id == found[one.seq]]
    if taken:
        gone = {one.seq for one in taken}
        kept = [one for one in queue if one.seq not in gone]
        queue.clear()
        queue.extend(kept)
    return taken
