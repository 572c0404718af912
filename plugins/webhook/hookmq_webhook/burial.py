"""Store dead letters (events that the plugin gives up on) in a file or on a topic."""

import json
from collections.abc import Callable

from hookmq.plugin import BrokerHandle, PluginError
from hookmq.storage_api import StoreFailed

from hookmq_webhook.deadletter import DeadLetters
from hookmq_webhook.events import Event
from hookmq_webhook.parcels import Buried
from hookmq_webhook.queues import Numbered
from hookmq_webhook.requests import Requests

Kept = Callable[[StoreFailed | None], None]
"""Called with None when a dead letter is stored safely, or with the failure if it could not be stored."""


class Burial:
    """Stores the dead letters of one plugin instance.

    They are published to `topic` if it is set, and otherwise written to `dead`. Without either, they are discarded.
    """

    def __init__(
        self,
        broker: BrokerHandle,
        requests: Callable[[], Requests],
        topic: str | None,
    ) -> None:
        self.dead: DeadLetters | None = None
        """The dead-letter file, once it is open."""
        self._broker = broker
        self._requests = requests
        self._topic = topic
        self._gaps: list[Numbered] = []
        self._open = False

    def bury(self, one: Numbered, reason: str, attempts: int, buried: Buried) -> None:
        """Store an event that the plugin gave up on; see `hookmq_webhook.parcels.Bury`."""
        self._broker.log(
            "warning", "webhook.given_up", id=one.id, type=one.event.type, reason=reason,
            attempts=attempts,
        )  # fmt: skip
        self._keep(one, reason, attempts, lambda failed: buried(failed.reason if failed else ""))

    def spill(self, event: Event, done: Kept) -> None:
        """Store an event that does not fit into the outbox."""
        # The full outbox did not number the event, so it gets a random id.
        one = Numbered(0, event, 0, f"{self._broker.runtime.token(16)}-0")
        self._keep(one, "the outbox is full", 0, done)

    def lost(self, first: int, end: int, epoch: str) -> None:
        """Store one dead letter of type `gap` for events lost to disk damage.

        The lost events have the numbers from `first` to `end - 1`.
        """
        data = {"first": first, "last": end - 1, "epoch": epoch}
        event = Event("gap", self._broker.runtime.time(), data=data)
        self._gaps.append(Numbered(first, event, 0, f"{epoch}-{first}"))
        if self._open:  # while the broker starts, the dead-letter file may not be open yet
            self.open()

    def open(self) -> None:
        """Store the gaps that were found while the broker started."""
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

            try:
                letter = broker.publish_and_wait(self._topic, text, 1)
            except PluginError as error:
                # The event is too large as JSON. Without it, the letter still names the event and the cause.
                about["reason"] = f"{reason}; {error.message}"
                text = json.dumps({**about, "event": None}).encode()
                try:
                    letter = broker.publish_and_wait(self._topic, text, 1)
                except PluginError as again:
                    done(StoreFailed(str(again)))
                    return
            runtime.spawn(letter, published)
        elif self.dead is not None:
            self.dead.add(one, reason, attempts, runtime.time(), done)
        else:
            done(None)
