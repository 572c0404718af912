"""The call that plugins use to subscribe clients. It uses the same pipeline as SUBSCRIBE."""

from collections.abc import Awaitable
from functools import partial

from hookmq.broker.connection import ClientConnection
from hookmq.broker.delivery.deliver import drain_queue
from hookmq.broker.handlers.subscribe import send_retained
from hookmq.broker.handlers.subscription_pipeline import SubscriptionPipeline, check
from hookmq.broker.plugin_api.base import HandleBase
from hookmq.hooks.verdicts import Deny
from hookmq.model.events import Action
from hookmq.model.runtime import Promise
from hookmq.model.subscription import Subscription
from hookmq.mqtt.packets import SubscribeRequest
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.session import Session

_WHAT = "subscribe"
_LARGEST_IDENTIFIER = 268_435_455


class Subscribing(HandleBase):
    """The methods of a plugin's handle that subscribe clients."""

    __slots__ = ()

    def subscribe(
        self,
        client_id: str,
        filter: str,
        qos: int = 0,
        *,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
        identifier: int | None = None,
        authorize: bool = False,
    ) -> Awaitable[ReasonCode]:
        """Subscribe a client, online or offline, in a later turn. The result is the granted QoS, or a reason code for
        the failure.
        """
        self._only_on_loop("subscribe()")
        self._check_types(
            _WHAT,
            ("client_id", client_id, str), ("filter", filter, str), ("QoS", qos, int), ("no_local", no_local, bool),
            ("retain_as_published", retain_as_published, bool), ("retain_handling", retain_handling, int),
            ("identifier", identifier, int | None), ("authorize", authorize, bool),
        )  # fmt: skip
        share, _ = self._parse_filter(filter, _WHAT)
        if qos not in (0, 1, 2):
            raise self._refusal(_WHAT, f"QoS {qos}: expected 0, 1 or 2")
        if retain_handling not in (0, 1, 2):
            raise self._refusal(_WHAT, f"retain_handling {retain_handling}: expected 0, 1 or 2")
        if identifier is not None and not 0 < identifier <= _LARGEST_IDENTIFIER:
            raise self._refusal(
                _WHAT, f"identifier {identifier}: expected 1 to {_LARGEST_IDENTIFIER}"
            )
        if share is not None and no_local:  # [MQTT-3.8.3-4]
            raise self._refusal(
                _WHAT, f"{filter!r} is a shared subscription and cannot be no_local"
            )
        request = SubscribeRequest(filter, qos, no_local, retain_as_published, retain_handling)
        return self._result_of(partial(self._subscribe, client_id, request, identifier, authorize))

    def _subscribe(
        self,
        client_id: str,
        request: SubscribeRequest,
        identifier: int | None,
        asks: bool,
        result: Promise,
    ) -> None:
        state = self._state
        session = state.sessions.get(client_id)
        if session is None:
            raise self._refusal(_WHAT, f"client {client_id!r} has no session")
        connection = session.connection
        offered, bridge = state.settings.broker, False
        if isinstance(connection, ClientConnection):
            offered, bridge = connection.offered, connection.bridge
        if identifier is not None and not offered.subscription_identifiers_available:
            self._refused(
                session, request, Deny(ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED), result
            )
            return
        wanted = check(state, session, offered, request, identifier, bridge)
        if isinstance(wanted, Deny):
            self._refused(session, request, wanted, result)
            return
        pipeline = SubscriptionPipeline(state, session, None, asks, self._plugin)

        def decided(made: Subscription | Deny, by: str, late: bool) -> None:
            if state.sessions.get(client_id) is not session:
                ended = f"the session of client {client_id!r} has ended"
                self._fail(result, self._refusal(_WHAT, ended))
            elif isinstance(made, Deny):
                state.denied(session.client, Action.SUBSCRIBE, request.filter, made.code, by)
                self._refused(session, request, made, result)
            else:
                self._made(session, made, pipeline.sends_retained, result)
            state.writes.schedule()

        def settled(made: Subscription | Deny, by: str, late: bool) -> None:
            state.guarded(partial(self._settling, result, partial(decided, made, by, late)))

        pipeline.run(wanted, settled)

    def _refused(
        self, session: Session, request: SubscribeRequest, why: Deny, result: Promise
    ) -> None:
        self._tell(
            "info",
            "broker.subscribe_refused",
            session.client,
            filter=request.filter,
            code=f"0x{why.code:02X}",
            reason=why.reason or "",
        )
        self._give(result, why.code)

    def _made(
        self, session: Session, made: Subscription, sends_retained: bool, result: Promise
    ) -> None:
        state = self._state
        self._tell(
            "debug" if self._owns(session) else "info",
            "broker.subscribed",
            session.client,
            filter=made.filter,
            qos=made.qos,
        )

        def committed() -> None:
            if sends_retained and session.subscriptions.get(made.filter) is made:
                send_retained(state, session, [made])
            if made.share is not None:
                drain_queue(state, session)  # messages may wait for a member with room
            state.writes.schedule()
            self._give(result, ReasonCode(made.qos))

        if session.durable:
            state.committer.after_commit(partial(self._settling, result, committed))
        else:
            committed()
