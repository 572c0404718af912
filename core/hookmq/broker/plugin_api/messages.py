"""Calls that plugins use to read queued, in-flight and retained messages. Reading changes nothing."""

from bisect import bisect_right
from collections.abc import Awaitable
from functools import partial
from typing import Final

from hookmq.broker.plugin_api.base import HandleBase
from hookmq.model.cursors import MAX_LIMIT, check_limit, cursor_number
from hookmq.model.errors import PluginError, StaleCursor
from hookmq.model.message import Message
from hookmq.model.runtime import Promise
from hookmq.model.snapshots import InflightMessage, Page, QueuedMessage
from hookmq.mqtt.topics import has_wildcard
from hookmq.routing.retained_search import RetainedSearches
from hookmq.session.inflight import VOLATILE_RELEASED, Delivery
from hookmq.session.session import Session
from hookmq.storage.protocols import StoreFailed
from hookmq.storage.records import Queued

EXAMINED: Final = MAX_LIMIT
"""Maximum number of packet ids that one call to `inflight` examines."""
PAGE_BYTES: Final = 4 << 20
"""Maximum number of bytes to read from the store for one page, unless the first message is larger."""
PAUSES: Final = 32
"""Number of times that one call to `retained` continues a paused search. A search pauses after `retained_index.PACE`
nodes.
"""


def _place(delivery: Delivery) -> int:
    """Return the position of a waiting delivery in its session's queue. Positions only increase, and are never reused."""
    return delivery.seq or delivery.position


def _queued(delivery: Delivery) -> QueuedMessage:
    return QueuedMessage(
        delivery.outgoing.message, delivery.qos, delivery.retain, delivery.identifiers,
        delivery.subscription.filter, delivery.weight,
    )  # fmt: skip


def _inflight(number: int, delivery: Delivery) -> InflightMessage:
    message = delivery.outgoing.message
    if not message.topic:  # one of the deliveries that all clean sessions share
        return InflightMessage(number, delivery.qos, delivery is VOLATILE_RELEASED)
    return InflightMessage(
        number, delivery.qos, delivery.released, message, delivery.retain, delivery.identifiers,
        delivery.subscription.filter,
    )  # fmt: skip


class Messages(HandleBase):
    """The methods of a plugin's handle that read messages."""

    __slots__ = ()

    def queue(
        self, client_id: str, cursor: str = "", limit: int = 100
    ) -> Awaitable[Page[QueuedMessage]]:
        """Return an awaitable for a page of a session's queue. The page begins with the next message to send."""
        self._only_on_loop("queue()")
        check_limit(self._plugin, "queue", limit)
        session, after = self._resume("queue", client_id, cursor)
        state = self._state
        result = self._promise()
        if session is None or not session.stored:
            self._give_queue(result, session, after, limit)
        elif state.failed is not None:
            self._fail(result, self._failed(state.failed))
        else:
            # The store returns only what is committed.
            page = partial(self._give_queue, result, session, after, limit)
            give = partial(self._settling, result, page)
            state.committer.after_commit(give, may_split=False)
            state.writes.schedule()
        return result

    def _give_queue(self, result: Promise, session: Session | None, after: int, limit: int) -> None:
        """Set `result` to the page after position `after`: first the messages in memory, then those in the store."""
        state = self._state
        if result.done():
            return  # the caller has stopped waiting
        if session is None or state.sessions.get(session.client_id) is not session:
            result.set_result(Page(()))
            return
        found: list[tuple[int, QueuedMessage]] = []
        waiting = session.queue
        begin = bisect_right(waiting, after, key=_place) if waiting else 0
        if waiting:
            end = min(begin + limit, len(waiting))
            part = [waiting[at] for at in range(begin, end)]
            found = [(_place(delivery), _queued(delivery)) for delivery in part]
        more = waiting is not None and begin + limit < len(waiting)
        if more or not session.stored:
            self._give_page(result, session, found, more)
            return
        if len(found) == limit:
            self._give_page(result, session, found, True)
            return
        last = session.last_seq

        def show(page: list[Queued] | StoreFailed) -> None:
            if isinstance(page, StoreFailed):
                self._fail(result, self._failed(page.reason))
                state.committer.fail(page.reason)
                return
            for entry, message in page:
                if not entry.packet_id:  # otherwise it was sent while the page was read
                    shown = QueuedMessage(
                        message,
                        entry.qos,
                        entry.retain,
                        entry.identifiers,
                        entry.filter,
                        entry.size,
                    )
                    found.append((entry.seq, shown))
            more = bool(page) and page[-1][0].seq < last
            self._give_page(result, session, found, more, page[-1][0].seq if page else 0)

        def read(page: list[Queued] | StoreFailed) -> None:
            self._settling(result, partial(show, page))

        state.store.read(
            session.owner, max(after, session.loaded_seq), limit - len(found), PAGE_BYTES, read
        )

    def _give_page(
        self,
        result: Promise,
        session: Session,
        found: list[tuple[int, QueuedMessage]],
        more: bool,
        examined: int = 0,
    ) -> None:
        """Set `result` to a page of `found`, a list of (position, message). `examined` is the last position read, if
        `found` does not contain it.
        """
        if result.done():
            return
        cursor = ""
        if more:
            last = max(examined, found[-1][0] if found else 0)
            query, position = (session.client_id,), f"{session.serial}:{last}"
            cursor = self._state.cursors.make("queue", query, position)
        result.set_result(Page(tuple(message for _, message in found), cursor))

    def inflight(self, client_id: str, cursor: str = "", limit: int = 100) -> Page[InflightMessage]:
        """Return a page of the messages in flight to a session, sorted by packet id."""
        self._only_on_loop("inflight()")
        check_limit(self._plugin, "inflight", limit)
        session, after = self._resume("inflight", client_id, cursor)
        if session is None:
            return Page(())
        inflight = session.inflight
        if len(inflight) <= EXAMINED:
            numbers = sorted(number for number in inflight if number > after)
            end = 65535
        else:
            end = min(after + EXAMINED, 65535)
            numbers = [number for number in range(after + 1, end + 1) if number in inflight]
        if len(numbers) > limit:
            end = numbers[limit - 1]
        items = tuple(_inflight(number, inflight[number]) for number in numbers[:limit])
        if end == 65535:
            return Page(items)
        position = f"{session.serial}:{end}"
        return Page(items, self._state.cursors.make("inflight", (client_id,), position))

    def _resume(self, call: str, client_id: str, cursor: str) -> tuple[Session | None, int]:
        """Return the session, or None, and the position after which the page begins. The cursor contains the session's
        serial number and this position.
        """
        self._check_types("list messages", ("client_id", client_id, str))
        state = self._state
        session = state.sessions.get(client_id)
        if cursor == "":
            return session, 0
        position = state.cursors.read(self._plugin, call, (client_id,), cursor)
        serial, _, after = position.partition(":")
        number = cursor_number(self._plugin, call, serial)
        if session is None or session.serial != number:
            raise StaleCursor(self._plugin, f"{call}(): the session of {client_id!r} has ended")
        return session, cursor_number(self._plugin, call, after)

    def retained(self, filter: str = "#", cursor: str = "", limit: int = 100) -> Page[Message]:
        """Return a page of the retained messages that match `filter`, in no particular order."""
        self._only_on_loop("retained()")
        check_limit(self._plugin, "retained", limit)
        state = self._state
        self._check_types("list retained messages", ("filter", filter, str))
        if self._parse_filter(filter, "list retained messages")[0] is not None:
            raise self._refusal("list retained messages", f"{filter!r} is a shared subscription")
        searches = state.searches.get(self._plugin)
        if searches is None:
            searches = state.searches[self._plugin] = RetainedSearches()
        if cursor == "":
            search = searches.begin(state.retained.scan(filter))
        else:
            position = state.cursors.read(self._plugin, "retained", (self._plugin, filter), cursor)
            number, _, page = position.partition(":")
            found = searches.take(
                cursor_number(self._plugin, "retained", number),
                cursor_number(self._plugin, "retained", page),
            )
            if found is None:
                raise StaleCursor(
                    self._plugin,
                    "retained(): the cursor is stale: it was used, or its search was ended by newer ones; begin again",
                )
            search = found
        now = state.runtime.time()
        items: list[Message] = []
        pauses = 0
        for step in search.steps:
            if step is None:
                pauses += 1
            else:
                message = step[1].message
                if message.expires_at is None or message.expires_at > now:
                    items.append(message)
            if len(items) == limit or pauses == PAUSES:
                break
        else:
            return Page(tuple(items))
        if not has_wildcard(filter):
            return Page(tuple(items))
        searches.keep(search)
        position = f"{search.number}:{search.page}"
        return Page(tuple(items), state.cursors.make("retained", (self._plugin, filter), position))

    def _failed(self, reason: str) -> PluginError:
        return PluginError(self._plugin, f"queue(): the store failed: {reason}")
