"""Public: the contract between the engine and its drivers. A driver writes batches of records to one kind of target.

A driver is a subclass of `Driver`, registered as an entry point in the group ``hookmq.sink_drivers``. DRIVERS.md shows
how to write and test one. Everything in ``__all__`` is stable within a major version of hookmq-sinks.

The engine runs a driver in the sink's own process, in one asyncio event loop. It calls, in this order:

    driver = KIND(settings, context)
    position = await driver.open()
    problems = await driver.check(sample)      # only once after the start, and for `hookmq sinks test`
    await driver.write(batch)                  # again and again, never two calls at a time
    await driver.close()                       # also after `open` failed or was cancelled

After `TargetUnavailable`, a timeout or any unexpected error, the engine calls `close`, waits, and opens a new object. It
then repeats the same batch, or a batch that begins with the same record.

When the cursor moves
=====================
The cursor is the position up to which a sink's messages are done. It moves past a batch only after `write` has returned
and all rejected records are stored as dead letters. Return from `write` only when the target has confirmed every record
of the batch. The engine stores the cursor on disk soon afterwards, and deletes messages only below the stored cursor.
After a crash, it writes the records between the stored cursor and the crash again, with the same ids and in the same
order. This gives at least once. The target can use `Record.id` to recognize a record that it has already.

What exactly once needs
=======================
Set `holds_position` to True if the target stores `Batch.position` in the same transaction as the records, under the name
`DriverContext.slot`. `open` returns the position that the target holds. The engine then continues there instead of at
its own cursor, so that each record is in the target once. The transaction must be atomic: after a crash, the target has
both the records and the position, or neither. After an operator's seek, the engine ignores the returned position once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from hookmq.plugin import HookMQError

from hookmq_sinks.record import Batch, Position, Record, json_default, to_bytes
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
    """The target did not confirm a batch, or cannot be reached. The engine tries again, later and later.

    Give a short reason in words: ``connection refused``, ``unknown host``. It must not contain a secret. Set `permanent`
    if only an operator can help, for example after wrong credentials or if a table is missing. The sink's state is then
    `failed` instead of `retrying`, and the engine tries again at the longest interval.
    """

    def __init__(self, reason: str, permanent: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.permanent = permanent


class Rejected(HookMQError):
    """The target can never take some records of a batch, for example because a value does not fit its column.

    `reasons` has a reason for each such record, by its index in the batch. None of the batch may have been stored, unless
    `stored` is True: then the target has confirmed all records without a reason, and with `holds_position` the position.
    Otherwise the engine calls `write` again, with the other records in the same order.
    """

    def __init__(self, reasons: Mapping[int, str], stored: bool = False) -> None:
        super().__init__("; ".join(dict.fromkeys(reasons.values())))
        self.reasons = dict(reasons)
        self.stored = stored


def make_each(batch: Batch, make: Callable[[Record], T]) -> list[T]:
    """Return `make(record)` for each record. Raises Rejected with every record for which `make` raises RecordError."""
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
    """A mistake that `check` found: the setting, what is wrong, and how to mend it."""

    key: str
    """The setting of the target that is wrong, such as ``table``; empty if there is none."""
    message: str
    hint: str = ""


@dataclass(frozen=True)
class DriverContext:
    """What the engine gives to a driver."""

    sink: str
    """The sink's name."""
    slot: str
    """The name under which a target stores the position. It differs between sinks, and between the lanes of a sink."""
    log_id: str
    """The id of the sink's log."""
    log: Callable[..., None] = field(default=lambda level, event, **fields: None, repr=False)
    """Log an event of the driver: ``log("warning", "sinks.kafka_slow", seconds=3)``."""
    folder: Path | None = None
    """The sink's folder, for a driver that must remember something itself. None if nothing can be stored."""


class Driver:
    """Base class of drivers.

    `Settings` is a frozen dataclass. The engine binds the sink's `target` to it, as strictly as a plugin's
    configuration, and `hookmq check` reports its mistakes. Use `hookmq.plugin.setting` and `template_setting` for its
    fields, and raise ConfigError("KEY: what is wrong") in `__post_init__`. Its module is imported by the broker, too, so
    it must not import a client library. Import that in `open`, or in a module that `open` imports.
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

        Raises TargetUnavailable. A missing client library is an ImportError, which the engine explains.
        """
        return None

    async def check(self, sample: Record | None) -> Sequence[Problem]:
        """Return what would keep `sample` from being stored, without storing it: a missing table or column, a type that
        does not fit, missing rights. `sample` is None if the sink has no sample. Called after `open`.

        Raises TargetUnavailable.
        """
        return ()

    async def write(self, batch: Batch) -> None:
        """Store all records of the batch, in order, and return once the target has confirmed them.

        Store them atomically if the target can. Raises TargetUnavailable if the batch must be repeated, and Rejected if
        the target can never take some of the records. The engine cancels the call after the sink's `timeout`.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Release all resources. Called once for each object, even if `open` failed. Must not raise or block."""

    def metrics(self) -> Mapping[str, float]:
        """Return counters of the driver, for the sink's status. Called about once a second."""
        return {}
