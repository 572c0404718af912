"""Decide whether the service works, and when to stop sending to it."""

from collections.abc import Callable

from hookmq_webhook.parcels import Answer, Policy, Verdict


class Health:
    """Tracks whether the service works.

    The service begins to *fail* when the breaker opens. It recovers when it accepts or refuses an event. `changed` is
    called in both cases. `disable` is called with the reason when no more requests should be sent. `time` returns the
    epoch time.
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
        """When the service began to fail, in epoch seconds, or None if it works."""
        self.reason = ""
        """Why the last request failed, while the service is failing; otherwise empty."""
        self._time = time
        self._log = log
        self._waiting = waiting
        self._disable = disable
        self._changed = changed

    def answered(self, answer: Answer, opened: bool, policy: Policy) -> bool:
        """Record the result of an attempt. `opened` is true if the result opened the breaker.

        Return whether the service has just recovered.
        """
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
        """Forget past failures. Call this when an operator resumes sending."""
        self.failing_since = None
        self.reason = ""
