"""The invariants of wills.

A will is published once if its connection ends without a normal DISCONNECT. It is not published before its delay has
passed or the session has ended, and not at all if the client resumes its session in time. A watcher with a durable
session and QoS 2 subscribes to all wills, so it receives each will that was published.
"""

from collections.abc import Callable, Mapping

from hookmq.storage.records import SessionRecord
from hookmq_testing.runtime import EPOCH

from simulator.ledger import Ledger
from simulator.network import Link
from simulator.records import Life, Sent

NO, MAYBE, SURE = 0, 1, 2


class Will:
    """The will of one connection."""

    __slots__ = (
        "armed", "cancelled", "client", "delay", "ended_at", "expiry", "fired_at", "gone", "link", "said_bye", "sent",
        "session_over", "standing", "tries",
    )  # fmt: skip

    def __init__(self, client: int, link: Link, sent: Sent, delay: int, expiry: float) -> None:
        self.client = client
        self.link = link
        self.sent = sent
        self.delay = delay
        self.expiry = expiry
        self.armed = False
        """Whether CONNACK arrived on the will's connection."""
        self.said_bye = NO
        self.cancelled = NO
        self.tries = 0
        """How often the client has tried to reconnect since."""
        self.standing = False
        """Whether the will had to be stored when the broker crashed, because its connection was open."""
        self.gone = False
        """Whether the will may be lost, because it was not on disk after a crash."""
        self.session_over = False
        """Whether the session may have ended early, so that the will is due at once."""
        self.ended_at: float | None = None
        """When the connection ended, as far as a restarted broker knows; None if `link` has the time."""
        self.fired_at = -1.0

    def end(self) -> float | None:
        """Return the time at which the connection ended, as far as the broker knows."""
        return self.link.broker_ended_at if self.ended_at is None else self.ended_at

    def due(self) -> float | None:
        """Return the earliest time at which the will may be published."""
        end = self.end()
        if end is None:
            return None
        return end if self.session_over else end + min(self.delay, self.expiry)


class Wills:
    """All wills of one world."""

    def __init__(self, ledger: Ledger, complain: Callable[[str, str], None]) -> None:
        self.ledger = ledger
        self.complain = complain
        self.by_uid: dict[int, Will] = {}
        self.by_link: dict[int, Will] = {}
        self.open: dict[int, list[Will]] = {}
        """The wills whose outcome is still open, by client."""

    def carried(self, client: int, link: Link, sent: Sent, delay: int, expiry: float) -> None:
        """Record that a CONNECT with a will was sent."""
        will = Will(client, link, sent, delay, expiry)
        self.by_uid[sent.uid] = self.by_link[link.number] = will
        self.open.setdefault(client, []).append(will)

    def returning(self, client: int, link: Link, clean: bool) -> None:
        """Record that this client sent a CONNECT, which may end the session or cancel the will in time."""
        for will in self.open.get(client, ()):
            if will.link is link:
                continue
            will.tries += 1
            if clean:
                will.session_over = True
            elif will.cancelled == NO and min(will.delay, will.expiry) > 0:
                will.cancelled = MAYBE

    def confirmed(
        self, client: int, link: Link, present: bool, asked_at: float, now: float
    ) -> None:
        """Settle the wills of earlier connections once CONNACK has arrived on `link`."""
        rest = []
        for will in self.open.get(client, ()):
            if will.link is link:
                will.armed = True
                rest.append(will)
                continue
            due = will.due()
            if not will.armed or due is None or will.cancelled != MAYBE:
                continue
            if present and not will.session_over and now < due:
                will.cancelled = SURE
                if will.fired_at >= 0:
                    self.complain("6 will", f"{will.sent} was published before it was due")
            elif will.tries == 1 and (not present or asked_at > due + 0.1):
                will.cancelled = NO
        self.open[client] = rest

    def doubt(self, link: Link) -> None:
        """Record that an older connection attempt may still take over the session and end or resume it."""
        will = self.by_link.get(link.number)
        if will is not None:
            will.session_over = True
            will.cancelled = MAYBE
            will.tries += 1

    def goodbye(self, link: Link) -> None:
        """Record that the client sends a normal DISCONNECT."""
        will = self.by_link.get(link.number)
        if will is not None:
            will.said_bye = MAYBE

    def heard_goodbye(self, client: int, now: float) -> None:
        """Record that the broker has now received a DISCONNECT from this client."""
        for will in self.open.get(client, ()):
            if will.said_bye == MAYBE and will.link.broker_ended_at == now:
                will.said_bye = SURE

    def fired(self, payload: bytes, written_at: float) -> None:
        """Record that the watcher has received a will."""
        sent = self.ledger.find(payload)
        will = self.by_uid.get(sent.uid) if sent is not None else None
        if will is None:
            return
        will.fired_at = written_at
        due = will.due()
        if will.said_bye == SURE:
            self.complain("6 will", f"{will.sent} was published after a normal DISCONNECT")
        elif will.cancelled == SURE:
            self.complain(
                "6 will", f"{will.sent} was published although its client came back in time"
            )
        elif due is None:
            self.complain("6 will", f"{will.sent} was published while its client is connected")
        elif written_at < due - 0.001:
            self.complain(
                "6 will", f"{will.sent} was published at {written_at:.3f}, due at {due:.3f}"
            )

    def crashing(self) -> None:
        """Record which wills must survive a crash: those of open connections whose clients received CONNACK."""
        for will in self.by_uid.values():
            will.standing = (
                will.armed and will.end() is None and not will.said_bye and not will.cancelled
            )

    def crashed(self, kept: Mapping[str, SessionRecord], now: float) -> None:
        """Check the wills after a restart. `kept` holds each session's record on disk."""
        on_disk = {
            sent.uid: record
            for record in kept.values()
            if record.will is not None and (sent := self.ledger.find(record.will.message.payload))
        }
        for will in self.by_uid.values():
            record = on_disk.get(will.sent.uid)
            if record is not None:
                if will.said_bye == SURE:
                    will.said_bye = MAYBE
                if record.ended_at is None:
                    will.ended_at = now
                elif will.end() is None or will.ended_at is None:
                    will.ended_at = record.ended_at - EPOCH
            elif will.fired_at < 0:
                if will.standing:
                    self.complain(
                        "6 will", f"{will.sent} of a connection that was up was not on record"
                    )
                # It may have been published, replaced or withdrawn.
                will.gone = True

    def check(self, watcher: Life | None, watcher_id: str, now: float) -> None:
        """Check at the end that all due wills were published. This requires a watcher whose session existed the whole
        time.
        """
        if watcher is None:
            return
        since = min(
            (
                s.certain_from
                for s in watcher.subs
                if s.text == "w/#" and s.certain_from >= 0 and s.certain_until is None
            ),
            default=None,
        )
        if since is None:
            return
        for will in self.by_uid.values():
            due = will.due()
            sent = will.sent
            if (
                will.armed
                and due is not None
                and due + 15.0 < now
                and sent.qos
                and sent.first_sent >= since
                and not (will.said_bye or will.cancelled or will.gone or sent.lost)
                and watcher_id not in sent.excused
                and sent.uid not in watcher.got
            ):
                self.complain("6 will", f"{sent} was never published, due at {due:.3f}")
                return
