"""The plugin that ``use: auth_password`` creates."""

from collections.abc import Awaitable
from functools import partial
from typing import Any, Final

from hookmq.plugin import (
    Accept,
    Admission,
    BrokerHandle,
    ClientInfo,
    Connect,
    Context,
    Deny,
    MetricRegistry,
    Plugin,
    ReasonCode,
    SessionSnapshot,
    hookimpl,
)
from hookmq_toolkit.files import FileStamp, FileWatch
from hookmq_toolkit.listing import visit_all
from hookmq_toolkit.passwords.cache import Cache
from hookmq_toolkit.passwords.checker import Checker
from hookmq_toolkit.passwords.hashes import Hash, outdated, verify
from hookmq_toolkit.passwords.pool import Busy, Pool, neighbours

from hookmq_auth_password.book import load, uncollected
from hookmq_auth_password.config import AuthPasswordConfig
from hookmq_auth_password.files import too_open
from hookmq_auth_password.metrics import Counts
from hookmq_auth_password.upgrade import Upgrades
from hookmq_auth_password.users import Admitted, Change, User, Users, admitted, compare

_WRONG: Final = Deny(ReasonCode.BAD_USER_NAME_OR_PASSWORD)
_NOBODY: Final = Deny(ReasonCode.NOT_AUTHORIZED)
_BUSY: Final = Deny(ReasonCode.SERVER_BUSY)
_ANYBODY: Final = Accept()
_LATER: Final = (5.0, 20.0, 60.0)
"""Seconds after a change until connections are checked again. A client accepted before the change may still have been
waiting for another plugin or its session."""

Answer = Accept | Deny | None


class AuthPasswordPlugin(Plugin):
    """A plugin that checks user names and passwords against a YAML file or mosquitto's password_file."""

    Config = AuthPasswordConfig
    config: AuthPasswordConfig

    def __init__(self, config: AuthPasswordConfig, context: Context) -> None:
        """Read the user file. Raises ConfigError."""
        super().__init__(config, context)
        self.counts = Counts()
        self.cache = Cache(config.cache_time, config.cache_size)
        self.good = True
        self._mode = -1
        loaded = load(config.path, config.format)
        self.users = Users(loaded.users, config.argon2)
        self._stamp = loaded.stamp
        self._warn(loaded.mode)
        self._broker: BrokerHandle | None = None
        self._pool: Pool | None = None
        self._checker: Checker | None = None
        self._watch: FileWatch[Change] | None = None
        self._upgrades: Upgrades | None = None

    @property
    def hashing(self) -> int:
        """The number of passwords being hashed."""
        return self._pool.running if self._pool is not None else 0

    @property
    def waiting(self) -> int:
        """The number of passwords waiting to be hashed."""
        return self._pool.waiting if self._pool is not None else 0

    @property
    def hashed(self) -> tuple[int, float]:
        """The number of passwords hashed so far, and how long that took in total, in seconds."""
        return (self._pool.finished, self._pool.seconds) if self._pool is not None else (0, 0.0)

    @property
    def admission(self) -> Admission:
        """Describe the clients that this plugin accepts, for ``hookmq check``."""
        config = self.config
        left = (config.unknown == "ignore", config.anonymous == "ignore")
        lacking = [
            setting
            for setting, given in zip(("unknown: ignore", "anonymous: ignore"), left, strict=True)
            if not given
        ]
        return Admission(
            f"users of {config.path}"
            + (" and clients without a user name" if config.anonymous == "allow" else ""),
            "left" if all(left) else "some" if any(left) else "refused",
            config.anonymous == "allow",
            " and ".join(lacking),
        )

    # lifecycle -------------------------------------------------------------------------------------------------------

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Start watching the user file."""
        config, runtime = self.config, broker.runtime
        self._broker = broker
        self._pool = Pool(runtime, config.threads, config.queue)
        self._checker = Checker(runtime, self._pool)
        if config.upgrade:
            self._upgrades = Upgrades(
                runtime, self._pool, config.path, config.format, config.argon2, self._upgraded, self._not_upgraded
            )  # fmt: skip
        self._watch = FileWatch(
            config.path, config.reload_interval, self._stamp, self._load, self._took, self._failed, self._tick
        )  # fmt: skip
        self._watch.start(runtime)
        # After a reload, clients accepted by the previous object may no longer be in the file.
        self._sweep_later()

    @hookimpl
    async def on_reload(self) -> None:
        """Reload the user file now and empty the cache."""
        self.cache.clear()
        watch, broker = self._watch, self._broker
        if watch is not None and broker is not None:
            done = broker.runtime.promise()
            watch.look(lambda: None if done.done() else done.set_result(None))
            await done

    @hookimpl
    async def on_shutdown(self) -> None:
        """Write any new hashes that have not been written yet."""
        if self._watch is not None:
            self._watch.stop()
        upgrades, broker = self._upgrades, self._broker
        if upgrades is not None and broker is not None:
            done = broker.runtime.promise()
            upgrades.flush(lambda: None if done.done() else done.set_result(None))
            await done
        self.cache.clear()
        self._broker = None

    # decisions -------------------------------------------------------------------------------------------------------

    @hookimpl
    def on_connect(self, client: ClientInfo, connect: Connect) -> Answer | Awaitable[Answer]:
        """Accept or refuse a client. Returns the verdict at once if no hash needs to be computed."""
        if connect.properties.authentication_method is not None:
            return None  # the plugin that handles the method authenticates it
        name, password = client.username, connect.password
        if name is None:
            return self._anonymous(password)
        user = self.users.get(name)
        if user is None and self.config.unknown == "ignore":
            return self._told("ignored", None)
        if client.scope.identity and self.config.certificate == "enough":
            if user is None or not user.enabled:
                return self._told("unknown_user" if user is None else "disabled", _WRONG)
            return self._in(client, user, "accepted")
        if not password:
            # An empty password is never right.
            if (
                password is None
                and user is not None
                and user.hash is None
                and user.enabled
                and self.config.passwordless == "allow"
            ):
                return self._in(client, user, "accepted")
            return self._told("no_password", _WRONG)
        if len(password) > self.config.password_limit:
            return self._told("too_long", _WRONG)
        if user is not None and user.hash is not None and user.enabled:
            key = self.cache.key(name, user.hash, password)
            if self.cache.has(key, self._now()):
                return self._in(client, user, "cached")
        return self._verify(client, name, password)

    def _anonymous(self, password: bytes | None) -> Answer:
        rule = self.config.anonymous
        if rule == "ignore":
            return self._told("ignored", None)
        if rule == "allow" and password is None:
            return self._told("accepted", _ANYBODY)
        return self._told("no_user_name", _NOBODY)

    async def _verify(self, client: ClientInfo, name: str, password: bytes) -> Answer:
        """Verify a password. This takes just as long for unknown and disabled users."""
        for _ in range(2):
            user = self.users.get(name)
            hash = user.hash if user is not None else None
            used = hash if hash is not None else self.users.decoy(self.cache.secret, name)
            key = self.cache.key(name, used, password)
            assert self._checker is not None
            try:
                right = await self._checker.ask(
                    key, neighbours(client.peer.host), partial(verify, used, password)
                )
            except Busy:
                return self._told("busy", _BUSY)
            user = self.users.get(name)
            if (user.hash if user is not None else None) != hash:
                continue  # the file has changed meanwhile: verify against the new hash
            if user is None or not user.enabled:
                return self._told("unknown_user" if user is None else "disabled", _WRONG)
            if hash is None or not right:
                return self._told("wrong_password", _WRONG)
            self.cache.add(key, name, self._now())
            if self._upgrades is not None and outdated(
                hash, self.config.format, self.config.argon2
            ):
                self._upgrades.want(name, hash, password)
            return self._in(client, user, "accepted")
        return self._told("changed", _WRONG)

    def _in(self, client: ClientInfo, user: User, result: str) -> Accept:
        client.state[self.id] = admitted(user)
        self.counts.results[result] += 1
        return user.accept()

    def _told(self, result: str, answer: Answer) -> Answer:
        self.counts.results[result] += 1
        return answer

    def _now(self) -> float:
        return self._broker.now() if self._broker is not None else 0.0

    # changes of the file ---------------------------------------------------------------------------------------------

    def _load(self) -> tuple[FileStamp, Change]:
        """Load the file and compare it with the current users. This runs in a thread."""
        with uncollected():
            loaded = load(self.config.path, self.config.format)
            users = Users(loaded.users, self.config.argon2)
            return loaded.stamp, compare(self.users, users, loaded.mode)

    def _took(self, change: Change) -> None:
        self.users, gone, changed, new, mode = change
        self.good = True
        self.counts.reloads["ok"] += 1
        self._warn(mode)
        self.cache.forget(gone | changed)
        if self._upgrades is not None:
            self._upgrades.again()
        self.log(
            "info",
            "auth_password.reloaded",
            users=len(self.users),
            new=new,
            changed=len(changed),
            removed=len(gone),
        )
        if gone or changed:
            self._sweep()
            self._sweep_later()

    def _failed(self, why: str) -> None:
        self.good = False
        self.counts.reloads["failed"] += 1
        self.log("warning", "auth_password.reload_failed", error=why, users=len(self.users))

    def _warn(self, mode: int) -> None:
        problem = too_open(mode)
        if problem and mode != self._mode:
            self.log(
                "warning",
                "auth_password.permissions",
                file=str(self.config.path),
                problem=problem,
            )
        self._mode = mode

    def _tick(self, then: Any) -> None:
        if self._upgrades is not None:
            self._upgrades.flush(then)
        else:
            then()

    def _sweep_later(self) -> None:
        if self._broker is not None and self.config.disconnect != "never":
            for delay in _LATER:
                self._broker.runtime.call_later(delay, self._sweep)

    def _sweep(self) -> None:
        """Disconnect clients whose users were removed or changed."""
        broker = self._broker
        if broker is None or self.config.disconnect == "never":
            return
        online = partial(broker.sessions, connected=True)
        visit_all(broker.runtime, online, partial(self._check, broker))

    def _check(self, broker: BrokerHandle, session: SessionSnapshot) -> None:
        client = broker.client(session.client_id)
        was = None if client is None else client.state.get(self.id)
        if isinstance(was, Admitted) and self._stale(was):
            self.counts.disconnected += 1
            # The will would be authorized with the permissions of a user that the client no longer is.
            broker.disconnect(session.client_id, ReasonCode.NOT_AUTHORIZED, drop_will=True)

    def _stale(self, was: Admitted) -> bool:
        user = self.users.get(was.name)
        if user is None or not user.enabled:
            return True
        if self.config.disconnect == "removed":
            return False
        if (user.groups, user.claims) != (was.groups, was.claims):
            return True
        return self.config.disconnect == "changed" and user.mark != was.mark

    def _upgraded(
        self, new: dict[str, tuple[Hash, Hash]], stamps: tuple[FileStamp, FileStamp] | None
    ) -> None:
        for name, (old, hash) in new.items():
            if self.users.rehash(name, old, hash):
                self.counts.upgrades["ok"] += 1
        self.cache.forget(set(new))
        watch = self._watch
        # If another writer has changed the file too, it must be loaded again.
        if watch is not None and stamps is not None and stamps[0] == watch.stamp:
            watch.stamp = stamps[1]
        self.log("info", "auth_password.upgraded", users=len(new))

    def _not_upgraded(self, why: str) -> None:
        self.counts.upgrades["failed"] += 1
        self.log("warning", "auth_password.upgrade_failed", error=why)

    # registration ----------------------------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metrics defined in `hookmq_auth_password.metrics`."""
        from hookmq_auth_password.metrics import register

        register(registry, self)
