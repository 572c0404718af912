"""List users and their permissions in the configuration: a plugin that decides."""

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
    """A user's password, and the topic filters to which the user may publish and subscribe."""

    password: str = setting(
        "", "what the client must send; give it as {$env: NAME} or {$file: PATH}"
    )
    publish: tuple[str, ...] = setting((), "topic filters that published topics must match")
    subscribe: tuple[str, ...] = setting((), "topic filters that subscriptions must lie within")

    def __post_init__(self) -> None:
        if not self.password:
            raise ConfigError("password: expected a value; without one, anyone could be this user")


@dataclass(frozen=True)
class AllowListConfig:
    """All users, by name."""

    users: Mapping[str, User] = field(
        metadata={"help": "users by name; no other client may connect"}
    )


class AllowListPlugin(Plugin):
    """A plugin that denies unlisted clients, and any action that its user has not been granted."""

    Config = AllowListConfig
    config: AllowListConfig

    @hookimpl
    def on_connect(self, connect: Connect) -> Accept | Deny:
        """Accept the client if its user name is listed and its password matches."""
        name = connect.username or ""
        user = self.config.users.get(name)
        # An unknown name takes as long as a wrong password, so response times do not reveal names.
        expected = user.password if user is not None else "\0"
        same = hmac.compare_digest(expected.encode(), connect.password or b"")
        if user is None or not same:
            return Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)
        return Accept(identity=name)

    @hookimpl
    def authorize(
        self, client: ClientInfo, topic: str, subscription: Subscription | None
    ) -> Allow | Deny:
        """Allow the actions that the user's filters cover. The verdict never changes, so it may be cached."""
        user = self.config.users.get(client.identity or "")
        if user is None:
            return Deny()
        if subscription is not None:
            # For a shared subscription, check the filter inside it, without the share name.
            inner = subscription.topic_filter
            return self._decide(self.contains(outer, inner) for outer in user.subscribe)
        return self._decide(self.matches(filter, topic) for filter in user.publish)

    @staticmethod
    def _decide(granted: Iterable[bool]) -> Allow | Deny:
        return Allow() if any(granted) else Deny()
