"""Decide whether the service works, and when to stop sending to it."""

from collections.abc import Callable

from hookmq_webhook.parcels import Answer, Policy, Verdict


class Health:
    """Follows the answers of the service.

    The service *fails* from when the breaker opens until the service answers again. `changed` is called when that
    changes, and `disable` with the reason when no more requests should be sent. `time` returns the epoch time.
    """

    def __init__(
        self,
        time: Callable[[], float],
        log: Callable[..., None],
        waiting: Callable[[], int],
        disable: Callable[[str], None],
        changed: Callable[[], None],
        failing_since: float | None = None,
    ) -> None:
        self.failing_since = failing_since
        """Since when the service has failed, in epoch seconds, or None."""
        self.reason = ""
        """The reason of the last failed request while the service fails."""
        self._time = time
        self._log = log
        self._waiting = waiting
        self._disable = disable
        self._changed = changed

    def answered(self, answer: Answer, opened: bool, policy: Policy) -> bool:
        """Note an answer. `opened` says whether it opened the breaker. Return whether the service is back."""
        if answer.verdict is Verdict.GONE:
            self._disable(answer.reason)
            return False
        if answer.verdict is Verdict.AGAIN:
            self._failed(answer.reason, opened, policy)
            return False
        self.reason = ""
        if self.failing_since is None:
            return False
        self.failing_since = None
        self._log("info", "webhook.service_back", waiting=self._waiting())
        self._changed()
        return True

    def _failed(self, reason: str, opened: bool, policy: Policy) -> None:
        if self.failing_since is None:
            if not opened:
                return
            self.failing_since = self._time()
            self._log("warning", "webhook.service_failing", reason=reason)
            self._changed()
        self.reason = reason
        limit = policy.disable_after
        if limit > 0 and self._time() - self.failing_since >= limit:
            self._disable(f"the service has failed for {limit:g} s: {reason}")

    def forget(self) -> None:
        """Begin anew, as if the service worked: an operator resumed sending."""
        self.failing_since = None
        self.reason = ""
