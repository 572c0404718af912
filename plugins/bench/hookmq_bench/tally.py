"""One process's running counts."""

from collections import Counter
from dataclasses import dataclass, field

from hookmq_bench.histogram import Histogram

NEVER = 1 << 63


@dataclass(slots=True)
class Tally:
    """One process's counts since the start.

    Latencies include only messages that were due at `since` or later. `latest` is the stamp time when the last message
    or acknowledgement arrived.
    """

    since: int = NEVER
    latest: int = 0
    sent: int = 0
    acked: int = 0
    received: int = 0
    unmatched: int = 0
    strangers: int = 0
    wrong_qos: int = 0
    stray_acks: int = 0
    stalls: int = 0
    refused: "Counter[str]" = field(default_factory=Counter)
    lost_connections: "Counter[str]" = field(default_factory=Counter)
    latency: Histogram = field(default_factory=Histogram)
    acknowledged: Histogram = field(default_factory=Histogram)
    connected: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)
