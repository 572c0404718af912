"""Test that messages which only journals receive take the fast path, directly into the journals' columns."""

from collections.abc import Callable

from hookmq.mqtt.packets import Puback
from hookmq.storage.columns import MessageColumns, Room
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import CommitId
from hookmq_testing import Harness, HookRecorder, RecordingJournal

Make = Callable[..., Harness]


class ColumnJournal(RecordingJournal):
    """A journal with columns. `collected` holds the messages of each flush, as (topic, payload, sender, expiry)."""

    def __init__(self, slow: bool = False) -> None:
        super().__init__(slow=slow)
        self.room = Room(record=1)
        self.kept = MessageColumns(self.room)
        self.collected: list[tuple[CommitId, list[tuple[object, ...]]]] = []
        self.asked = 0

    @property
    def full(self) -> bool:
        self.asked += 1
        return False

    def columns(self, topic: str) -> MessageColumns:
        return self.kept

    def flush(self, commit: CommitId, done: Callable[[StoreFailed | None], None]) -> None:
        taken = self.kept.take()
        found = zip(taken.topics, taken.payloads, taken.senders, taken.qos, strict=True)
        self.collected.append((commit, [(*one,) for one in found]))
        super().flush(commit, done)


def finish(harness: Harness, journal: ColumnJournal) -> None:
    for _ in range(3):
        journal.finish()
        harness.settle()


def test_a_journal_with_columns_gets_no_messages(broker_harness: Make) -> None:
    journal = ColumnJournal(slow=True)
    harness = broker_harness(journals=[journal])
    pub = harness.connect("pub")
    pub.publish("t", b"0", 1)  # the first one of its topic takes the slow path
    pub.publish("u", b"0", 1)
    pub.publish("v", b"0", 0)
    finish(harness, journal)
    pub.unread.clear()
    before = len(journal.appended)
    for number in range(1, 4):
        pub.publish("t", b"%d" % number, 1, packet_id=number)
        pub.publish("u", b"%d" % number, 1, packet_id=number + 10)
        pub.publish("v", b"%d" % number, 0)
    pub.expect_nothing()  # the acknowledgements wait for the commit
    finish(harness, journal)
    ids = [packet.packet_id for packet in pub.unread if isinstance(packet, Puback)]
    assert ids == [1, 11, 2, 12, 3, 13]
    assert len(journal.appended) == before
    rows = [one for _, rows in journal.collected for one in rows]
    wanted = [
        (topic, b"%d" % n, "pub", qos)
        for n in range(1, 4)
        for topic, qos in (("t", 1), ("u", 1), ("v", 0))
    ]
    assert rows == wanted
    numbers = [commit.number for commit, rows in journal.collected if rows]
    assert numbers == sorted(set(numbers))


def test_a_journal_without_room_is_asked(broker_harness: Make) -> None:
    journal = ColumnJournal()
    harness = broker_harness(journals=[journal])
    pub = harness.connect("pub")
    for _ in range(2):
        pub.publish("t", b"", 1, expect=0)
    asked, before = journal.asked, len(journal.appended)
    pub.publish("t", b"", 1, expect=0)
    assert (journal.asked, len(journal.appended)) == (asked, before)
    journal.room.limit = journal.room.used
    pub.publish("t", b"", 1, expect=0)
    assert journal.asked > asked
    assert len(journal.appended) == before + 1


def test_columns_are_for_messages_that_only_journals_get(broker_harness: Make) -> None:
    journal, observer = ColumnJournal(), HookRecorder("on_published", id="o")
    harness = broker_harness(journals=[journal])
    pub, sub = harness.connect("pub"), harness.connect("sub")
    for _ in range(3):
        pub.publish("t", b"", 1, expect=0)
    assert [len(rows) for _, rows in journal.collected if rows] == [1, 1]
    sub.subscribe("t", 1)
    pub.publish("t", b"both", 1, expect=0)
    sub.expect_message("t", b"both")
    assert journal.appended[-1][1].payload == b"both"
    other = ColumnJournal()
    harness = broker_harness(journals=[other], plugins=[observer])
    pub = harness.connect("pub")
    for _ in range(3):
        pub.publish("t", b"", 1, expect=0)
    assert len(observer.calls()) == len(other.appended) == 3
