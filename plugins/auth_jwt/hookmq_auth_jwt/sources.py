"""Where keys are: fixed in the configuration, in files that may change, and behind URLs.

Every source keeps the last good keys it had. A file keeps them until it is good again; what was fetched ends after
``jwks.max_age``, and then there are no keys, and nobody is let in.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from hookmq.files import FileStamp, open_regular, shown_path
from hookmq.plugin import ConfigError
from hookmq.runtime import Cancel, Promise, Runtime, Timer

from hookmq_auth_jwt.config import JwtConfig, KeyConfig
from hookmq_auth_jwt.fetch import FetchFailed, fetch
from hookmq_auth_jwt.jwks import KeySet, Left, read_set
from hookmq_auth_jwt.keys import Key, UnusableKey, pem_keys, secret_key

MAX_FILE: Final = 1 << 20
RETRY: Final = 1.0
"""Seconds after which a failed fetch is tried again; twice as long after each, up to `refresh`."""

Changed = Callable[["Source", frozenset[str]], None]
"""Told when a source has other keys: the source, and the fingerprints of those that are gone."""
Tell = Callable[..., None]


class Source(Protocol):
    """A place of keys."""

    label: str
    fails: str
    """Why the last attempt to read it failed; '' when it did not."""
    left: tuple[Left, ...]
    """Keys that were left out."""

    def keys(self, now: float) -> tuple[Key, ...]:
        """The keys that hold, at a time of the runtime's clock."""


class FixedSource:
    """A secret of the configuration. Raises ConfigError when it cannot be used."""

    def __init__(self, config: KeyConfig, allowed: frozenset[str]) -> None:
        self.label = config.label
        self.fails = ""
        self.left: tuple[Left, ...] = ()
        assert config.secret is not None
        try:
            key = secret_key(
                config.secret,
                config.secret_encoding,
                allowed,
                config.kid or None,
                config.issuer,
                self.label,
            )
        except UnusableKey as error:
            raise ConfigError(
                str(error), hint="`hookmq jwt secret -o FILE` makes a good one"
            ) from None
        self._keys = (key,)

    def keys(self, now: float) -> tuple[Key, ...]:
        """The one key."""
        return self._keys


class FileSource:
    """A PEM file or a JWK Set in a file. Raises ConfigError when it cannot be used at first."""

    def __init__(self, config: KeyConfig, allowed: frozenset[str], max_keys: int) -> None:
        self.label = config.label
        self.fails = ""
        self._config = config
        self._allowed = allowed
        self._max_keys = max_keys
        path = config.pem or config.jwks_file
        assert path is not None
        self.path: Path = path
        try:
            self.stamp, found = self.read()
        except UnusableKey as error:
            raise ConfigError(f"{shown_path(self.path)}: {error}") from None
        self._keys, self.left = found
        if not self._keys:
            why = self.left[0].why if self.left else "there is none"
            raise ConfigError(f"{shown_path(self.path)}: no key that can be used: {why}")

    def keys(self, now: float) -> tuple[Key, ...]:
        """The last good keys."""
        return self._keys

    def load(self) -> tuple[FileStamp, KeySet]:
        """As `read`, for a `FileWatch`. Blocks. Raises ConfigError."""
        try:
            return self.read()
        except UnusableKey as error:
            raise ConfigError(str(error)) from error.__cause__

    def read(self) -> tuple[FileStamp, KeySet]:
        """Return the file's state and its keys. Blocks. Raises UnusableKey."""
        try:
            with open_regular(self.path) as file:
                stamp = FileStamp.of(os.fstat(file.fileno()))
                data = file.read(MAX_FILE + 1)
        except OSError as error:
            raise UnusableKey(f"it cannot be read: {error.strerror}") from error
        if len(data) > MAX_FILE:
            raise UnusableKey(f"it is larger than {MAX_FILE} bytes")
        config = self._config
        if config.jwks_file is not None:
            return stamp, read_set(
                data, self._allowed, True, config.issuer, self.label, self._max_keys
            )
        found = pem_keys(data, self._allowed, config.kid or None, config.issuer, self.label)
        return stamp, KeySet(tuple(found), ())

    def take(self, found: KeySet) -> frozenset[str]:
        """Go on with what was read; the fingerprints of keys that are gone."""
        gone = _gone(self._keys, found.keys)
        self._keys, self.left = found
        return gone


def _gone(old: Sequence[Key], new: Sequence[Key]) -> frozenset[str]:
    return frozenset(key.fingerprint for key in old) - {key.fingerprint for key in new}


class UrlSource:
    """A JWK Set behind a URL. One fetch at a time, whoever wants it; `begin` makes it fetch by itself."""

    def __init__(self, config: KeyConfig, settings: JwtConfig) -> None:
        self.label = config.label
        self.fails = "not fetched yet"
        self.left: tuple[Left, ...] = ()
        self.fetches = 0
        self.failures = 0
        self.suppressed = 0
        """Fetches that tokens with an unknown key did not cause, because there had just been one."""
        self.fetched_at: float | None = None
        self.fetch: Callable[..., Any] = fetch
        self._config = config
        self._settings = settings.jwks
        self._allowed = settings.allowed(config)
        self._keys: tuple[Key, ...] = ()
        self._fingerprints: frozenset[str] = frozenset()
        self._runtime: Runtime | None = None
        self._tell: Tell = _nothing
        self._changed: Changed = _nothing
        self._waiting: list[Promise] = []
        self._cancel: Cancel | None = None
        self._timer: Timer | None = None
        self._tried_at = float("-inf")
        self._delay = RETRY
        self._lapsed = False

    def keys(self, now: float) -> tuple[Key, ...]:
        """The last good keys, for as long as they are good."""
        if self.fetched_at is None or now - self.fetched_at > self._settings.max_age:
            return ()
        return self._keys

    def parse(self, data: bytes) -> KeySet:
        """The keys in an answer. Raises UnusableKey."""
        # Who may fetch the secret may sign: it would be no secret.
        return read_set(
            data, self._allowed, False, self._config.issuer, self.label, self._settings.max_keys
        )

    async def load(self) -> KeySet:
        """Fetch and parse, changing nothing. Raises FetchFailed and UnusableKey."""
        return self.parse(await self.fetch(self._config.jwks_url, self._settings))

    def begin(self, runtime: Runtime, tell: Tell, changed: Changed) -> None:
        """Work with `runtime` from now on; the first fetch is for `refresh`."""
        self._runtime, self._tell, self._changed = runtime, tell, changed

    def end(self) -> None:
        """Stop fetching. Who waits is let go."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._runtime = None
        self._wake()

    def refresh(self) -> Promise | None:
        """Fetch, or join the fetch under way: what tells that it has ended, well or not. None when nothing can be waited
        for: it has not begun, or too many wait."""
        runtime = self._runtime
        if runtime is None or len(self._waiting) >= self._settings.max_waiting:
            return None
        promise = runtime.promise()
        self._waiting.append(promise)
        if self._cancel is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._tried_at = runtime.now()
            self._cancel = runtime.spawn(self.load(), self._loaded)
        return promise

    def missed(self) -> Promise | None:
        """A token names a key that is not here: as `refresh`, but not more often than ``miss_interval``."""
        runtime = self._runtime
        if runtime is None:
            return None
        recent = runtime.now() - self._tried_at < self._settings.miss_interval
        if self._cancel is None and recent:
            self.suppressed += 1
            return None
        return self.refresh()

    def _loaded(self, found: KeySet | None, error: BaseException | None) -> None:
        runtime = self._runtime
        self._cancel = None
        if runtime is None:
            return
        self.fetches += 1
        if error is not None:
            self._failed(runtime, error)
        else:
            assert found is not None
            self._delay = RETRY
            self._took(runtime, found)
        pause = self._settings.refresh if error is None else self._delay
        # Brokers that started together do not fetch together for ever.
        self._timer = runtime.call_later(pause * (0.9 + 0.2 * runtime.random()), self._due)
        self._wake()

    def _due(self) -> None:
        self._timer = None
        promise = self.refresh()
        if promise is not None:
            self._waiting.remove(promise)  # nobody awaits it

    def put(self, found: KeySet, now: float) -> None:
        """Go on with what was fetched at `now`."""
        self._keys, self.left = found
        self._fingerprints = frozenset(key.fingerprint for key in found.keys)
        self.fetched_at = now
        self.fails, self._lapsed = "", False

    def _took(self, runtime: Runtime, found: KeySet) -> None:
        first, before, failed = self.fetched_at is None, self._fingerprints, bool(self.fails)
        self.put(found, runtime.now())
        changed = self._fingerprints != before
        if changed or first or failed:
            level = "info" if found.keys else "warning"
            self._tell(level, "jwt.keys", source=self.label, **told(found))
        if changed and not first:
            self._changed(self, before - self._fingerprints)

    def _failed(self, runtime: Runtime, error: BaseException) -> None:
        self.failures += 1
        known = isinstance(error, FetchFailed | UnusableKey)
        why = str(error) if known else f"failed: {type(error).__name__}"
        lapsed = self.fetched_at is not None and not self.keys(runtime.now())
        if why != self.fails or lapsed != self._lapsed:
            # Told when it begins, changes and gets serious, not at every attempt.
            level = "warning" if self.keys(runtime.now()) else "error"
            kept = len(self.keys(runtime.now()))
            self._tell(level, "jwt.fetch_failed", source=self.label, error=why, keys_kept=kept)
        self.fails, self._lapsed = why, lapsed
        self._delay = min(self._delay * 2, 60.0, max(self._settings.refresh, RETRY))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            if not promise.done():
                promise.set_result(None)


def told(found: KeySet) -> dict[str, object]:
    """A key set for the log."""
    return {
        "keys": [key.kid or "-" for key in found.keys],
        "left_out": [f"{one.kid or '-'}: {one.why}" for one in found.left],
    }


def _nothing(*args: object, **fields: object) -> None:
    """Told before it began: nobody listens."""


def source_of(
    config: KeyConfig, settings: JwtConfig, path: tuple[str | int, ...] = ()
) -> FixedSource | FileSource | UrlSource:
    """Return the source that an entry names; `path` leads to the entry. Reads its file. Raises ConfigError, which names
    the key."""
    allowed = settings.allowed(config)
    path = (*path, config.kind)
    if not allowed:
        raise ConfigError(f"{config.label}: none of its algorithms is allowed", path=path)
    if config.jwks_url:
        return UrlSource(config, settings)
    try:
        if config.secret:
            return FixedSource(config, allowed)
        return FileSource(config, allowed, settings.jwks.max_keys)
    except ConfigError as error:
        raise ConfigError(error.message, hint=error.hint, path=path) from None
