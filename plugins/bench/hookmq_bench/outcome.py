"""The reports of each process: samples during the run, and an account at the end."""

from dataclasses import dataclass, field
from typing import NamedTuple

from hookmq_bench.tally import Tally


class Sample(NamedTuple):
    """One process's state at monotonic time `at` (nanoseconds).

    Counts are totals since the start, and `cpu` is in nanoseconds. `latencies` covers only the time since the last
    sample, by bucket. `progress` counts each delivered message once, and also each skipped message number. `missing`
    counts only the skipped ones.
    """

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
    """Counts at one moment. `at` is monotonic time and `cpu` is the process's CPU time, both in nanoseconds."""

    at: int
    cpu: int
    sent: int = 0
    acked: int = 0
    received: int = 0
    connects: int = 0


@dataclass(slots=True)
class FlowSum:
    """The totals of one publisher's flows in one process. `received` counts each message once."""

    flows: int = 0
    received: int = 0
    missing: int = 0
    duplicates: int = 0
    reordered: int = 0
    highest: int = 0


@dataclass(slots=True)
class Account:
    """The results of one process. `sent` and `unacked` are by publisher, and `flows` is by publisher key. `unsent`
    counts messages that were due but never sent.

    Add `offset` to a monotonic time to get the corresponding stamp time.
    """

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
    """Additional counts for connect and churn. `resumed` counts connections that found their session. `storms` lists,
    for each storm, how many nanoseconds it took until all clients had reconnected.
    """

    opened: int = 0
    resumed: int = 0
    failed: int = 0
    wills_due: int = 0
    wills_came: int = 0
    storms: list[int] = field(default_factory=list)
