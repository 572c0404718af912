from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Subscription:
    """One subscription of a session.

    `filter` is the filter as the client sent it, including ``$share/NAME/``. The client also sends it in UNSUBSCRIBE.
    Topics are matched against `topic_filter`. `share` is the share name; None for ordinary subscriptions.

    `user_property` contains the SUBSCRIBE's user properties, in order. Only `authorize`, `on_subscribe` and
    `on_subscribed` see them; neither the session nor the store keeps them.
    """

    filter: str
    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None
    share: str | None = None
    user_property: tuple[tuple[str, str], ...] = ()

    def replace(self, **changes: Any) -> "Subscription":
        """Return a copy with changed fields, for use in transform hooks. To redirect the subscription, change
        `topic_filter` or `share`; do not change `filter`."""
        return replace(self, **changes)
