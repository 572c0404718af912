"""Reduce a batch of records to its net effect. A row that is both added and removed in the batch is never written.

Records cross a socket, so they are plain tuples that begin with their kind (`hookmq_storage.rows`).
"""

from collections.abc import Iterable
from typing import Any, Final

PUT_MESSAGE: Final = 0
ENQUEUE: Final = 1
SET_PACKET: Final = 2
DEQUEUE: Final = 3
PUT_SESSION: Final = 4
DROP_SESSION: Final = 5
PUT_SUBSCRIPTION: Final = 6
DROP_SUBSCRIPTION: Final = 7
PUT_RECEIVED: Final = 8
DROP_RECEIVED: Final = 9
PUT_RETAINED: Final = 10
DROP_RETAINED: Final = 11
PUT_PUBLISHER: Final = 13
DROP_PUBLISHER: Final = 14
PUT_STATE: Final = 15
DROP_STATE: Final = 16
QUEUED: Final = 12
"""A message and its first entry, which is usually its only one.

Fields: owner, seq, message, size, packet id, released, payload, received_at, expires_at, then the fields of
`hookmq_storage.inline.Head`.
"""

Operation = tuple[Any, ...]


class Plan:
    """The changes in a batch. They are applied in this order: ended sessions, removals, additions, and messages that
    have lost their last entry.
    """

    __slots__ = (
        "dequeued", "dropped", "entries", "foreign", "messages", "next_message", "plugin_state", "publishers",
        "received", "received_gone", "retained", "sent", "sessions", "subscriptions", "subscriptions_gone",
    )  # fmt: skip

    def __init__(self) -> None:
        self.messages: dict[int, Operation] = {}
        self.next_message = 0
        self.foreign: set[int] = set()
        """Ids of messages from earlier batches that get another entry."""
        self.entries: dict[str, dict[int, list[Any] | Operation]] = {}
        """Entries by owner and seq: seq, message, qos, size, retain, identifiers, filter, group, sent.

        The value may also be a complete `QUEUED` operation, whose message is not in `messages`.
        """
        self.dequeued: dict[str, set[int]] = {}
        self.sent: dict[str, dict[int, int]] = {}
        self.sessions: dict[str, Operation] = {}
        self.dropped: set[str] = set()
        """Owners whose sessions ended."""
        self.subscriptions: dict[str, dict[str, Operation]] = {}
        self.subscriptions_gone: dict[str, set[str]] = {}
        self.received: dict[str, set[int]] = {}
        self.received_gone: dict[str, set[int]] = {}
        self.publishers: dict[int, Operation | None] = {}
        """Publishers by id; None removes the publisher."""
        self.retained: dict[str, Operation | None] = {}
        """Retained messages by topic; None clears the topic."""
        self.plugin_state: dict[tuple[str, str], Operation | None] = {}
        """Plugin state by space and key; None deletes the key."""


def reduce(operations: Iterable[Operation]) -> Plan:
    """Return the net effect of `operations`."""
    plan = Plan()
    entries, messages, dequeued, sent = plan.entries, plan.messages, plan.dequeued, plan.sent
    first: dict[int, Operation] = {}
    following = 0
    for operation in operations:
        kind = operation[0]
        if kind == QUEUED:
            _, owner, seq, message, *_ = operation
            queue = entries.get(owner)
            if queue is None:
                queue = entries[owner] = {}
            queue[seq] = operation
            if message >= following:
                following = message + 1
            if first.setdefault(message, operation) is not operation or message in messages:
                _apart(plan, message, first)
                messages[message] = put_message(operation)
                queue[seq] = entry_row(operation)
        elif kind == PUT_MESSAGE:
            message = operation[1]
            messages[message] = operation
            if message >= following:
                following = message + 1
        elif kind == ENQUEUE:
            (
                _, owner, seq, message, qos, size, retain, identifiers, filter, packet_id, released, group,
            ) = operation  # fmt: skip
            if message not in messages:
                if message in first:
                    _apart(plan, message, first)
                else:
                    plan.foreign.add(message)
            queue = entries.get(owner)
            if queue is None:
                queue = entries[owner] = {}
            numbers = " ".join(map(str, identifiers)) if identifiers else None
            queue[seq] = [
                seq, message, qos, size, int(retain), numbers, filter or None, group or None,
                packet_id + 65536 if released else packet_id,
            ]  # fmt: skip
        elif kind == DEQUEUE:
            _, owner, seq = operation
            queue = entries.get(owner)
            if queue is not None and queue.pop(seq, None) is not None:
                continue
            gone = dequeued.get(owner)
            if gone is None:
                gone = dequeued[owner] = set()
            gone.add(seq)
            if owner in sent:
                sent[owner].pop(seq, None)
        elif kind == SET_PACKET:
            _, owner, seq, packet_id, released = operation
            number = packet_id + 65536 if released else packet_id
            queue = entries.get(owner)
            row = queue.get(seq) if queue is not None else None
            if type(row) is list:
                row[8] = number
            elif queue is not None and row is not None:
                queue[seq] = (*row[:5], packet_id, released, *row[7:])
            else:
                sent.setdefault(owner, {})[seq] = number
        else:
            _rare(plan, operation)
    plan.next_message = following
    _forget_unused(plan)
    return plan


def put_message(queued: Operation) -> Operation:
    """Return the message of a `QUEUED` operation as a `PUT_MESSAGE` operation."""
    _, _, _, message, _, _, _, payload, received_at, expires_at, *_ = queued
    topic, flags, properties, sender, origin = queued[15:]
    return (
        PUT_MESSAGE, message, topic, payload, flags, properties, sender, origin, received_at, expires_at,
    )  # fmt: skip


def entry_row(queued: Operation) -> list[Any]:
    """Return the entry of a `QUEUED` operation, in the format of `Plan.entries`."""
    _, _, seq, message, size, packet_id, released, *_ = queued
    qos, retain, identifiers, filter, group = queued[10:15]
    return [
        seq, message, qos, size, int(retain), " ".join(map(str, identifiers)) or None, filter or None, group or None,
        packet_id + 65536 if released else packet_id,
    ]  # fmt: skip


def _apart(plan: Plan, message: int, first: dict[int, Operation]) -> None:
    """Split a `QUEUED` operation into a message and its entry, because the message gets a second entry in this batch."""
    queued = first[message]
    if message in plan.messages:
        return
    plan.messages[message] = put_message(queued)
    queue = plan.entries.get(queued[1], {})
    row = queue.get(queued[2])
    if type(row) is tuple and row[3] == message:
        queue[queued[2]] = entry_row(row)


def _rare(plan: Plan, operation: Operation) -> None:
    kind, name = operation[0], operation[1]
    if kind == PUT_SESSION:
        plan.sessions["c/" + name] = operation
    elif kind == DROP_SESSION:
        owner = "c/" + name
        plan.dropped.add(owner)
        pending: dict[str, Any]
        for pending in (
            plan.entries, plan.dequeued, plan.sent, plan.sessions, plan.subscriptions, plan.subscriptions_gone,
            plan.received, plan.received_gone,
        ):  # fmt: skip
            pending.pop(owner, None)
    elif kind == PUT_SUBSCRIPTION:
        plan.subscriptions.setdefault("c/" + name, {})[operation[2]] = operation
    elif kind == DROP_SUBSCRIPTION:
        owner, filter = "c/" + name, operation[2]
        if owner in plan.subscriptions:
            plan.subscriptions[owner].pop(filter, None)
        plan.subscriptions_gone.setdefault(owner, set()).add(filter)
    elif kind == PUT_RECEIVED:
        owner, number = "c/" + name, operation[2]
        plan.received.setdefault(owner, set()).add(number)
    elif kind == DROP_RECEIVED:
        owner, number = "c/" + name, operation[2]
        taken = plan.received.get(owner)
        if taken is not None and number in taken:
            taken.discard(number)
        # An earlier batch may have stored the same id. Storing an id twice has no effect.
        plan.received_gone.setdefault(owner, set()).add(number)
    elif kind == PUT_PUBLISHER:
        plan.publishers[operation[1]] = operation
    elif kind == DROP_PUBLISHER:
        plan.publishers[operation[1]] = None
    elif kind == PUT_STATE:
        plan.plugin_state[name, operation[2]] = operation
    elif kind == DROP_STATE:
        plan.plugin_state[name, operation[2]] = None
    elif kind == PUT_RETAINED:
        plan.retained[name] = operation
    elif kind == DROP_RETAINED:
        plan.retained[name] = None
    else:
        raise ValueError(f"an operation of kind {kind}")


def _forget_unused(plan: Plan) -> None:
    """Drop messages of this batch that no entry refers to. No other batch can refer to them."""
    if not plan.messages:
        return
    used = {
        entry[1]
        for queue in plan.entries.values()
        for entry in queue.values()
        if type(entry) is list
    }
    if len(used) < len(plan.messages) or not plan.messages.keys() <= used:
        plan.messages = {id: one for id, one in plan.messages.items() if id in used}
