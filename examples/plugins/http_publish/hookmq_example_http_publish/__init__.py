"""Publish the bodies of HTTP requests: a plugin that opens a client for each user.

    POST /plugins/ID/publish?topic=a/b&qos=1&retain=1

The headers `MQTT-Username` and `MQTT-Password` identify the user. The user's client stays connected for further
requests.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import blake2b

from aiohttp import web
from hookmq.plugin import (
    BrokerHandle,
    ClientHandle,
    ClientRequest,
    ConnectRefused,
    HttpRouter,
    Peer,
    Plugin,
    PluginError,
    ReasonCode,
    hookimpl,
    setting,
)

STATUS = {
    ReasonCode.NOT_AUTHORIZED: 403,
    ReasonCode.BANNED: 403,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 401,
    ReasonCode.TOPIC_NAME_INVALID: 400,
    ReasonCode.PAYLOAD_FORMAT_INVALID: 400,
    ReasonCode.QUOTA_EXCEEDED: 429,
    ReasonCode.SERVER_BUSY: 503,
    ReasonCode.SERVER_UNAVAILABLE: 503,
}
"""The HTTP status for each reason code. All other codes result in 502."""


@dataclass(frozen=True)
class HttpPublishConfig:
    """The gateway's limits."""

    max_clients: int = setting(
        100,
        "users whose clients stay connected; the one unused for longest is disconnected",
        minimum=1,
    )


class SharedClient:
    """A client that all requests of one user share. It is disconnected once it is retired and no longer in use."""

    def __init__(self, connecting: asyncio.Future[ClientHandle]) -> None:
        self.connecting = connecting
        self.requests = 0
        self.retired = False

    @property
    def usable(self) -> bool:
        """Whether the client is connected or connecting. A client that was refused or has ended must be replaced."""
        made = self.connecting
        if not made.done():
            return True
        return not made.cancelled() and made.exception() is None and made.result().connected

    def retire(self) -> None:
        """Disconnect the client as soon as no request is using it."""
        self.retired = True
        if not self.requests and self.connecting.done() and self.usable:
            self.connecting.result().disconnect()

    async def publish(self, topic: str, payload: bytes, qos: int, retain: bool) -> ReasonCode:
        """Publish a message once the client is connected."""
        self.requests += 1
        try:
            client = await asyncio.shield(self.connecting)
            return await client.publish(topic, payload, qos, retain)
        finally:
            self.requests -= 1
            if self.retired:
                self.retire()


class HttpPublishPlugin(Plugin):
    """A plugin that publishes each request through its user's client, so that the user's permissions and limits apply."""

    Config = HttpPublishConfig
    config: HttpPublishConfig

    _broker: BrokerHandle | None = None

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Store the handle for later requests."""
        self._broker = broker
        self._clients: OrderedDict[bytes, SharedClient] = OrderedDict()

    @hookimpl
    def register_http(self, router: HttpRouter) -> None:
        """Register the route."""
        router.add("POST", "/publish", self._post)

    async def _post(self, request: web.BaseRequest) -> web.StreamResponse:
        """Publish the body, and respond once the message is committed."""
        if self._broker is None:
            return _problem(503, "the plugin has not started")
        query = request.query
        topic, qos = query.get("topic", ""), query.get("qos", "1")
        if qos not in ("0", "1", "2"):
            return _problem(400, f"qos is {qos!r}, not 0, 1 or 2")
        payload = await request.read()
        try:
            client = self._client(self._broker, request)
            code = await client.publish(topic, payload, int(qos), query.get("retain") == "1")
        except ConnectRefused as refused:
            return _problem(
                STATUS.get(refused.code, 502), refused.reason or refused.code.text, refused.code
            )
        except PluginError as error:
            return _problem(400, error.message)
        if code.failed:
            return _problem(STATUS.get(code, 502), code.text, code)
        return web.json_response(
            {"code": code, "matched": code is not ReasonCode.NO_MATCHING_SUBSCRIBERS}
        )

    def _client(self, broker: BrokerHandle, request: web.BaseRequest) -> SharedClient:
        """Return the client for the user and password in the request. Simultaneous requests from the same user share
        one client.
        """
        user = request.headers.get("MQTT-Username")
        secret = request.headers.get("MQTT-Password")
        password = None if secret is None else secret.encode()
        # A digest, so that the process keeps no passwords.
        key = blake2b(repr((user, password)).encode(), digest_size=16).digest()
        known = self._clients.get(key)
        if known is not None and known.usable:
            self._clients.move_to_end(key)
            return known
        peer = Peer(request.remote or "", 0, "http")
        wanted = ClientRequest(username=user, password=password, peer=peer)
        made = self._clients[key] = SharedClient(asyncio.ensure_future(broker.connect(wanted)))
        while len(self._clients) > self.config.max_clients:
            _, unused = self._clients.popitem(last=False)
            unused.retire()
        return made


def _problem(status: int, text: str, code: ReasonCode | None = None) -> web.Response:
    found: dict[str, object] = {"error": text}
    if code is not None:
        found["code"] = code
    return web.json_response(found, status=status)
