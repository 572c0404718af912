"""Journals of the simulated broker: what is on disk, what is in memory, and how flushes fail.

`JournalDisk` outlives the broker; `OpenJournal` is the journal of one broker process. Appended entries are safe once
they have been flushed. A crash keeps a random prefix of the unflushed entries. `Journals` contains all journals of a
world and checks their invariants.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from random import Random
from typing import Final, NamedTuple

from hookmq.model.message import Message
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import CommitId

from simulator.clock import Clock
from simulator.ledger import Ledger, matches
from simulator.records import Sent

JOURNALS: Final[dict[str, tuple[str, ...]]] = {
    "log": ("t/#", "w/#", "e/#"),
    "outbox": ("s/#", "r/#", "t/1/#"),
    "all": ("#",),
}
"""The available journals, and the filters that each one wants."""

Flushed = Callable[[StoreFailed | None], None]


class Entry(NamedTuple):
    """A message in a journal. `uid` is its number in the ledger, or -1 if the ledger does not contain it."""

    commit: CommitId
    topic: str
    uid: int


class JournalDisk:
    """The disk of one journal.

    `trouble` makes the next flush fail: ``error`` (partly written), ``unknown`` (perhaps written) or ``raise``.
    ``append`` makes the next append fail instead. Any of these failures stops the broker.
    """

    def __init__(self, journals: "Journals", name: str) -> None:
        self.journals = journals
        self.name = name
        self.filters = JOURNALS[name]
        self.since = 0.0
        """Since when the journal has wanted the current filters."""
        self.kept: list[Entry] = []
        """The entries that are safe, in order."""
        self.commits: dict[int, list[CommitId]] = {}
        """The commits of each message in `kept`, by `uid`."""
        self.trouble = ""
        self.process: OpenJournal | None = None

    def open(self) -> "OpenJournal":
        """Return the journal for a broker that starts now."""
        self.process = OpenJournal(self)
        return self.process

    def want(self, filters: tuple[str, ...]) -> None:
        """Replace the filters that select messages for this journal."""
        self.filters = filters
        self.since = self.journals.clock.now

    def wants(self, topic: str) -> bool:
        """Return whether the journal currently wants messages on `topic`."""
        return any(matches(filter, topic) for filter in self.filters)

    def crash(self) -> None:
        """Simulate a power cut. A random part of the unflushed entries survives."""
        process, self.process = self.process, None
        self.trouble = ""
        if process is not None:
            process.lost = True
            self.keep_some([*process.flushing, *process.buffer])

    def keep(self, entries: Iterable[Entry]) -> None:
        """Make `entries` safe."""
        for entry in entries:
            self.kept.append(entry)
            self.commits.setdefault(entry.uid, []).append(entry.commit)

    def keep_some(self, entries: Sequence[Entry]) -> None:
        """Make a random prefix of `entries` safe."""
        self.keep(entries[: self.journals.random.randrange(len(entries) + 1)])

    def recover(self, last: CommitId) -> None:
        """Drop the entries after commit `last`, which its store never committed. Keep the entries of other stores."""
        good = [
            entry
            for entry in self.kept
            if entry.commit.store != last.store or entry.commit.number <= last.number
        ]
        self.kept.clear()
        self.commits.clear()
        self.keep(good)


class OpenJournal:
    """`hookmq.storage.protocols.Journal` on a `JournalDisk`, for the lifetime of one broker."""

    def __init__(self, disk: JournalDisk) -> None:
        self.disk = disk
        self.name = disk.name
        self.buffer: list[Entry] = []
        self.flushing: list[Entry] = []
        self.busy = False
        self.lost = False
        self.last: CommitId | None = None
        """The store's newest commit when the broker started."""
        self.wants = disk.wants

    def append(self, commit: CommitId, message: Message) -> None:
        """Append a message, as `hookmq.storage.protocols.Journal.append` does."""
        journals = self.disk.journals
        last = self.last
        now = journals.committed()
        if last is None or commit.store != now.store or commit.number <= now.number:
            journals.complain(
                "11 journal", f"{self.name}: appended to {commit}, the store is at {now}"
            )
        if not self.wants(message.topic):
            journals.complain("11 journal", f"{self.name} got {message}, which it does not want")
        if self.disk.trouble == "append":
            self.disk.trouble = ""
            journals.failed()
            raise OSError("no space left")
        sent = journals.ledger.find(message.payload)
        self.buffer.append(Entry(commit, message.topic, -1 if sent is None else sent.uid))

    def flush(self, commit: CommitId, done: Flushed) -> None:
        """Flush, as `hookmq.storage.protocols.Journal.flush` does. `done` is called later or, after a crash, never."""
        disk, journals = self.disk, self.disk.journals
        if self.busy:
            journals.complain("11 journal", f"{self.name}: a second flush began while one runs")
        self.flushing = [one for one in self.buffer if one.commit.number <= commit.number]
        self.buffer = self.buffer[len(self.flushing) :]
        trouble = ""
        if disk.trouble != "append":
            trouble, disk.trouble = disk.trouble, ""
        if trouble == "raise":
            journals.failed()
            raise OSError("disk full")
        self.busy = True
        delay = journals.delay()
        if delay:
            journals.clock.after(delay, partial(self._finish, done, trouble))
        else:
            self._finish(done, trouble)

    def seal(self, done: Flushed) -> bool:
        """Flush without the store, as `hookmq.storage.protocols.Sealing.seal` does. Refuse sometimes."""
        journals = self.disk.journals
        if journals.random.random() < 0.2:
            return False
        known = journals.committed()
        self.buffer = [one._replace(commit=known) for one in self.buffer]
        self.flush(known, done)
        return True

    def recover(self, last: CommitId) -> None:
        """Recover, as `hookmq.storage.protocols.Journal.recover` does."""
        if last != self.disk.journals.committed():
            self.disk.journals.complain("11 journal", f"{self.name} is told of {last}")
        self.last = last
        self.disk.recover(last)

    def _finish(self, done: Flushed, trouble: str) -> None:
        if self.lost:
            return
        entries, self.flushing = self.flushing, []
        self.busy = False
        if not trouble:
            self.disk.keep(entries)
            self.disk.journals.mix(entries)
            done(None)
            return
        if trouble == "unknown" and self.disk.journals.random.random() < 0.5:
            self.disk.keep(entries)
        else:
            self.disk.keep_some(entries)
        self.disk.journals.failed()
        done(StoreFailed("input/output error"))


class Journals:
    """All journals of one world and their invariants.

    `committed` returns the store's newest commit. `complain` receives (invariant, description). `mixed` receives bytes
    for the trace.
    """

    def __init__(
        self,
        names: Sequence[str],
        clock: Clock,
        seed: int,
        latency: float,
        ledger: Ledger,
        complain: Callable[[str, str], None],
        committed: Callable[[], CommitId],
        mixed: Callable[[bytes], None],
    ) -> None:
        self.clock = clock
        self.random = Random(seed)
        self.latency = latency
        self.ledger = ledger
        self.complain = complain
        self.committed = committed
        self.mixed = mixed
        self.disks = {name: JournalDisk(self, name) for name in names}
        self.failed_at: float | None = None
        """When the running broker was notified that a journal had failed, or None."""

    def delay(self) -> float:
        """Return the delay of the next flush in seconds."""
        return self.random.random() * self.latency if self.latency else 0.0

    def mix(self, entries: Sequence[Entry]) -> None:
        """Add entries that have become safe to the hash of the trace."""
        self.mixed(b"".join(b"%d," % entry.uid for entry in entries))

    def failed(self) -> None:
        """Record that the broker was notified of a failure."""
        if self.failed_at is None:
            self.failed_at = self.clock.now

    def calm(self) -> None:
        """Stop injecting faults."""
        self.latency = min(self.latency, 0.01)
        for disk in self.disks.values():
            disk.trouble = ""

    def crash(self) -> None:
        """Simulate the crash of the broker's process."""
        self.failed_at = None
        for disk in self.disks.values():
            disk.crash()

    # --- what must hold ----------------------------------------------------------------------------------------------

    def store_begins(self, number: int) -> None:
        """Check that the journals hold everything up to commit `number` safely, because the store starts writing that
        commit.
        """
        if self.failed_at is not None:
            self.complain("11 journal", f"commit {number} goes on after a journal failed")
        for disk in self.disks.values():
            process = disk.process
            if process is not None and any(
                entry.commit.number <= number for entry in (*process.flushing, *process.buffer)
            ):
                self.complain(
                    "11 journal", f"commit {number} begins before {disk.name} has it safe"
                )

    def acked(self, sent: Sent, code: int) -> None:
        """Check after PUBACK or PUBREC that the message and its commit are safe."""
        if code >= 0x80:
            return
        for disk in self._owed(sent):
            commits = disk.commits.get(sent.uid)
            if commits is None:
                self.complain("11 journal", f"{sent} is acknowledged, and not safe in {disk.name}")
            elif all(map(self._ahead, commits)):
                self.complain("11 journal", f"{sent} is acknowledged, of {commits} to be made")

    def check_started(self) -> None:
        """Check the journals after a broker has started."""
        self.check_kept()
        for disk in self.disks.values():
            if disk.process is None or disk.process.last is None:
                self.complain("11 journal", f"{disk.name} was not told where the store is")
            elif not disk.process.busy and any(self._ahead(entry.commit) for entry in disk.kept):
                self.complain("11 journal", f"{disk.name} serves what is beyond the store")

    def check_step(self) -> None:
        """Check that journals are at most one commit ahead of the store: the one in progress."""
        for disk in self.disks.values():
            process = disk.process
            if process is None or process.last is None or not disk.kept:
                continue
            commit = disk.kept[-1].commit
            if self._ahead(commit._replace(number=commit.number - 1)):
                self.complain("11 journal", f"{disk.name} holds {commit}, far beyond the store")

    def check_kept(self) -> None:
        """Check that safe entries are in order, and that no entry occurs more often than it was sent."""
        for disk in self.disks.values():
            last: dict[tuple[int, str, int], int] = {}
            seen: set[int] = set()
            for entry in disk.kept:
                if entry.uid < 0 or entry.uid in seen:
                    continue
                seen.add(entry.uid)
                sent = self.ledger.sent[entry.uid]
                if not sent.trusted:
                    continue
                # An earlier attempt may have had no recipient, or may have been dropped.
                again = sent.attempts > 1 and disk.since >= sent.first_sent
                if sent.origin == "client" and not sent.lost and not again:
                    key = (sent.publisher, sent.topic, sent.qos)
                    if sent.order < last.get(key, 0):
                        self.complain("11 journal", f"{disk.name} has {sent} after a later one")
                    last[key] = sent.order
                most = sent.attempts if sent.qos < 2 and sent.origin == "client" else 1
                count = len(disk.commits[entry.uid])
                if count > most:
                    self.complain(
                        "11 journal", f"{disk.name} has {sent} {count} times, sent {most} times"
                    )

    def check_settled(self) -> None:
        """Check, long after the last fault, that nothing is in progress and no entry is missing."""
        self.check_kept()
        for sent in self.ledger.sent:
            if sent.acked_at >= 0 and not sent.refused:
                self.acked(sent, 0)
        for disk in self.disks.values():
            process = disk.process
            if process is not None and (process.busy or process.flushing or process.buffer):
                self.complain("liveness", f"{disk.name} has {len(process.buffer)} not yet flushed")
            if disk.kept and self._ahead(disk.kept[-1].commit):
                self.complain("11 journal", f"{disk.name} serves {disk.kept[-1]}, never committed")

    def _ahead(self, commit: CommitId) -> bool:
        """Return whether the store has yet to make this commit."""
        last = self.committed()
        return commit.store == last.store and commit.number > last.number

    def _owed(self, sent: Sent) -> list[JournalDisk]:
        """Return the journals that must contain an acknowledged message."""
        if not sent.trusted or sent.lost or sent.clear:
            return []
        return [
            disk
            for disk in self.disks.values()
            if disk.wants(sent.target) and disk.since <= sent.first_sent
        ]
