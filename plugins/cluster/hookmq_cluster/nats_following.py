"""Following subjects of the stream, with a consumer that pushes messages to this node.

The consumer is in the memory of one server, since it can be made again at any time: after a gap, a lost connection, or a
server that does not answer any more. It then begins after the last message that was received. So nothing is missing, and
nothing comes twice.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from hookmq.plugin import Runtime, Timer

from hookmq_cluster.engine import Stored, Unavailable
from hookmq_cluster.nats_client import NatsClient
from hookmq_cluster.nats_messages import delivery
from hookmq_cluster.nats_protocol import header_field, publish, status
from hookmq_cluster.nats_requests import Request, call_api, error_of

SIGN_OF_LIFE: Final = 1.0
"""Seconds after which a consumer without messages says that it is there."""
SILENT: Final = 3.5
"""Seconds without anything from a consumer after which it is made again."""
ABANDONED: Final = 30
"""Seconds after which a server deletes a consumer to which nobody listens."""
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two attempts to make a consumer."""


class Following:
    """Calls `receive` for each message of `filters` above `after`, and `seen` with its sequence, until `end`."""

    def __init__(
        self,
        client: NatsClient,
        runtime: Runtime,
        stream: str,
        filters: Sequence[str],
        after: int,
        receive: Callable[[Stored], None],
        seen: Callable[[int], None],
    ) -> None:
        self._client = client
        self._runtime = runtime
        self._stream = stream
        self._filters = list(filters)
        self._position = after
        self._receive = receive
        self._seen = seen
        self._name = f"hookmq-{runtime.token(8)}"
        self._made = 0
        self._consumer = ""
        self._delivered = 0
        self._subscription = 0
        self._heard = 0.0
        self._pause = FIRST_PAUSE
        self._logged = ""
        self._request: Request | None = None
        self._ended = False
        self._timer: Timer = runtime.call_later(SIGN_OF_LIFE, self._watch)
        self._make()

    def end(self) -> None:
        """Stop calling `receive`."""
        if not self._ended:
            self._ended = True
            self._timer.cancel()
            self._remove()

    def reconnected(self, connected: bool) -> None:
        """Make the consumer again after a lost connection: messages were lost with it."""
        if connected and not self._ended:
            self._pause = FIRST_PAUSE
            self._make()

    # making it ---------------------------------------------------------------------------------------------------

    def _make(self) -> None:
        self._remove()
        if not self._client.connected():
            return  # `reconnected` makes it
        self._made += 1
        self._delivered = 0
        self._heard = self._runtime.now()
        name = self._consumer = f"{self._name}-{self._made}"
        # Each consumer has a subscription of its own, so that an earlier one is not heard any more, and ends.
        inbox = f"_INBOX.{name}"
        self._subscription = self._client.subscribe(inbox, partial(self._message, self._made))
        config: dict[str, Any] = {
            "name": name,
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._position + 1,
            "filter_subjects": self._filters,
            "ack_policy": "none",
            "replay_policy": "instant",
            "max_deliver": 1,
            "flow_control": True,
            "inactive_threshold": ABANDONED * 1_000_000_000,
            "mem_storage": True,
            "num_replicas": 1,
            # As an argument, since the glossary does not have NATS's word.
            **dict(idle_heartbeat=int(SIGN_OF_LIFE * 1e9)),  # noqa: C408
        }
        self._request = call_api(
            self._client,
            self._runtime,
            f"CONSUMER.CREATE.{self._stream}.{name}",
            {"stream_name": self._stream, "config": config},
            self._created,
        )

    def _created(self, answer: dict[str, Any] | Unavailable) -> None:
        self._request = None
        if isinstance(answer, Unavailable):
            self._failed(answer.reason)
            return
        code, text = error_of(answer)
        if code:
            self._failed(text or f"error {code}")
        else:
            self._pause = FIRST_PAUSE
            self._logged = ""

    def _failed(self, reason: str) -> None:
        """Make it again after a pause, which is shorter than the time until silence is noticed."""
        if reason != self._logged:  # one line is enough for all attempts
            self._logged = reason
            self._runtime.log("warning", "cluster.follow_delayed", reason=reason)
        self._heard = self._runtime.now() - SILENT + self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)

    def _remove(self) -> None:
        if self._request is not None:
            self._request.cancel()
            self._request = None
        if self._subscription:
            self._client.unsubscribe(self._subscription)
            self._subscription = 0
        if self._consumer and self._client.connected():
            # If this is lost, the server deletes the consumer by itself, since nobody listens to it.
            name = f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._consumer}"
            self._client.write(publish(name, b""))
        self._consumer = ""

    def _watch(self) -> None:
        silent = self._runtime.now() - self._heard
        if self._client.connected() and self._request is None and silent >= SILENT:
            self._runtime.log("info", "cluster.follow_restarted", reason="silence")
            self._make()
        self._timer = self._runtime.call_later(min(SIGN_OF_LIFE, self._pause), self._watch)

    # messages ----------------------------------------------------------------------------------------------------

    def _message(self, made: int, subject: str, answer: str, header: bytes, data: bytes) -> None:
        if made != self._made or self._ended:
            return
        self._heard = self._runtime.now()
        if status(header) == 100:
            self._control(answer, header)
            return
        try:
            sequence, delivered, time = delivery(answer)
        except ValueError:
            self._gap("malformed message")
            return
        if delivered != self._delivered + 1:
            self._gap(f"message {delivered} after {self._delivered}")
            return
        self._delivered = delivered
        if sequence > self._position:
            self._position = sequence
            self._seen(sequence)
            self._receive(Stored(subject, sequence, data, time))

    def _control(self, answer: str, header: bytes) -> None:
        """Answer requests for flow control, and compare the consumer's count of messages with the number that arrived."""
        if answer:
            self._client.write(publish(answer, b""))
            return
        stalled = header_field(header, b"\r\nNats-Consumer-Stalled:")
        if stalled:
            self._client.write(publish(stalled.decode(), b""))
        last = header_field(header, b"\r\nNats-Last-Consumer:")
        if last.isdigit() and int(last) != self._delivered:
            self._gap(f"{self._delivered} of {int(last)} messages arrived")

    def _gap(self, reason: str) -> None:
        self._runtime.log("info", "cluster.follow_restarted", reason=reason)
        self._make()
