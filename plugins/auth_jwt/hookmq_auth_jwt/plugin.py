"""The `auth_jwt` plugin, which authenticates and authorizes clients by JSON Web Tokens."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Final

from hookmq.plugin import (
    Accept,
    Action,
    Admission,
    Allow,
    Auth,
    BrokerHandle,
    Challenge,
    ClientInfo,
    Connect,
    Context,
    Deny,
    Message,
    MetricRegistry,
    Plugin,
    PluginError,
    Promise,
    ReasonCode,
    SessionSnapshot,
    Settings,
    hookimpl,
)
from hookmq_toolkit.claims import MISSING, find_claim
from hookmq_toolkit.files import FileWatch
from hookmq_toolkit.listing import visit_all
from hookmq_toolkit.tls_client import TlsConfig, check_tls

from hookmq_auth_jwt.config import JwtConfig
from hookmq_auth_jwt.grant import NO_RULES, Grant, Seat
from hookmq_auth_jwt.jwks import KeySet
from hookmq_auth_jwt.metrics import Counts, register
from hookmq_auth_jwt.refusal import BAD, NOT_ALLOWED, Refused, UnknownKey
from hookmq_auth_jwt.sources import FileSource, Source, UrlSource, log_fields, source_of
from hookmq_auth_jwt.token import looks_like_token
from hookmq_auth_jwt.verify import Verified, Verifier

START: Final = 28.0
"""Time limit for startup in seconds, including the last fetch. It is shorter than the broker's own time limit."""
_FOREVER: Final = 253402300799.0
_CODES: Final = {
    "maximum_connect_time": ReasonCode.MAXIMUM_CONNECT_TIME,
    "not_authorized": ReasonCode.NOT_AUTHORIZED,
}


def _end_pause(pause: Promise) -> None:
    if not pause.done():  # the start may have been cancelled
        pause.set_result(None)


class AuthJwtPlugin(Plugin):
    """A plugin that reads the identity, permissions and limits of MQTT clients from JSON Web Tokens.

    A token is verified once, when the client connects or reauthenticates. Its contents are stored
    with the client. Raises ConfigError if a file or key in the configuration cannot be used.
    """

    Config = JwtConfig
    config: JwtConfig

    def __init__(self, config: JwtConfig, context: Context) -> None:
        super().__init__(config, context)
        self.sources: list[Source] = [source_of(one, config, path) for path, one in config.located]
        if config.jwks.ca_file is not None:
            check_tls(TlsConfig(ca_file=config.jwks.ca_file), ("jwks", "ca_file"))
        self.verifier = Verifier(config, self.sources)
        self.counts = Counts()
        self._permissions_claim = f"hookmq:{self.id}"
        """The claim that stores the permissions. No other plugin can set it."""
        self._expiry_code = _CODES[config.on_expiry]
        self._broker: BrokerHandle | None = None
        self._watches: list[FileWatch[KeySet]] = []

    @property
    def admission(self) -> Admission:
        """Report that clients with a token are accepted."""
        if self.config.optional:
            return Admission("clients with a token", "left")
        return Admission("clients with a token", "refused", to_share="optional: true")

    # start and stop ----------------------------------------------------------------------------------------------

    @hookimpl
    async def on_startup(self, broker: BrokerHandle) -> None:
        """Fetch all keys once. With ``jwks.required``, retry until all keys are available, or raise PluginError."""
        self._broker = broker
        end = broker.now() + START - self.config.jwks.timeout
        remote = [one for one in self.sources if isinstance(one, UrlSource)]
        for source in remote:
            source.begin(broker.runtime, self._log, self._changed)
        for promise in [source.refresh() for source in remote]:
            if promise is not None:
                await promise
        if self.config.jwks.required:
            await self._wait_for_keys(broker, remote, end)
        if not any(one.fails for one in remote):
            # After a reload with different keys, clients may be connected with a key that was removed.
            known = self._fingerprints(broker)
            self._withdraw(broker, lambda key: key not in known)
        files = [one for one in self.sources if isinstance(one, FileSource)]
        self._watches = [self._watch(one) for one in files]

    def _watch(self, source: FileSource) -> FileWatch[KeySet]:
        assert self._broker is not None
        watch = FileWatch(
            source.path,
            self.config.watch,
            source.stamp,
            source.load,
            partial(self._took, source),
            partial(self._file_failed, source),
        )
        watch.start(self._broker.runtime)
        return watch

    async def _wait_for_keys(
        self, broker: BrokerHandle, remote: list[UrlSource], end: float
    ) -> None:
        while True:
            empty = [one for one in remote if not one.keys(broker.now())]
            if not empty:
                return
            left = end - broker.now()
            if left <= 0:
                self._end()
                why = "; ".join(f"{one.label}: {one.fails or 'it has no key'}" for one in empty)
                raise PluginError(self.id, f"there are no keys: {why}")
            pause = broker.runtime.promise()
            broker.runtime.call_later(min(1.0, left), partial(_end_pause, pause))
            await pause
            for promise in [one.refresh() for one in empty]:
                if promise is not None:
                    await promise

    @hookimpl
    def on_reload(self, old: Settings, new: Settings) -> None:
        """Reread all files and fetch all keys now."""
        for watch in self._watches:
            watch.look()
        for source in self.sources:
            if isinstance(source, UrlSource):
                source.refresh()

    @hookimpl
    def on_shutdown(self) -> None:
        """Stop fetching keys and watching files."""
        self._end()

    def _end(self) -> None:
        for watch in self._watches:
            watch.stop()
        for source in self.sources:
            if isinstance(source, UrlSource):
                source.end()
        self._broker = None

    def _log(self, level: str, event: str, /, **fields: object) -> None:
        broker = self._broker
        if broker is None:
            self.log(level, event, **fields)
        else:
            broker.log(level, event, **fields)

    # key changes -------------------------------------------------------------------------------------------------

    def _took(self, source: FileSource, found: KeySet) -> None:
        before, failed = (source.keys(0.0), source.left), source.fails
        source.fails = ""
        gone = source.take(found)
        if failed or log_fields(KeySet(*before)) != log_fields(found) or gone:
            level = "info" if source.keys(0.0) else "warning"
            self._log(level, "jwt.keys", source=source.label, **log_fields(found))
        self._changed(source, gone)

    def _file_failed(self, source: FileSource, why: str) -> None:
        source.fails = why
        kept = len(source.keys(0.0))
        self._log("error", "jwt.file_refused", source=source.label, error=why, keys_kept=kept)

    def _changed(self, source: Source, gone: frozenset[str]) -> None:
        broker = self._broker
        if broker is not None and gone:
            # Another source may still have the same key.
            gone -= self._fingerprints(broker)
            self._withdraw(broker, lambda key: key in gone)

    def _fingerprints(self, broker: BrokerHandle) -> set[str]:
        return {key.fingerprint for one in self.sources for key in one.keys(broker.now())}

    def _withdraw(self, broker: BrokerHandle, withdrawn: Callable[[str], bool]) -> None:
        """Disconnect clients whose tokens were verified with a key that has been removed, if `on_key_removed` requires
        it.
        """
        if self.config.on_key_removed == "keep":
            return
        ended = 0

        def check(session: SessionSnapshot) -> None:
            nonlocal ended
            client = broker.client(session.client_id)
            seat = None if client is None else client.state.get(self.id)
            grant = None if seat is None else seat.grant
            if grant is not None and grant.key and withdrawn(grant.key):
                ended += broker.disconnect(
                    session.client_id, NOT_ALLOWED, "the key of the token was removed"
                )

        def done() -> None:
            if ended:
                self._log("warning", "jwt.key_withdrawn", clients=ended)

        visit_all(broker.runtime, partial(broker.sessions, connected=True), check, done)

    # authentication ----------------------------------------------------------------------------------------------

    @hookimpl
    def on_connect(
        self, client: ClientInfo, connect: Connect, broker: BrokerHandle
    ) -> Accept | Deny | Awaitable[Accept | Deny] | None:
        """Verify the token in CONNECT, unless enhanced authentication has already done so."""
        token = self._token(client, connect)
        seat = client.state.get(self.id)
        if seat is not None and seat.grant is not None:
            return None  # on_auth accepted the client
        if token is None:
            if self.config.optional:
                client.state[self.id] = Seat()
                return None
            return self._refused(client, Refused("missing", "no token", BAD))
        return self._decide(client, token, None, broker)

    @hookimpl
    def on_auth(
        self, client: ClientInfo, auth: Auth, broker: BrokerHandle
    ) -> Challenge | Accept | Deny | Awaitable[Accept | Deny] | None:
        """Verify the token in an AUTH packet, or in a CONNECT with the configured method."""
        properties = auth.properties
        if not self.config.method or properties.authentication_method != self.config.method:
            return None
        seat = client.state.get(self.id)
        if seat is None:
            seat = client.state[self.id] = Seat()
        token = properties.authentication_data
        if not token:
            if seat.asked:
                return self._refused(client, Refused("missing", "no token", BAD))
            seat.asked = True
            return Challenge()
        seat.asked = False
        return self._decide(client, token, seat.grant, broker)

    def hides_username(self, username: str) -> bool:
        """Return whether `username` is a token. If so, it is neither logged nor stored."""
        config = self.config
        return config.token_in == "username" and (
            not config.optional or looks_like_token(username.encode())
        )

    def _token(self, client: ClientInfo, connect: Connect) -> bytes | None:
        config = self.config
        if config.token_in == "password":
            token = connect.password
        elif config.token_in == "username":
            token = None if connect.username is None else connect.username.encode()
        else:
            token = None
        if config.optional and token is not None and not looks_like_token(token):
            return None
        return token or None

    def _decide(
        self, client: ClientInfo, token: bytes, before: Grant | None, broker: BrokerHandle
    ) -> Accept | Deny | Awaitable[Accept | Deny]:
        """Return the verdict. If the key must be fetched first, return an awaitable for the verdict."""
        try:
            return self._accept(client, self._verified(client, token, broker), before)
        except UnknownKey as refused:
            remote = [one for one in self.sources if isinstance(one, UrlSource)]
            promises = [promise for one in remote if (promise := one.missed()) is not None]
            if promises:
                return self._again(promises, client, token, before, broker)
            return self._refused(client, refused)
        except Refused as refused:
            return self._refused(client, refused)

    async def _again(
        self,
        promises: list[Promise],
        client: ClientInfo,
        token: bytes,
        before: Grant | None,
        broker: BrokerHandle,
    ) -> Accept | Deny:
        for promise in promises:
            await promise
        try:
            return self._accept(client, self._verified(client, token, broker), before)
        except Refused as refused:
            return self._refused(client, refused)

    def _verified(self, client: ClientInfo, token: bytes, broker: BrokerHandle) -> Verified:
        began = perf_counter()
        try:
            return self.verifier.verify(
                token, client.client_id, client.username, broker.now(), broker.time()
            )
        finally:
            self.counts.took(perf_counter() - began)

    def _accept(self, client: ClientInfo, verified: Verified, before: Grant | None) -> Accept:
        identity = verified.identity
        if before is not None and before.identity != identity:
            # A renewal keeps the identity. A client must reconnect to change its identity.
            raise Refused("other_identity", "the new token has another identity", NOT_ALLOWED)
        client.state[self.id] = Seat(
            Grant(identity, verified.key.fingerprint, verified.rules, verified.claims)
        )
        if self.config.token_in == "username" and client.username is None:
            client.username = identity
        expires_at = verified.expires_at
        if expires_at is None and before is not None and client.expires_at is not None:
            expires_at = _FOREVER  # None would keep the expiry of the previous token
        self.counts.accepted += 1
        return Accept(
            identity,
            self._claims_to_keep(verified),
            expires_at,
            verified.limits,
            expiry_code=self._expiry_code,
        )

    def _claims_to_keep(self, verified: Verified) -> Mapping[str, Any]:
        """Return the token's claims, plus one claim of this plugin's own. After a restart, the client may have claims
        from another plugin instead. The extra claim stores the data that the permissions depend on.
        """
        claims, rules = verified.claims, verified.rules
        if rules is None:
            return claims
        names = (name[2:-1] for name in rules.variables if name.startswith("${"))
        values = {
            name: value for name in names if (value := find_claim(claims, name)) is not MISSING
        }
        kept = {"acl": find_claim(claims, self.config.acl), "values": values}
        return {**claims, self._permissions_claim: kept}

    def _refused(self, client: ClientInfo, refused: Refused) -> Deny:
        self.counts.refused[refused.kind] += 1
        self._log(
            "info", "jwt.refused", client_id=client.client_id, kind=refused.kind, why=refused.why
        )
        return refused.verdict

    # authorization -----------------------------------------------------------------------------------------------

    @hookimpl
    def authorize(
        self, client: ClientInfo, action: Action, topic: str, message: Message | None
    ) -> Allow | Deny | None:
        """Decide by the token's permissions; abstain if the token has none."""
        seat = client.state.get(self.id)
        if seat is None:
            seat = client.state[self.id] = Seat(self._kept(client))
        grant: Grant | None = seat.grant
        return None if grant is None else grant.decide(client, action, topic, message)

    def _kept(self, client: ClientInfo) -> Grant | None:
        """Return the permissions of a session that was restored from the store."""
        identity = client.identity or ""
        kept = client.claims.get(self._permissions_claim)
        acl = kept.get("acl", MISSING) if isinstance(kept, Mapping) else MISSING
        values = kept.get("values") if isinstance(kept, Mapping) else None
        if acl is MISSING or not isinstance(values, Mapping):
            return Grant(identity, "", NO_RULES, {}) if self.config.require_acl else None
        try:
            return Grant(identity, "", self.verifier.checker.rules_of(acl), values)
        except Refused:
            return Grant(identity, "", NO_RULES, {})

    # metrics and commands ----------------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics defined in `hookmq_auth_jwt.metrics`."""
        register(registry, self.counts, self.sources, self._now)

    def _now(self) -> float:
        return 0.0 if self._broker is None else self._broker.now()
