"""A preview of a publish: what plugins would decide about a message that has not been published yet."""

from hookmq.broker.publish.pipeline import PublishPipeline, PublishResult
from hookmq.hooks.verdicts import Deny, Drop, Handled
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.reason_codes import ReasonCode


class PublishDecision(PublishPipeline):
    """Asks `authorize` and `on_publish` as `PublishPipeline` does, but stops before publishing.

    The result, `verdict`, is the message as changed by the plugins, or the reason why it would not be published.
    Nothing is counted or reported, because the message has been neither published nor refused.
    """

    __slots__ = ("ended_by",)

    ended_by: Deny | Drop | Handled | None

    @property
    def verdict(self) -> Message | Deny | Drop | Handled:
        """The decision, available once `done` has been called."""
        return self.message if self.ended_by is None else self.ended_by

    def _accept(self) -> None:
        self._settle(None)

    def _deny(self, verdict: Deny, by: str) -> None:
        self._settle(verdict)

    def _transformed(self, result: Message | Subscription | Deny | Drop | Handled, by: str) -> None:
        if isinstance(result, Drop | Handled):
            if not self.cancelled:
                self._settle(result)
        else:
            super()._transformed(result, by)

    def _settle(self, verdict: Deny | Drop | Handled | None) -> None:
        self.ended_by = verdict
        self._end(PublishResult(ReasonCode.SUCCESS))
