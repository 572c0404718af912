"""Calls that plugins use to change clients, sessions, queues and retained messages.

Each call is logged, and reported to `on_event`, with the plugin's id.
"""

from collections.abc import Awaitable
from functools import partial
from typing import Final

from hookmq.broker.delivery.purge import Purge
from hookmq.broker.plugin_api.base import HandleBase
from hookmq.broker.publish.retained import clear_matching
from hookmq.broker.sessions.lifecycle import terminate
from hookmq.broker.sessions.subscriptions import remove
from hookmq.broker.sessions.wills import cancel_will
from hookmq.hooks.recursion import DEPTH, at_depth
from hookmq.hooks.specs import OBSERVERS
from hookmq.model.reload_report import ConfigCheck, ReloadReport
from hookmq.model.runtime import Promise
from hookmq.mqtt.errors import HookMQError
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.session import Session

_REMEMBERED: Final = ("on_published", "on_delivered")
"""Observer hooks whose use is cached in each connection. They cannot be switched on or off at run time."""


class Actions(HandleBase):
    """The methods of a plugin's handle that change the broker's state."""

    __slots__ = ()

    def disconnect(
        self,
        client_id: str,
        code: ReasonCode = ReasonCode.ADMINISTRATIVE_ACTION,
        reason: str = "",
        drop_will: bool = False,
    ) -> bool:
        """End a client's connection. Return False if the client is not connected."""
        self._only_on_loop("disconnect()")
        self._check_types(
            "disconnect a client", ("client_id", client_id, str), ("code", code, ReasonCode),
            ("reason", reason, str), ("drop_will", drop_will, bool),
        )  # fmt: skip
        session = self._state.sessions.get(client_id)
        if session is None or session.connection is None:
            return False
        client = session.client
        if drop_will:
            cancel_will(session)
        session.connection.disconnect(code, reason)
        self._tell(
            "info",
            "broker.disconnected",
            client,
            code=f"0x{code:02X}",
            reason=reason,
            drop_will=drop_will,
        )
        return True

    def end_session(self, client_id: str, reason: str = "") -> bool:
        """End a session, online or offline, in a later turn. Return False if the client has no session."""
        self._only_on_loop("end_session()")
        self._check_types("end a session", ("client_id", client_id, str), ("reason", reason, str))
        session = self._state.sessions.get(client_id)
        if session is None:
            return False
        self._in_turn(partial(self._end_session, session, reason))
        return True

    def _end_session(self, session: Session, reason: str) -> None:
        state = self._state
        if state.sessions.get(session.client_id) is not session:
            return  # it has ended meanwhile
        client = session.client
        terminate(state, session, reason)
        self._tell("info", "broker.session_ended", client, reason=reason)

    def unsubscribe(self, client_id: str, filter: str) -> Awaitable[bool]:
        """Remove a subscription in a later turn. The result is False if the subscription does not exist."""
        self._only_on_loop("unsubscribe()")
        self._check_types("unsubscribe", ("client_id", client_id, str), ("filter", filter, str))
        return self._result_of(partial(self._unsubscribe, client_id, filter))

    def _unsubscribe(self, client_id: str, filter: str, result: Promise) -> None:
        session = self._state.sessions.get(client_id)
        if session is None or not remove(self._state, session, filter):
            self._give(result, False)
            return
        self._tell(
            "debug" if self._owns(session) else "info",
            "broker.unsubscribed",
            session.client,
            filter=filter,
        )
        self._after_commit(result, True)

    def purge_queue(self, client_id: str) -> Awaitable[int]:
        """Drop the messages waiting for a client, in slices. The result is the number of dropped messages."""
        self._only_on_loop("purge_queue()")
        self._check_types("purge a queue", ("client_id", client_id, str))
        return self._result_of(partial(self._purge_queue, client_id))

    def _purge_queue(self, client_id: str, result: Promise) -> None:
        session = self._state.sessions.get(client_id)
        if session is None:
            self._give(result, 0)
            return
        client, depth = session.client, DEPTH.get()

        def purged(count: int) -> None:
            at_depth(
                depth,
                lambda: self._tell("info", "broker.queue_purged", client, messages=count),
            )
            self._give(result, count)

        Purge(self._state, session, self._plugin, purged, partial(self._broke, result)).run()

    def clear_retained(self, filter: str) -> Awaitable[int]:
        """Clear the retained messages that match `filter`, in slices. The result is the number of cleared messages."""
        self._only_on_loop("clear_retained()")
        self._check_types("clear retained messages", ("filter", filter, str))
        share, _ = self._parse_filter(filter, "clear retained messages")
        if share is not None:
            raise self._refusal("clear retained messages", f"{filter!r} is a shared subscription")
        return self._result_of(partial(self._clear_retained, filter))

    def _clear_retained(self, filter: str, result: Promise) -> None:
        depth = DEPTH.get()

        def cleared(count: int) -> None:
            at_depth(
                depth,
                lambda: self._tell(
                    "info", "broker.retained_cleared", None, filter=filter, messages=count
                ),
            )
            self._give(result, count)

        clear_matching(self._state, filter, cleared, partial(self._broke, result))

    def reload(self) -> Awaitable[ReloadReport]:
        """Reread the configuration in a later turn and apply it. The result lists the changes."""
        self._only_on_loop("reload()")
        return self._result_of(self._reload)

    def _reload(self, result: Promise) -> None:
        reloader = self._state.reloader
        if reloader is None:
            raise self._refusal("reload", "this broker has no configuration to reread")
        depth = DEPTH.get()

        def done(report: ReloadReport | None, error: BaseException | None) -> None:
            at_depth(depth, self._reloaded, result, report, error)

        reloader(done)

    def _reloaded(
        self, result: Promise, report: ReloadReport | None, error: BaseException | None
    ) -> None:
        if report is not None:
            fields = report.fields()
            self._tell("info", "broker.reload_applied", None, **fields)
            self._give(result, report)
            return
        self._tell("warning", "broker.reload_refused", None, error=str(error))
        self._fail(result, self._refusal("reload", str(error)))

    def check_configuration(self, text: str) -> Awaitable[ConfigCheck]:
        """Check a configuration document in a thread."""
        self._only_on_loop("check_configuration()")
        self._check_types("check a configuration", ("text", text, str))
        return self._result_of(partial(self._check_configuration, text))

    def _check_configuration(self, text: str, result: Promise) -> None:
        check = self._state.check_config
        if check is None:
            raise self._refusal("check a configuration", "this broker has none")

        def done(found: ConfigCheck | None, error: BaseException | None) -> None:
            if error is None:
                self._give(result, found)
            else:
                # The text of any other error may contain the value of a secret.
                why = str(error) if isinstance(error, HookMQError) else type(error).__name__
                self._fail(result, self._refusal("check a configuration", why))

        self._state.runtime.run_blocking(partial(check, text), done)

    def observe(self, hook: str, wanted: bool) -> None:
        """Switch this plugin's implementation of an observer hook on or off."""
        self._only_on_loop("observe()")
        self._check_types("observe", ("hook", hook, str), ("wanted", wanted, bool))
        if hook not in OBSERVERS or hook in _REMEMBERED:
            raise self._refusal("observe", f"{hook!r} cannot be switched on and off")
        if hook not in self._instance.kept.hooks:
            raise self._refusal("observe", f"the plugin does not implement {hook}")
        self._state.switch_observer(self._plugin, hook, wanted)

    def invalidate_routes(self) -> None:
        """Ask every journal again which topics it wants."""
        self._on_loop(self._state.router.clear_cache)
