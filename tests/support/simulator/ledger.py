"""The ledger: every message, every session as its client knows it, and the guarantees for each delivery.

It observes only what is visible outside the broker: packets, the times at which connections were closed, counts of
dropped messages, and crashes.
"""

from collections.abc import Callable
from functools import cache

from hookmq.mqtt import topics
from hookmq.mqtt.packets import Publish

from simulator.network import Link
from simulator.records import Life, Receipt, Sent, Sub

Complain = Callable[[str, str], None]
matches = cache(topics.matches)


class Ledger:
    """All messages and sessions of one world. `complain` receives (invariant, description)."""

    def __init__(self, complain: Complain, moves: bool) -> None:
        self.complain = complain
        self.moves = moves
        """Whether a plugin moves ``mv/TOPIC`` to ``TOPIC``."""
        self.sent: list[Sent] = []
        self.shared: dict[int, list[tuple[Life, Receipt]]] = {}
        self.lossy: set[str] = set()
        """Shared subscriptions that some client requested at QoS 0. Their messages may be lost."""
        self.fleeting: set[str] = set()
        """Shared subscriptions with a member whose session ends with its connection.

        Messages that were passed to such a member are lost if the broker crashes.
        """
        self.crashes: list[float] = []
        self.delivered = 0
        self._order = 0

    # --- messages ----------------------------------------------------------------------------------------------------

    def write(
        self,
        publisher: int,
        topic: str,
        qos: int,
        retain: bool = False,
        size: int = 10,
        expiry: int = 0,
        origin: str = "client",
    ) -> tuple[Sent, bytes]:
        """Create a message and the payload that identifies it."""
        sent = Sent(len(self.sent), publisher, topic, qos, retain, expiry, origin)
        self.sent.append(sent)
        if self.moves and topic.startswith("mv/"):
            sent.target = topic[3:]
        sent.clear = not size
        payload = b"%d." % sent.uid
        return sent, payload.ljust(size, b".") if size else b""

    def find(self, payload: bytes) -> Sent | None:
        """Return the message that a payload identifies."""
        number = payload.partition(b".")[0]
        if not number.isdigit() or int(number) >= len(self.sent):
            return None
        return self.sent[int(number)]

    def sending(self, sent: Sent, now: float) -> None:
        """Record that a publisher sends the message."""
        sent.attempts += 1
        if sent.first_sent < 0:
            sent.first_sent = now
            self._order += 1
            sent.order = self._order

    def acked(self, sent: Sent, code: int, now: float) -> None:
        """Record a PUBACK or PUBREC."""
        if sent.acked_at < 0:
            sent.acked_at = now
            sent.refused = code >= 0x80

    def crashed_between(self, since: float, until: float) -> bool:
        """Return whether the broker crashed in this interval."""
        return any(since <= at <= until for at in self.crashes)

    # --- deliveries --------------------------------------------------------------------------------------------------

    def delivery(self, life: Life, link: Link, packet: Publish, topic: str, now: float) -> None:
        """Check and record a delivery. QoS 2 retransmissions are already filtered out."""
        self.delivered += 1
        sent = self.find(packet.payload)
        if sent is None:
            if packet.payload:
                self.complain(
                    "2 sent", f"{life.client_id} got what nobody sent: {packet.payload[:40]!r}"
                )
            return
        if sent.target != topic:
            self.complain("2 sent", f"{life.client_id} got {sent} on {topic}")
        if packet.qos > sent.qos:
            self.complain("2 sent", f"{life.client_id} got {sent} at QoS {packet.qos}")
        if packet.retain:
            if not sent.retain:
                self.complain("8 retained", f"{life.client_id} got {sent} as retained")
            subs = [sub for sub in life.subs if matches(sub.filter, topic)]
            if not subs:
                self.complain("2 wanted", f"{life.client_id} did not subscribe to retained {topic}")
            if any(sub.as_published for sub in subs):
                # This may be the published message, or the retained message sent to a new subscription.
                life.seen.add(sent.uid)
            return
        self._wanted(life, link, sent, topic, packet.dup)
        receipt = life.got.get(sent.uid)
        if not sent.trusted:
            return
        if receipt is not None:
            self._again(life, link, packet, sent, receipt)
        else:
            receipt = life.got[sent.uid] = Receipt(now, link, packet.qos)
            if not topic.startswith("s/") and sent.origin == "client":
                key = (sent.publisher, sent.topic, sent.qos, packet.qos)
                last = life.order.get(key, 0)
                if sent.order < last and not (
                    self._other_copy(life, packet, sent) or self._drop_undone(life, sent)
                ):
                    self.complain("4 order", f"{life.client_id} got {sent} after a later one")
                life.order[key] = max(last, sent.order)
        if topic.startswith("s/"):
            self._to_one(life, link, packet, sent, now)
        receipt.at, receipt.link, receipt.qos = now, link, packet.qos

    def _wanted(self, life: Life, link: Link, sent: Sent, topic: str, dup: bool) -> None:
        later = True
        for sub in life.subs:
            if not matches(sub.filter, topic) or (sub.no_local and sent.publisher == life.client):
                continue
            if sub.possible_until is None or sent.first_sent <= sub.possible_until:
                if sub.shared or sent.acked_at < 0 or sent.acked_at >= sub.possible_from:
                    break
                later = False
        else:
            why = "has no subscription for it" if later else "subscribed after it was done with"
            self.complain("2 wanted", f"{life.client_id} got {sent} on {topic}: it {why}")
        if (
            sent.expiry
            and not dup
            and sent.acked_at >= 0
            and link.written_at > sent.acked_at + sent.expiry + 3.0
        ):
            self.complain("2 expired", f"{life.client_id} got {sent} long after its expiry")

    @staticmethod
    def _other_copy(life: Life, packet: Publish, sent: Sent) -> bool:
        """Return whether `packet` may be a permitted second copy of a message.

        The first copy may have been lost at QoS 0, dropped, delivered before the subscription, or sent as a retained
        message to a subscription with Retain As Published.
        """
        if sent.attempts < 2:
            return False
        if not packet.qos or sent.lost or life.client_id in sent.excused or sent.uid in life.seen:
            return True
        return not any(
            sub.qos
            and 0 <= sub.certain_from <= sent.first_sent
            and matches(sub.filter, sent.target)
            for sub in life.subs
        )

    def _drop_undone(self, life: Life, sent: Sent) -> bool:
        """Return whether a message may be queued again because a crash undid its drop.

        In that case, later messages had been sent already, but the broker crashed before it committed the drop.
        """
        dropped_at = sent.excused.get(life.client_id)
        return dropped_at is not None and self.crashed_between(dropped_at, dropped_at + 1.0)

    def _again(self, life: Life, link: Link, packet: Publish, sent: Sent, receipt: Receipt) -> None:
        receipt.count += 1
        resent = sent.qos == 1 and sent.attempts > 1
        crashed = self.crashed_between(receipt.at - 1.0, link.written_at)
        if packet.qos == 2 or receipt.qos == 2:
            # A subscription with another QoS in the meantime, or a returned shared message, does not matter here.
            good = packet.qos != receipt.qos
        elif packet.qos == 1:
            good = resent or link is not receipt.link or life.version < 5
        else:
            # It was sent at QoS 1 and not acknowledged, so it was returned to its group.
            good = resent or crashed or (receipt.qos == 1 and link is not receipt.link)
        if sent.origin == "plugin" or (sent.origin == "will" and crashed and packet.qos < 2):
            good = True
        if not good:
            self.complain("3 once", f"{life.client_id} got {sent} again at QoS {packet.qos}")

    def _to_one(self, life: Life, link: Link, packet: Publish, sent: Sent, now: float) -> None:
        others = self.shared.setdefault(sent.uid, [])
        for other, receipt in others:
            if other.client_id == life.client_id:
                continue
            if self.crashed_between(receipt.at - 1.0, link.written_at):
                continue
            if sent.qos == 1 and sent.attempts > 1:
                continue
            ended = receipt.link.broker_ended_at
            if receipt.qos == 1 and ended is not None and ended <= link.written_at:
                continue
            ended = link.broker_ended_at
            if packet.qos == 1 and ended is not None and ended <= receipt.written_at:
                continue  # it was sent first, but read last
            self.complain(
                "9 shared",
                f"{life.client_id} got {sent}, and {other.client_id} had it at {receipt.at:.3f}",
            )
        others.append((life, Receipt(now, link, packet.qos)))

    # --- sessions ----------------------------------------------------------------------------------------------------

    def present(
        self,
        life: Life | None,
        anew: bool,
        asked_at: float,
        now: float,
        suspects: list[Link],
        since: float,
    ) -> str:
        """Return whether CONNACK may report Session Present: "yes", "no" or "either".

        `anew` is True if the client asked for a clean start or belongs to another owner. `suspects` are unanswered
        connections that may have been active after `since`.
        """
        if any(link.broker_ended_at is None or link.broker_ended_at > since for link in suspects):
            # The broker reads an abandoned attempt after a later one: it takes over, and starts or ends a session.
            return "either"
        if anew or life is None:
            return "no"
        ended = life.link.broker_ended_at
        first = now if ended is None else ended
        last = max(
            life.restarted_at,
            *(
                now if link.broker_ended_at is None else link.broker_ended_at
                for link in life.links[:-1]  # the last one is the connection being answered
            ),
        )
        if life.expiry_max <= 0 or asked_at > last + life.expiry_max + 0.1:
            return "no"
        if life.expiry_min > 0 and now < first + life.expiry_min:
            return "yes"
        return "either"

    # --- at the end --------------------------------------------------------------------------------------------------

    def check_owed(self, lives: list[Life]) -> None:
        """Check that every client received everything it is owed. `lives` contains the sessions at the end of the run."""
        promised = [
            sent
            for sent in self.sent
            if sent.acked_at >= 0
            and sent.qos
            and not sent.refused
            and not sent.lost
            and not sent.clear
            and sent.trusted
        ]
        for life in lives:
            subs = [
                sub for sub in life.subs if sub.qos and sub.certain_from >= 0 and not sub.shared
            ]
            if not subs:
                continue
            for sent in promised:
                if sent.uid in life.got or sent.uid in life.seen or life.client_id in sent.excused:
                    continue
                for sub in subs:
                    if matches(sub.filter, sent.target) and _covers(sub, sent, life):
                        self.complain(
                            "1 owed",
                            f"{life.client_id} never got {sent}, acknowledged at {sent.acked_at:.3f}",
                        )
                        return
        self._check_shared(promised, lives)

    def _check_shared(self, promised: list[Sent], lives: list[Life]) -> None:
        members: dict[str, list[tuple[Life, Sub]]] = {}
        for life in lives:
            for sub in life.subs:
                if sub.shared and sub.certain_from >= 0 and sub.qos and life.expiry_min > 0:
                    members.setdefault(sub.text, []).append((life, sub))
        for sent in promised:
            if not sent.target.startswith("s/") or sent.uid in self.shared:
                continue
            for text, found in members.items():
                filter = topics.parse_share(text)[1]
                if text in self.lossy or not matches(filter, sent.target) or sent.excused:
                    continue
                if text in self.fleeting and self.crashed_between(sent.first_sent, float("inf")):
                    continue
                if any(
                    sub.certain_until is None and _covers(sub, sent, life) for life, sub in found
                ):
                    if sent.qos == 2:
                        # The delivery to a member that has left may have begun. It ends with that member's session.
                        continue
                    self.complain(
                        "9 shared",
                        f"nobody of {text} got {sent}, acknowledged at {sent.acked_at:.3f}",
                    )
                    return

    def check_retained(self, now: dict[str, bytes]) -> None:
        """Check that each remaining retained message could be the last one published on its topic."""
        for topic in {sent.topic for sent in self.sent if sent.retain}:
            writes = [
                s
                for s in self.sent
                if s.retain and s.topic == topic and s.first_sent >= 0 and not s.lost
            ]
            sure = [s for s in writes if s.acked_at >= 0 and not s.refused]
            payload = now.get(topic)
            value = None if payload is None else self.find(payload)
            if payload is not None and value is None:
                self.complain("8 retained", f"{topic} retains what nobody sent")
                continue
            candidates = [value] if value is not None else [s for s in writes if s.clear]
            if value is None and any(s.expiry for s in writes):
                continue
            if value is not None and value.expiry:
                continue
            for last in candidates:
                if not any(_after(later, last) for later in sure):
                    break
            else:
                if value is not None or sure:
                    what = "nothing" if value is None else f"{value}"
                    self.complain("8 retained", f"{topic} retains {what}, which was overwritten")


def _covers(sub: Sub, sent: Sent, life: Life) -> bool:
    if sub.no_local and sent.publisher == life.client:
        return False
    if sub.certain_from > sent.first_sent:
        return False
    return sub.certain_until is None or sub.certain_until >= sent.acked_at


def _after(later: Sent, earlier: Sent) -> bool:
    """Return whether the broker must have accepted `later` after `earlier`."""
    if later is earlier:
        return False
    # If one attempt was dropped and a later one accepted, other messages may have overtaken it.
    in_order = not (earlier.lost and earlier.attempts > 1)
    if in_order and later.publisher == earlier.publisher and later.qos == earlier.qos and later.qos:
        return later.order > earlier.order
    return 0 <= earlier.acked_at < later.first_sent and later.attempts >= 1
