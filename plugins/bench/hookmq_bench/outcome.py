"""What processes tell of themselves: samples while they run, and an account at the end."""

from dataclasses import dataclass, field
from typing import NamedTuple

from hookmq_bench.tally import Tally


class Sample(NamedTuple):
    """A look at one process at `at`, nanoseconds of the monotonic clock: counts since the start, what is outstanding, CPU
    time in nanoseconds, the latencies since the last sample by bucket. `progress` are deliveries counted once, with those
    that were passed over; `missing` are these."""

    at: int = 0
    sent: int = 0
    acked: int = 0
    received: int = 0
    progress: int = 0
    missing: int = 0
    outstanding: int = 0
    unacked: int = 0
    backlog: int = 0
    connected: int = 0
    connects: int = 0
    lost_connections: int = 0
    cpu: int = 0
    sending: bool = True
    latencies: dict[int, int] = {}


@dataclass(slots=True)
class Mark:
    """Counts at one moment: nanoseconds of the monotonic clock, CPU time of the process, messages, connects."""

    at: int
    cpu: int
    sent: int = 0
    acked: int = 0
    received: int = 0
    connects: int = 0


@dataclass(slots=True)
class FlowSum:
    """All flows of one publisher in one process: how many, what they received, counted once, and what they did not."""

    flows: int = 0
    received: int = 0
    missing: int = 0
    duplicates: int = 0
    reordered: int = 0
    highest: int = 0


@dataclass(slots=True)
class Account:
    """What a process did. `sent` and `unacked` are by publisher, `flows` by key, `unsent` were due and never sent.
    `offset` makes the monotonic clock that of stamps."""

    tally: Tally
    begin: Mark
    end: Mark
    sent: dict[int, int] = field(default_factory=dict)
    unacked: dict[int, int] = field(default_factory=dict)
    flows: dict[int, FlowSum] = field(default_factory=dict)
    unsent: int = 0
    precise: bool = True
    receive_maximum: int = 65_535
    granted: int = 2
    offset: int = 0
    connections: "Connects | None" = None


@dataclass(slots=True)
class Connects:
    """What connect and churn count beside the tally: connections that were opened, that found their session, that were
    refused; wills that were due and that came; storms, each the nanoseconds until all were back."""

    opened: int = 0
    resumed: int = 0
    failed: int = 0
    wills_due: int = 0
    wills_came: int = 0
    storms: list[int] = field(default_factory=list)
