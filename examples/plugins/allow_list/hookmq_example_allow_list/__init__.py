"""Who may connect and what they may do, listed in the configuration itself: a plugin that decides."""

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from hookmq.plugin import (
    Accept,
    Allow,
    ClientInfo,
    ConfigError,
    Connect,
    Deny,
    Plugin,
    ReasonCode,
    Subscription,
    hookimpl,
    setting,
)


@dataclass(frozen=True)
class User:
    """One user: the password and the topic filters that bound what may be published and subscribed to."""

    password: str = setting(
        "", "what the client must send; give it as {$env: NAME} or {$file: PATH}"
    )
    publish: tuple[str, ...] = setting((), "topic filters that published topics must match")
    subscribe: tuple[str, ...] = setting((), "topic filters that subscriptions must lie within")

    def __post_init__(self) -> None:
        if not self.password:
            raise ConfigError("password: a user without one could be anybody")


@dataclass(frozen=True)
class AllowListConfig:
    """The users by name."""

    users: Mapping[str, User] = field(metadata={"help": "users by name; nobody else may connect"})


class AllowListPlugin(Plugin):
    """Refuses whoever is not listed, and whatever is not granted."""

    Config = AllowListConfig
    config: AllowListConfig

    @hookimpl
    def on_connect(self, connect: Connect) -> Accept | Deny:
        """Compare name and password."""
        name = connect.username or ""
        user = self.config.users.get(name)
        # An unknown name takes as long as a wrong password, so that names cannot be found by trying.
        expected = user.password if user is not None else "\0"
        same = hmac.compare_digest(expected.encode(), connect.password or b"")
        if user is None or not same:
            return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)
        return Accept(identity=name)

    @hookimpl
    def authorize(
        self, client: ClientInfo, topic: str, subscription: Subscription | None
    ) -> Allow | Deny:
        """Compare the topic with the user's filters. The answer stays the same, so it may be remembered."""
        user = self.config.users.get(client.identity or "")
        if user is None:
            return Deny()
        if subscription is not None:
            # A shared subscription is judged by what it matches, whatever the share's name.
            inner = subscription.topic_filter
            return self._decide(self.contains(outer, inner) for outer in user.subscribe)
        return self._decide(self.matches(filter, topic) for filter in user.publish)

    @staticmethod
    def _decide(granted: Iterable[bool]) -> Allow | Deny:
        return Allow() if any(granted) else Deny()
