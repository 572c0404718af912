"""Calls that plugins use to read the broker's state: clients, sessions, subscriptions, listeners and counters.

The cost of a page does not depend on the number of sessions, because one call examines a bounded number of items.
"""

from collections.abc import Callable, Mapping
from heapq import nsmallest
from typing import Final, TypeVar

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.hooks.chain import overlaps
from hookmq.model.client import ClientInfo
from hookmq.model.cursors import MAX_LIMIT, Query, check_limit, cursor_number
from hookmq.model.errors import StaleCursor
from hookmq.model.metrics import Metrics
from hookmq.model.snapshots import (
    ListenerSnapshot,
    Page,
    PluginSnapshot,
    SessionSnapshot,
    SharedGroup,
    SubscriptionSnapshot,
    make_session_snapshot,
)
from hookmq.model.subscription import Subscription
from hookmq.routing.shared_subscription import SharedSubscription
from hookmq.session.serial_index import Numbered, SerialIndex
from hookmq.session.session import Session

T = TypeVar("T")
N = TypeVar("N", bound=Numbered)

EXAMINED: Final = MAX_LIMIT
"""Maximum number of items that one call examines, even if it returns fewer."""


def snapshot(session: Session) -> SessionSnapshot:
    """Return a snapshot of `session`."""
    client = session.client
    will = session.will
    return make_session_snapshot(
        session.client_id, client.username, client.identity, client.scope.name, client.peer,
        client.version, session.connection is not None, client.connected_at, session.ended_at,
        client.clean_start, client.keep_alive, session.expiry, session.durable,
        len(session.subscriptions), len(session.inflight), session.queued, session.queued_bytes,
        None if will is None else will.message.topic, session.window,
    )  # fmt: skip


def _group(group: SharedSubscription) -> SharedGroup:
    return SharedGroup(
        group.share, group.topic_filter, group.strategy, len(group.members), len(group.online),
        group.queued, group.queued_bytes,
    )  # fmt: skip


class Inspection(HandleBase):
    """The methods of a plugin's handle that read the broker's state."""

    __slots__ = ()

    @property
    def metrics(self) -> Metrics:
        """Return the broker's counters, which are read-only for plugins."""
        return self._state.metrics

    def client(self, client_id: str) -> ClientInfo | None:
        """Return a connected client, or None."""
        self._only_on_loop("client()")
        self._check_types("find a client", ("client_id", client_id, str))
        session = self._state.sessions.get(client_id)
        return session.client if session is not None and session.connection is not None else None

    def session(self, client_id: str) -> SessionSnapshot | None:
        """Return a session, or None."""
        self._only_on_loop("session()")
        self._check_types("read a session", ("client_id", client_id, str))
        session = self._state.sessions.get(client_id)
        return None if session is None else snapshot(session)

    def sessions(
        self,
        cursor: str = "",
        limit: int = 100,
        *,
        client_id: str = "",
        username: str = "",
        listener: str = "",
        connected: bool | None = None,
    ) -> Page[SessionSnapshot]:
        """Return a page of the sessions, oldest first."""
        self._only_on_loop("sessions()")
        check_limit(self._plugin, "sessions", limit)
        self._check_types(
            "list sessions", ("client_id", client_id, str), ("username", username, str),
            ("listener", listener, str), ("connected", False if connected is None else connected, bool),
        )  # fmt: skip

        def wanted(session: Session) -> bool:
            client = session.client
            return (
                (connected is None or connected == (session.connection is not None))
                and session.client_id.startswith(client_id)
                and (not username or (client.username or "").startswith(username))
                and (not listener or client.scope.name == listener)
            )

        query = (client_id, username, listener, connected)
        chosen = wanted if any(query) or connected is not None else None
        index = self._state.session_index
        return self._page("sessions", query, cursor, limit, index, snapshot, chosen)

    def shared_groups(self, cursor: str = "", limit: int = 100) -> Page[SharedGroup]:
        """Return a page of the shared subscriptions, oldest first."""
        self._only_on_loop("shared_groups()")
        check_limit(self._plugin, "shared_groups", limit)
        index = self._state.group_index
        return self._page("shared_groups", (), cursor, limit, index, _group, None)

    def _page(
        self,
        call: str,
        query: Query,
        cursor: str,
        limit: int,
        index: SerialIndex[N],
        show: Callable[[N], T],
        wanted: Callable[[N], bool] | None,
    ) -> Page[T]:
        """Return the page of `index` that begins at `cursor`. The cursor's position is the next serial number to
        examine.
        """
        cursors = self._state.cursors
        start = 0
        if cursor != "":
            position = cursors.read(self._plugin, call, query, cursor)
            start = cursor_number(self._plugin, call, position)
        count = limit if wanted is None else EXAMINED
        chunk = index.page(start, count + 1)
        more = len(chunk) > count
        items: list[T] = []
        for item in chunk[:count]:
            if wanted is not None and not wanted(item):
                continue
            if len(items) == limit:
                return Page(tuple(items), cursors.make(call, query, str(item.serial)))
            items.append(show(item))
        return Page(
            tuple(items), cursors.make(call, query, str(chunk[count].serial)) if more else ""
        )

    def subscriptions(
        self, cursor: str = "", limit: int = 100, *, client_id: str = "", filter: str = ""
    ) -> Page[SubscriptionSnapshot]:
        """Return a page of the subscriptions, grouped by session and sorted by filter within each session."""
        self._only_on_loop("subscriptions()")
        check_limit(self._plugin, "subscriptions", limit)
        self._check_types(
            "list subscriptions", ("client_id", client_id, str), ("filter", filter, str)
        )
        share, inner = self._parse_filter(filter, "list subscriptions") if filter else (None, "")
        state = self._state
        call, query = "subscriptions", (client_id, filter)
        start, after = 0, ""
        if cursor != "":
            number, _, after = state.cursors.read(self._plugin, call, query, cursor).partition(":")
            start = cursor_number(self._plugin, call, number)
        chunk: list[Session]
        more = False
        if client_id:
            one = state.sessions.get(client_id)
            if cursor != "" and (one is None or one.serial != start):
                raise StaleCursor(self._plugin, f"{call}(): the session of {client_id!r} has ended")
            chunk = [] if one is None else [one]
        else:
            chunk = state.session_index.page(start, EXAMINED + 1)
            more = len(chunk) > EXAMINED
        found: list[SubscriptionSnapshot] = []
        left = EXAMINED
        for session in chunk[:EXAMINED]:
            if session.serial != start:
                after = ""
            if left <= 0 or len(found) == limit:
                return Page(tuple(found), state.cursors.make(call, query, f"{session.serial}:"))
            left -= 1
            for name in _filters(session, after, left if filter else min(left, limit - len(found))):
                if left <= 0 or len(found) == limit:
                    position = f"{session.serial}:{after}"
                    return Page(tuple(found), state.cursors.make(call, query, position))
                left -= 1
                after = name
                subscription = session.subscriptions[name]
                if not filter or _meets(subscription, share, inner):
                    found.append(SubscriptionSnapshot(session.client_id, subscription))
        position = f"{chunk[EXAMINED].serial}:" if more else ""
        return Page(tuple(found), state.cursors.make(call, query, position) if more else "")

    def listeners(self) -> tuple[ListenerSnapshot, ...]:
        """Return the server's listeners in configuration order."""
        self._only_on_loop("listeners()")
        return self._state.listeners()

    def plugins(self) -> tuple[PluginSnapshot, ...]:
        """Return the plugins in configuration order."""
        self._only_on_loop("plugins()")
        return self._state.hooks.snapshots()

    def services(self, name: str) -> Mapping[str, object]:
        """Return the services with this name, by plugin id."""
        self._only_on_loop("services()")
        self._check_types("find services", ("name", name, str))
        return self._state.hooks.services(name)

    def configuration(self) -> str:
        """Return the configuration in force as YAML without secrets."""
        self._only_on_loop("configuration()")
        return self._state.configuration()

    def counters(self) -> Mapping[str, float]:
        """Return the core's metrics by name."""
        self._only_on_loop("counters()")
        return self._state.counters()


def _filters(session: Session, after: str, count: int) -> list[str]:
    """Return the next `count` filters of a session after `after`, plus one more if there is one. Filters are sorted
    alphabetically, so the next page can be found even if the filter `after` has been unsubscribed.
    """
    filters = session.subscriptions
    if not after and len(filters) <= count:
        return sorted(filters)
    return nsmallest(count + 1, (name for name in filters if name > after))


def _meets(subscription: Subscription, share: str | None, inner: str) -> bool:
    return (share is None or subscription.share == share) and overlaps(
        inner, subscription.topic_filter
    )
