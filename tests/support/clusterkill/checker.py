"""Judge the history of a run, in the manner of Jepsen's checkers for queues and sets.

| finding | meaning |
|---|---|
| lost | an acknowledged message at QoS 1 or 2 did not reach a session whose SUBACK preceded it |
| doubled | a session, or a group of them, received a message at QoS 2 or QoS 0 twice |
| reordered | the first delivery of a message came after that of a later one, of the same publisher, topic and QoS |
| invented | a message arrived that nobody had sent, or before it was sent |
| will lost, will doubled, will wrong | a due will did not arrive, arrived twice, or arrived though it was taken back |
| retained wrong | a node shows a retained message older than the last acknowledged one, or one never sent |
| retained differs | two nodes show different retained messages |
| session lost | a client returned to a durable session, and found none |
| stuck | a message of a publisher with a session has no outcome at the end |

A session without durable state counts only if its connection was still open at the end. The cluster does not promise it
QoS 2 messages if the publisher's node dies: those that are missing are only counted, as `lost, volatile`. Members of a
shared subscription count together, and their order is not judged. The outcome of a message may be unknown: it may then
arrive or not.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from hookmq.mqtt.topics import matches, parse_share

from clusterkill.history import FAULTS, Event

EXAMPLES: Final = 5
"""How many examples of each finding a verdict names."""
Message = tuple[str, int]
"""The topic and the number of a message."""


@dataclass
class Verdict:
    """The result for a history."""

    counts: Counter[str] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def ok(self) -> bool:
        """Return whether nothing was found."""
        return not self.findings

    def find(self, finding: str, example: str) -> None:
        """Add a finding."""
        self.findings[finding] += 1
        if len(self.examples[finding]) < EXAMPLES:
            self.examples[finding].append(example)

    def lines(self) -> list[str]:
        """Return a line for each finding."""
        return [
            f"{count} {name}: {'; '.join(self.examples[name])}"
            for name, count in self.findings.items()
        ]


@dataclass
class _Send:
    """A message that was sent."""

    number: int
    qos: int
    part: int
    invoked: int
    clears: bool
    client: str
    outcome: str = ""


@dataclass
class _Will:
    invoked: int
    outcome: str = ""


@dataclass
class _Session:
    """A session with its subscriptions: a durable one, one connection of another client, or a group."""

    name: str
    durable: bool
    group: bool = False
    closed: bool = False
    filters: dict[str, int] = field(default_factory=dict)
    """The position of SUBACK for each filter; -1 before it arrives."""
    times: Counter[Message] = field(default_factory=Counter)
    newest: dict[tuple[str, int], int] = field(default_factory=dict)

    def subscribed(self, topic: str) -> int:
        """Return the position of the first SUBACK for a topic, or -1."""
        found = [at for one, at in self.filters.items() if at >= 0 and matches(one, topic)]
        return min(found, default=-1)


class _Reading:
    """The state while a history is read."""

    def __init__(self, verdict: Verdict) -> None:
        self.verdict = verdict
        self.sends: dict[str, dict[int, _Send]] = defaultdict(dict)
        self.wills: dict[str, _Will] = {}
        self.reads: dict[str, dict[str, int]] = defaultdict(dict)
        self.sessions: list[_Session] = []
        self._current: dict[str, _Session] = {}
        self._groups: dict[str, _Session] = {}
        self._member: dict[str, _Session] = {}
        self._known: set[str] = set()

    def take(self, at: int, event: Event) -> None:
        action = event.action
        if action == "publish":
            self._publish(at, event)
        elif action == "receive":
            self._receive(event)
        elif action == "subscribe":
            self._subscribe(at, event)
        elif action == "connect":
            self._connect(event)
        elif action == "close":
            self._close(event.client)
        elif action == "will":
            if event.type == "invoke":
                self.wills[event.topic] = _Will(at)
            else:
                self.wills[event.topic].outcome = event.type
        elif action == "read":
            self.reads[event.topic][event.detail] = event.number

    def _publish(self, at: int, event: Event) -> None:
        if event.type == "invoke":
            made = _Send(
                event.number, event.qos, event.part, at, event.detail == "clear", event.client
            )
            self.sends[event.topic][event.number] = made
        else:
            self.sends[event.topic][event.number].outcome = event.type

    def _connect(self, event: Event) -> None:
        if event.detail == "new" and event.client in self._known:
            self.verdict.find("session lost", f"{event.client} at {event.at:.2f} s")
        if event.detail != "clean":
            self._known.add(event.client)

    def _close(self, client: str) -> None:
        session = self._current.get(client)
        if session is not None and not session.durable:
            session.closed = True
            del self._current[client]

    def _subscribe(self, at: int, event: Event) -> None:
        share, filter = parse_share(event.topic)
        if share is not None:
            session = self._groups.get(event.topic)
            if session is None:
                session = self._groups[event.topic] = _Session(event.topic, True, group=True)
                self.sessions.append(session)
            self._member[event.client] = session
        else:
            session = self._current.get(event.client)
            if session is None:
                session = _Session(event.client, event.detail == "durable")
                self._current[event.client] = session
                self.sessions.append(session)
        if event.type == "ok" and session.filters.get(filter, -1) < 0:
            session.filters[filter] = at

    def _receive(self, event: Event) -> None:
        topic, number = event.topic, event.number
        self.verdict.counts["delivered"] += 1
        send = self.sends[topic].get(number)
        if send is None and topic not in self.wills:
            self.verdict.find("invented", f"{topic} {number} to {event.client}")
            return
        session = self._member.get(event.client) or self._current.get(event.client)
        if session is None:
            self.verdict.find("invented", f"{topic} {number} to {event.client}, not subscribed")
            return
        first = not session.times[topic, number]
        session.times[topic, number] += 1
        if send is None or session.group:
            return
        since = session.subscribed(topic)
        if since < 0 or send.invoked < since:
            # The publisher may send it again. Later messages may have arrived before that.
            return
        newest = session.newest.get((topic, send.part), 0)
        if first and number < newest:
            self.verdict.find(
                "reordered",
                f"{topic} {number} after {newest} to {session.name} at {event.at:.2f} s",
            )
        session.newest[topic, send.part] = max(newest, number)


def check(history: Iterable[Event]) -> Verdict:
    """Judge a history."""
    verdict = Verdict()
    reading = _Reading(verdict)
    for at, event in enumerate(history):
        if event.client == FAULTS:
            verdict.counts["faults"] += event.type == "invoke"
        else:
            reading.take(at, event)
    _count(reading, verdict)
    for session in reading.sessions:
        _check_messages(reading, session, verdict)
        _check_wills(reading, session, verdict)
    for topic, found in reading.reads.items():
        _check_retained(topic, list(reading.sends[topic].values()), found, verdict)
    return verdict


def _count(reading: _Reading, verdict: Verdict) -> None:
    counts = verdict.counts
    for topic, sends in reading.sends.items():
        for send in sends.values():
            counts["published"] += 1
            counts["acknowledged"] += send.outcome == "ok" and send.qos > 0
            counts["refused"] += send.outcome == "fail"
            counts["unknown"] += send.outcome == "unknown"
            if not send.outcome:
                verdict.find("stuck", f"{topic} {send.number} of {send.client}")
    counts["wills due"] += sum(one.outcome == "ok" for one in reading.wills.values())


def _check_messages(reading: _Reading, session: _Session, verdict: Verdict) -> None:
    for topic, sends in reading.sends.items():
        since = session.subscribed(topic)
        for send in sends.values():
            times = session.times[topic, send.number]
            if times > 1:
                verdict.counts["repeated"] += send.qos == 1
                if send.qos != 1:
                    verdict.find(
                        "doubled", f"{topic} {send.number} QoS {send.qos} to {session.name}"
                    )
            if since < 0 or send.invoked < since or not send.qos or send.outcome != "ok":
                continue
            if session.durable or not session.closed:
                verdict.counts["due"] += 1
                if not times and send.qos == 2 and not session.durable:
                    # The publisher's node may have died after the commit, before it sent the message on.
                    verdict.counts["lost, volatile"] += 1
                elif not times:
                    verdict.find("lost", f"{topic} {send.number} QoS {send.qos} to {session.name}")


def _check_wills(reading: _Reading, session: _Session, verdict: Verdict) -> None:
    for topic, will in reading.wills.items():
        times = sum(count for (one, _), count in session.times.items() if one == topic)
        since = session.subscribed(topic)
        if times > 1:
            verdict.find("will doubled", f"{topic} to {session.name}")
        if times and will.outcome == "fail":
            verdict.find("will wrong", f"{topic} to {session.name}")
        due = will.outcome == "ok" and 0 <= since < will.invoked and session.durable
        if due and not times:
            verdict.find("will lost", f"{topic} to {session.name}")


def _check_retained(
    topic: str, sends: list[_Send], found: dict[str, int], verdict: Verdict
) -> None:
    last = max((send.number for send in sends if send.outcome == "ok"), default=0)
    allowed = {0 if one.clears else one.number for one in sends if one.number >= last}
    if not last:
        allowed.add(0)
    for node, number in found.items():
        verdict.counts["retained read"] += 1
        if number not in allowed:
            verdict.find("retained wrong", f"{topic} on {node}: {number}, acknowledged {last}")
    if len(set(found.values())) > 1:
        verdict.find("retained differs", f"{topic}: {found}")
