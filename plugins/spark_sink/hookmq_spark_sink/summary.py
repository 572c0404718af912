"""What the broker keeps in memory about a stream: summaries of its segments, and counters."""

from dataclasses import dataclass, field

from hookmq_spark_sink import block
from hookmq_spark_sink.index import SegmentIndex


@dataclass(slots=True)
class Summary:
    """A summary of one segment, including each partition's first offset and end.

    `newest` and `oldest` are timestamps in µs. `oldest` is the timestamp of the newest message in the first block.
    """

    base: int
    end: int
    parts: dict[int, tuple[int, int]] = field(default_factory=dict)
    newest: int = 0
    oldest: int = 0
    blocks: int = 0
    packed: int = 0
    size: int = 0

    def add(self, head: block.Head) -> None:
        """Add a block to the summary."""
        first = self.parts.get(head.partition, (head.base, 0))[0]
        self.parts[head.partition] = (first, head.end)
        self.newest = max(self.newest, head.max_timestamp)
        if not self.blocks:
            self.oldest = head.max_timestamp
        self.blocks += 1
        self.end += head.rows


def summary(index: SegmentIndex) -> Summary:
    """Return a summary of an indexed segment."""
    parts = {number: (part.bases[0], part.end) for number, part in index.parts.items()}
    newest = max((part.highs[-1] for part in index.parts.values()), default=0)
    oldest = min((part.highs[0] for part in index.parts.values()), default=0)
    return Summary(
        index.base, index.end, parts, newest, oldest, index.blocks, index.packed, index.position
    )


@dataclass
class Counts:
    """Counters for the metrics."""

    records: int = 0
    bytes: int = 0
    blocks: int = 0
    flushes: int = 0
    flush_seconds: float = 0.0
    removed: int = 0
    dropped: int = 0
    merged: int = 0
    refused: int = 0
