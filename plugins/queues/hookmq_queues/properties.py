"""Read the user properties that tell a queue how to treat a message.

They affect only messages published to ``$queue/NAME``. In captured messages, the queue ignores them.
"""

import re
from collections.abc import Collection
from typing import Final

from hookmq.plugin import Message

from hookmq_queues.config import QueueConfig
from hookmq_queues.keys import shortened, value_of

ID: Final = "message-id"
DELAY: Final = "delay"
DELIVER_AT: Final = "deliver-at"
PRIORITY: Final = "priority"
MAX_ID: Final = 256
"""Maximum length of a message-id, in characters."""
_SECONDS: Final = re.compile(r"[0-9]{1,10}(\.[0-9]{1,9})?")
_DIGIT: Final = re.compile(r"[0-9]")


def names_of(config: QueueConfig) -> frozenset[str]:
    """Return the names of the user properties that the queue uses."""
    names = {DELAY, DELIVER_AT}
    if config.dedupe_window:
        names.add(ID)
    if config.order == "priority":
        names.add(PRIORITY)
    return frozenset(names)


def checked(
    message: Message, names: Collection[str], config: QueueConfig, now: float
) -> Message | str:
    """Return a message in the form that the queue stores. If its properties are wrong, return a description of the
    problem instead. `now` is in epoch seconds.

    In the result, `deliver-at` replaces `delay`, so that later readers agree on the time. If the message should not be
    delayed, the result has neither property.
    """
    found: dict[str, str] = {}
    for name, value in message.user_property:
        if name not in names:
            continue
        if name in found:
            return f"the user property {name} is given more than once"
        found[name] = value
    if not found:
        return message
    id = found.get(ID)
    if id is not None and not 0 < len(id) <= MAX_ID:
        return f"message-id: expected 1 to {MAX_ID} characters, found {len(id)}"
    priority = found.get(PRIORITY)
    if priority is not None and not _DIGIT.fullmatch(priority):
        return f"priority: expected a digit from 0 to 9, found {_shown(priority)}"
    if DELAY not in found and DELIVER_AT not in found:
        return message
    return _delayed(message, found, config, now)


def _delayed(
    message: Message, found: dict[str, str], config: QueueConfig, now: float
) -> Message | str:
    if DELAY in found and DELIVER_AT in found:
        return "a message has delay or deliver-at, not both"
    name, text = (DELAY, found[DELAY]) if DELAY in found else (DELIVER_AT, found[DELIVER_AT])
    if not _SECONDS.fullmatch(text):
        wanted = "seconds" if name == DELAY else "epoch seconds"
        return f"{name}: expected {wanted} such as 90 or 1.5, found {_shown(text)}"
    due = float(text) + (now if name == DELAY else 0.0)
    limit = 0 if config.type == "ephemeral" else config.max_delay  # delayed messages are on disk
    if due - now > limit:
        if not limit:
            return f"{name}: the queue {config.name} does not accept delayed messages"
        return f"{name}: the queue {config.name} delays messages by at most {config.max_delay:g} s"
    return with_due(message, due if due > now else None)


def with_due(message: Message, due: float | None) -> Message:
    """Return the message with `deliver-at` set to `due`, in epoch seconds. If `due` is None, remove the property."""
    kept = tuple(one for one in message.user_property if one[0] not in (DELAY, DELIVER_AT))
    if due is not None:
        kept = (*kept, (DELIVER_AT, f"{due:.3f}"))
    return message.replace(properties=message.properties.replace(user_property=kept or None))


def due_of(message: Message) -> float | None:
    """Return when a checked message is due, in epoch seconds, or None if it should not be delayed."""
    text = value_of(message, DELIVER_AT)
    return float(text) if text is not None and _SECONDS.fullmatch(text) else None


def identity_of(message: Message, scope: str) -> str | None:
    """Return the key that identifies duplicates of a message, or None if it has no valid `message-id`.

    With the scope ``client``, the key consists of the publisher's client id and the `message-id`. With ``queue``, it is
    the `message-id` alone.
    """
    id = value_of(message, ID)
    if id is None or not 0 < len(id) <= MAX_ID:
        return None
    if scope == "client":
        sender = message.sender
        id = f"{message.origin}\0\0{id}" if sender is None else f"{sender}\0{id}"
    return shortened(id)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "...")
