"""Check the tables against the ledger of acknowledged messages."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from hookmq_spark_sink.placement import by_name

from devices.fleet import Topic


class Row(NamedTuple):
    """A table row."""

    partition: int
    offset: int
    topic: str
    payload: bytes
    message_id: str


@dataclass
class Verdict:
    """The result of checking a table. Each count from `lost` on says how often a guarantee was broken."""

    table: str
    rows: int = 0
    repeated: int = 0
    """Rows of QoS 1 messages that were sent again because their acknowledgement was lost.

    Such rows have different offsets but the same message-id. Only a table of all messages may contain them.
    """
    lost: int = 0
    """Acknowledged messages without a row."""
    duplicated: int = 0
    """Unwanted rows, which repeat an offset, a QoS 2 message or, in a table without duplicates, any message."""
    invented: int = 0
    """Rows of messages that nobody sent, that differ from the message sent, or that belong in another table."""
    reordered: int = 0
    """Messages that first appear after a later message of their topic."""
    gaps: int = 0
    """Offsets below `ends` that are missing from a table of all messages."""
    examples: list[str] = field(default_factory=list)

    @property
    def broken(self) -> dict[str, int]:
        """Return the broken guarantees, and how often each was broken."""
        names = ("lost", "duplicated", "invented", "reordered", "gaps")
        return {name: count for name in names if (count := getattr(self, name))}

    def _tell(self, text: str) -> None:
        if len(self.examples) < 10:
            self.examples.append(text)


def judge(
    table: str,
    rows: Iterable[Row],
    topics: Iterable[Topic],
    partitions: int,
    *,
    once: bool = False,
    ends: Mapping[int, int] | None = None,
    belongs: Callable[[Topic, int], bool] = lambda topic, number: True,
) -> Verdict:
    """Compare a table with the messages that were sent and acknowledged.

    Set `once` for tables that are deduplicated by message-id. For tables of all messages, `ends` contains the offset
    after the last message of each partition. `belongs` returns whether a message belongs in the table.
    """
    found = Verdict(table)
    known = {one.topic: one for one in topics}
    numbers = {
        one.message_id(n): (one, n) for one in known.values() for n in range(1, one.sent + 1)
    }
    newest = dict.fromkeys(known, 0)
    times: Counter[str] = Counter()
    places: Counter[tuple[int, int]] = Counter()
    for row in sorted(rows, key=lambda row: (row.partition, row.offset)):
        found.rows += 1
        place = (row.partition, row.offset)
        places[place] += 1
        topic, number = numbers.get(row.message_id, (None, 0))
        if (
            topic is None
            or topic.topic != row.topic
            or topic.body(number) != row.payload
            or not belongs(topic, number)
            or by_name(row.topic, partitions) != row.partition
        ):
            found.invented += 1
            found._tell(f"nobody sent {row.message_id} as it is at {place}")
            continue
        if places[place] > 1:
            found.duplicated += 1
            found._tell(f"{row.message_id} is there twice at {place}")
            continue
        times[row.message_id] += 1
        if times[row.message_id] > 1:
            if once or topic.qos == 2:
                found.duplicated += 1
                found._tell(f"{row.message_id}, QoS {topic.qos}, is there again at {place}")
            else:
                found.repeated += 1
        elif number < newest[row.topic]:
            found.reordered += 1
            found._tell(f"{row.message_id} at {place} comes after {newest[row.topic]}")
        else:
            newest[row.topic] = number
    for one in known.values():
        for number in range(1, one.sent + 1):
            if one.acked[number] and belongs(one, number) and not times[one.message_id(number)]:
                found.lost += 1
                found._tell(f"{one.message_id(number)} was acknowledged and is not there")
    for partition, end in (ends or {}).items():
        missing = sum((partition, offset) not in places for offset in range(end))
        found.gaps += missing
        if missing:
            found._tell(f"{missing} offsets of partition {partition} below {end} are not there")
    return found
