"""Publish limits that a test opens and closes by hand, and the plugin that provides them."""

from collections.abc import Callable

from hookmq.hooks.rate_limit import DeliveryLimit, LimitExceeded, PublishLimit, RateLimiter, Resume
from hookmq.model.runtime import Cancel
from hookmq.plugin import Context, Deny, Drop, Plugin, ReasonCode, hookimpl


class Gate(PublishLimit):
    """A limit that admits the first `tokens` messages. Later messages either wait until the test calls `let`, or get
    `verdict`.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.taken: list[int] = []
        self.verdict: Deny | Drop | None = None
        self.waiting: list[tuple[int, Resume]] = []

    def take(self, size: int) -> bool:
        if self.tokens <= 0:
            return False
        self.tokens -= 1
        self.taken.append(size)
        return True

    def over(self, size: int, qos: int, go: Resume) -> Cancel | LimitExceeded:
        if self.verdict is not None:
            return LimitExceeded("gate/rate", self.verdict)
        entry = (size, go)
        self.waiting.append(entry)
        return lambda: self.waiting.remove(entry)

    def let(self, refusal: LimitExceeded | None = None) -> None:
        size, go = self.waiting.pop(0)
        if refusal is None:
            self.taken.append(size)
        go(refusal)


class Slope(DeliveryLimit):
    def __init__(self) -> None:
        self.tokens = 0
        self.waiting: list[Callable[[], None]] = []
        self.drops = False

    def ready(self) -> bool:
        return self.tokens > 0

    def sent(self) -> None:
        self.tokens -= 1

    def wait(self, go: Callable[[], None]) -> Cancel:
        self.waiting.append(go)
        return lambda: self.waiting.remove(go)

    def dropped(self) -> str:
        return "gate/out"

    def let(self, count: int) -> None:
        self.tokens += count
        self.waiting.pop(0)()


class Measure(RateLimiter):
    def __init__(self, gate: Gate | None = None, slope: Slope | None = None) -> None:
        self.gate = gate
        self.delivery_limit = slope
        self.filters: list[str] = []
        self.refuses = False

    def publish_limit(self, topic: str) -> PublishLimit | None:
        return self.gate

    def subscribe(self, filter: str) -> LimitExceeded | None:
        self.filters.append(filter)
        return (
            LimitExceeded("gate/filters", Deny(ReasonCode.QUOTA_EXCEEDED)) if self.refuses else None
        )


class Metering(Plugin):
    """A plugin that limits only the client ``measured``."""

    def __init__(self, rate_limiter: object, id: str = "metering") -> None:
        super().__init__(None, Context(id))
        self.rate_limiter = rate_limiter

    @hookimpl
    def provide_rate_limiter(self, client: object) -> object:
        if getattr(client, "client_id", "") != "measured":
            return None
        if isinstance(self.rate_limiter, Exception):
            raise self.rate_limiter
        return self.rate_limiter
