"""Meters: how much a client may do. What is over a limit waits, is refused or is dropped, before anything else sees it.

A plugin's `provide_meter` gives each client that comes in a `Meter`, or none. The core asks it about every PUBLISH and
every subscription of the client, and about every message that leaves for it. A meter answers at once: what must wait is
held by the core (a PUBLISH holds those behind it, acknowledgements and PINGREQ are handled all the same) and goes on
when the meter says so, so that no deadline turns a limit into a refusal. What a meter raises ends the connection.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hookmq.hooks.verdicts import Deny, Drop
from hookmq.runtime import Cancel


@dataclass(frozen=True, slots=True)
class Over:
    """A refusal: `limit` names the limit to `on_dropped` and `on_denied`, the verdict is what the client is told."""

    limit: str
    verdict: Deny | Drop


Go = Callable[[Over | None], None]
"""Told that a PUBLISH that waited may go on (None), or is refused after all."""


class Charge(ABC):
    """What each PUBLISH to a topic counts against. It is asked about one at a time, in their order."""

    __slots__ = ()

    @abstractmethod
    def take(self, size: int) -> bool:
        """Whether a PUBLISH of `size` bytes (its Remaining Length) may go on now; if so, it is counted. Called for every
        message, so it should take well below a microsecond."""

    @abstractmethod
    def over(self, size: int, qos: int, go: Go) -> Cancel | Over:
        """`take` said no: refuse it, or have it wait and call `go`, in a later turn: with None once it was counted.
        Calling the `Cancel` says that nobody waits any more."""


class Pace(ABC):
    """What each message that leaves for a client counts against."""

    __slots__ = ()

    drops: bool = False
    """Whether messages of QoS 0 are dropped rather than wait."""

    @abstractmethod
    def ready(self) -> bool:
        """Whether a message may leave now."""

    @abstractmethod
    def sent(self) -> None:
        """A message leaves: count it. Follows a `ready` that said yes."""

    @abstractmethod
    def wait(self, go: Callable[[], None]) -> Cancel:
        """`ready` said no: call `go`, in a later turn, when it says yes."""

    @abstractmethod
    def dropped(self) -> str:
        """A message of QoS 0 is dropped on its account: the limit's name."""


class Meter:
    """What one client's connection is measured by; this one lets everything pass."""

    __slots__ = ()

    pace: Pace | None = None
    """Of the messages that leave for the client; None where they are not limited."""

    def charge(self, topic: str) -> Charge | None:
        """What publishes to `topic` count against; None for nothing. The answer is remembered while the client's
        permission to publish there is."""
        return None

    def subscribe(self, filter: str) -> Over | None:
        """May it subscribe to one filter more now? None: yes, and it was counted."""
        return None


class _Charges(Charge):
    """Of several plugins, asked in their order; each is asked until it said yes, once for one message."""

    __slots__ = ("_charges", "_paid")

    def __init__(self, charges: Sequence[Charge]) -> None:
        self._charges = tuple(charges)
        self._paid = 0

    def take(self, size: int) -> bool:
        charges = self._charges
        while self._paid < len(charges):
            if not charges[self._paid].take(size):
                return False
            self._paid += 1
        self._paid = 0
        return True

    def over(self, size: int, qos: int, go: Go) -> Cancel | Over:
        waiting: list[Cancel] = []

        def paid(refusal: Over | None) -> None:
            if refusal is None:
                self._paid += 1
                if self.take(size):
                    go(None)
                    return
                answer = self._charges[self._paid].over(size, qos, paid)
                if not isinstance(answer, Over):
                    waiting[0] = answer
                    return
                refusal = answer
            self._paid = 0
            go(refusal)

        answer = self._charges[self._paid].over(size, qos, paid)
        if isinstance(answer, Over):
            self._paid = 0
            return answer
        waiting.append(answer)

        def cancel() -> None:
            self._paid = 0
            waiting[0]()

        return cancel


class _Paces(Pace):
    """Of several plugins: all must be ready."""

    __slots__ = ("_paces", "drops")

    def __init__(self, paces: Sequence[Pace]) -> None:
        self._paces = tuple(paces)
        self.drops = any(pace.drops for pace in paces)

    def ready(self) -> bool:
        return self._late() is None

    def _late(self) -> Pace | None:
        return next((pace for pace in self._paces if not pace.ready()), None)

    def sent(self) -> None:
        for pace in self._paces:
            pace.sent()

    def wait(self, go: Callable[[], None]) -> Cancel:
        return (self._late() or self._paces[0]).wait(go)

    def dropped(self) -> str:
        return (self._late() or self._paces[0]).dropped()


class Meters(Meter):
    """The meters of several plugins as one."""

    __slots__ = ("_charges", "_meters", "pace")

    def __init__(self, meters: Sequence[Meter]) -> None:
        self._meters = tuple(meters)
        self._charges: dict[tuple[Charge, ...], _Charges] = {}
        paces = [meter.pace for meter in meters if meter.pace is not None]
        self.pace = _Paces(paces) if len(paces) > 1 else paces[0] if paces else None

    def charge(self, topic: str) -> Charge | None:
        found = tuple(c for c in (meter.charge(topic) for meter in self._meters) if c is not None)
        if len(found) < 2:
            return found[0] if found else None
        # What was paid for a message is remembered in the object, so that the same must come again.
        known = self._charges.get(found)
        if known is None:
            if len(self._charges) >= 64:
                self._charges.clear()
            known = self._charges[found] = _Charges(found)
        return known

    def subscribe(self, filter: str) -> Over | None:
        for meter in self._meters:
            over = meter.subscribe(filter)
            if over is not None:
                return over
        return None
