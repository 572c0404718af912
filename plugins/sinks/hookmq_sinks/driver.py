"""Public: the contract between the engine and its drivers. A driver writes batches of records to one kind of target.

A driver is a subclass of `Driver`, registered as an entry point in the group ``hookmq.sink_drivers``. DRIVERS.md shows
how to write and test one. Everything in ``__all__`` is stable within a major version of hookmq-sinks.

The engine runs a driver in the sink's own process, in one asyncio event loop. It makes these calls, in this order:

    driver = KIND(settings, context)
    position = await driver.open()
    problems = await driver.check(sample)      # only once after the start, and for `hookmq sinks test`
    await driver.write(batch)                  # repeatedly, never two calls at a time
    await driver.close()                       # also after `open` failed or was cancelled

After `TargetUnavailable`, a timeout or any unexpected error, the engine calls `close`, waits, and creates a new object.
It then repeats the same batch, or a batch that begins with the same record.

When the cursor moves
=====================
The cursor is the position up to which a sink's messages are done. It moves past a batch only after `write` has returned
and all rejected records are stored as dead letters. Return from `write` only when the target has confirmed every record
of the batch. The engine stores the cursor on disk soon afterwards. It deletes only messages below the stored cursor.

After a crash, the engine starts again from the stored cursor, so it repeats some records, with the same ids and in the
same order. This gives at-least-once delivery. The target can use `Record.id` to recognize a record that it already has.

Requirements for exactly-once delivery
======================================
Set `holds_position` to True if the target stores `Batch.position` in the same transaction as the records, under the name
`DriverContext.slot`. `open` returns the position that the target holds. The engine then continues from there instead of
from its own cursor, so that the target has each record exactly once. The transaction must be atomic: after a crash, the
target has both the records and the position, or neither. After an operator's seek, the engine ignores the returned
position once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hookmq.plugin import HookMQError

from hookmq_sinks.batch import Batch
from hookmq_sinks.record import Position, Record, json_default, to_bytes
from hookmq_sinks.record_template import RecordError, RecordTemplate, template_setting

__all__ = [
    "Batch",
    "Driver",
    "DriverContext",
    "Position",
    "Problem",
    "Record",
    "RecordError",
    "RecordTemplate",
    "Rejected",
    "TargetUnavailable",
    "json_default",
    "make_each",
    "template_setting",
    "to_bytes",
]

T = TypeVar("T")


class TargetUnavailable(HookMQError):
    """The target cannot be reached, or did not confirm a batch. The engine retries with growing delays.

    Give a short reason in words, such as ``connection refused`` or ``unknown host``. It must not contain a secret. Set
    `permanent` if an operator must act, for example because of wrong credentials or a missing table. The sink's state
    is then `failed` instead of `retrying`, and the engine retries at its longest interval.
    """

    def __init__(self, reason: str, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent


class Rejected(HookMQError):
    """The target can never accept some records of a batch, for example because a value does not fit its column.

    `reasons` maps the index of each such record in the batch to a reason. If `stored` is False, no record of the batch
    may have been stored. The engine then calls `write` again with the other records, in the same order. If `stored` is
    True, the target has confirmed all other records. With `holds_position`, it has also confirmed the position.
    """

    def __init__(self, reasons: Mapping[int, str], stored: bool = False) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)
        self.stored = stored


def make_each(batch: Batch, make: Callable[[Record], T]) -> list[T]:
    """Return `make(record)` for each record. If `make` raises RecordError, raises Rejected with all records that
    failed.
    """
    made: list[T] = []
    reasons: dict[int, str] = {}
    for index, record in enumerate(batch.records):
        try:
            made.append(make(record))
        except RecordError as error:
            reasons[index] = str(error)
    if reasons:
        raise Rejected(reasons)
    return made


@dataclass(frozen=True)
class Problem:
    """A mistake that `check` found: the setting, what is wrong, and how to fix it."""

    key: str
    """The setting of the target that is wrong, such as ``table``; empty if there is none."""
    message: str
    hint: str = ""


@dataclass(frozen=True)
class DriverContext:
    """The names, log function and folder that the engine provides to a driver."""

    sink: str
    """The sink's name."""
    slot: str
    """The name under which a target stores the position. Every sink, and every lane of a sink, has a different one."""
    log_id: str
    """The id of the sink's log."""
    log: Callable[..., None] = field(default=lambda level, event, **fields: None, repr=False)
    """Log an event about the driver: ``log("warning", "sinks.kafka_slow", seconds=3)``."""
    folder: Path | None = None
    """The sink's folder, for a driver that has to store its own state. None if nothing can be stored."""


class Driver:
    """Base class of drivers.

    `Settings` is a frozen dataclass. The engine binds the sink's `target` to it, as strictly as a plugin's
    configuration, and `hookmq check` reports mistakes. Declare its fields with `hookmq.plugin.setting` and
    `template_setting`, and raise ConfigError("KEY: what is wrong") in `__post_init__`. The broker imports the driver's
    module too, so the module must not import a client library. Import the library in `open`, or in a module that `open`
    imports.
    """

    Settings: ClassVar[type]
    extra: ClassVar[str] = ""
    """The extra that installs the client library, such as ``kafka``; empty if the driver needs none."""
    holds_position: ClassVar[bool] = False
    """Whether the target stores the position with the records. See the module docstring."""

    def __init__(self, settings: Any, context: DriverContext) -> None:
        self.settings = settings
        self.context = context

    async def open(self) -> Position | None:
        """Connect to the target. Return the position that it holds under `context.slot`, or None if it holds none.

        Raises TargetUnavailable. If a client library is missing, let the ImportError propagate. The engine then
        explains how to install the library.
        """
        return None

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return the problems that would prevent `sample` from being stored, without storing it.

        Examples are a missing table or column, a type that does not fit, and missing permissions. `sample` is None if
        the sink has no sample. Called after `open`. Raises TargetUnavailable.
        """
        return ()

    async def write(self, batch: Batch) -> None:
        """Store all records of the batch, in order, and return once the target has confirmed them.

        Store them atomically if the target can. Raises TargetUnavailable if the batch must be repeated, and Rejected if
        the target can never accept some of the records. The engine cancels the call after the sink's `timeout`.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Release all resources. Called once for each object, even if `open` failed. Must not raise or block."""

    def metrics(self) -> Mapping[str, float]:
        """Return the driver's own counters, which become part of the sink's status. Called about once a second."""
        return {}
