"""What is given up: to the dead letters, a file or a topic."""

import json
from collections.abc import Callable

from hookmq.plugin import BrokerHandle
from hookmq.store import StoreFailed

from hookmq_webhook.deadletter import DeadLetters
from hookmq_webhook.dispatch import Buried
from hookmq_webhook.events import Event
from hookmq_webhook.queues import Numbered
from hookmq_webhook.requests import Requests

Kept = Callable[[StoreFailed | None], None]
"""Told that it is safe, or why it is not."""


class Burial:
    """One instance's. `dead` is the file, None where there is none; `topic` takes its place; with neither it is gone."""

    def __init__(
        self,
        broker: BrokerHandle,
        requests: Callable[[], Requests],
        topic: str | None,
    ) -> None:
        self.dead: DeadLetters | None = None
        """Set once it is open."""
        self._broker = broker
        self._requests = requests
        self._topic = topic
        self._gaps: list[Numbered] = []
        self._open = False

    def bury(self, one: Numbered, reason: str, attempts: int, buried: Buried) -> None:
        """As `hookmq_webhook.dispatch.Bury`."""
        self._broker.log(
            "warning", "webhook.given_up", id=one.id, type=one.event.type, reason=reason,
            attempts=attempts,
        )  # fmt: skip
        self._keep(one, reason, attempts, lambda failed: buried(failed.reason if failed else ""))

    def spill(self, event: Event, done: Kept) -> None:
        """The outbox has no room."""
        # It has no number: what was full gave it none. The id is its own.
        one = Numbered(0, event, 0, f"{self._broker.runtime.token(16)}-0")
        self._keep(one, "the outbox is full", 0, done)

    def lost(self, first: int, end: int, epoch: str) -> None:
        """The disk has lost events: whoever looks at the dead letters learns which."""
        data = {"first": first, "last": end - 1, "epoch": epoch}
        event = Event("gap", self._broker.runtime.time(), data=data)
        self._gaps.append(Numbered(first, event, 0, f"{epoch}-{first}"))
        if self._open:  # not while the broker starts: the dead letters may not be there yet
            self.open()

    def open(self) -> None:
        """The broker is ready: what it found at its start is kept now."""
        self._open = True
        gaps, self._gaps = self._gaps, []
        for one in gaps:
            self._keep(one, "the outbox is damaged: these events are lost", 0, self._gap_kept)

    def _gap_kept(self, failed: StoreFailed | None) -> None:
        if failed is not None:
            self._broker.runtime.log("error", "webhook.gap_not_kept", reason=failed.reason)

    def _keep(self, one: Numbered, reason: str, attempts: int, done: Kept) -> None:
        runtime, broker = self._broker.runtime, self._broker
        if self._topic is not None:
            body = self._requests().encode([one])[1]
            about = {"id": one.id, "reason": reason, "attempts": attempts, "time": runtime.time()}
            text = json.dumps(about).encode()[:-1] + b', "event": ' + body + b"}"

            def published(_: object, error: BaseException | None) -> None:
                done(StoreFailed(str(error)) if error is not None else None)

            runtime.spawn(broker.publish_and_wait(self._topic, text, 1), published)
        elif self.dead is not None:
            self.dead.add(one, reason, attempts, runtime.time(), done)
        else:
            done(None)
