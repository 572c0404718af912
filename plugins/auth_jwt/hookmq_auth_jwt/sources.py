"""Key sources: secrets in the configuration, files that may change, and URLs.

Every source keeps its last good keys. Keys from a file remain in use until the file is valid again. Keys from a URL
expire after ``jwks.max_age``; the source then has no keys, and all its tokens are refused.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from hookmq.plugin import Cancel, ConfigError, Promise, Runtime, Timer
from hookmq_toolkit.files import FileStamp, open_regular, shown_path

from hookmq_auth_jwt.config import JwtConfig, KeyConfig
from hookmq_auth_jwt.fetch import FetchFailed, fetch
from hookmq_auth_jwt.jwks import KeySet, Left, read_set
from hookmq_auth_jwt.keys import Key, UnusableKey, pem_keys, secret_key

MAX_FILE: Final = 1 << 20
RETRY: Final = 1.0
"""Half of the delay before the first retry of a failed fetch, in seconds. The delay doubles with each failure, up to 60
seconds or `refresh`, whichever is less.
"""

Changed = Callable[["Source", frozenset[str]], None]
"""Called when a source's keys change, with the source and the fingerprints of the removed keys."""
Log = Callable[..., None]
"""Writes a log event: level, event, fields."""


class Source(Protocol):
    """A key source."""

    label: str
    fails: str
    """Why the last attempt to read the keys failed; '' if it succeeded."""
    left: tuple[Left, ...]
    """Keys that were ignored."""

    def keys(self, now: float) -> tuple[Key, ...]:
        """Return the keys that are valid at `now`, a time on the runtime's clock."""


class FixedSource:
    """A secret in the configuration. Raises ConfigError if it cannot be used."""

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
                str(error), hint="`hookmq jwt secret -o FILE` makes a strong secret"
            ) from None
        self._keys = (key,)

    def keys(self, now: float) -> tuple[Key, ...]:
        """Return the source's only key."""
        return self._keys


class FileSource:
    """A PEM file or a JWK Set file. The constructor reads the file, and raises ConfigError if it contains no usable
    key.
    """

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
            why = self.left[0].why if self.left else "it is empty"
            raise ConfigError(f"{shown_path(self.path)}: no usable key: {why}")

    def keys(self, now: float) -> tuple[Key, ...]:
        """Return the last good keys."""
        return self._keys

    def load(self) -> tuple[FileStamp, KeySet]:
        """Read the file for a `FileWatch`, in the same way as `read`. This call blocks. Raises ConfigError."""
        try:
            return self.read()
        except UnusableKey as error:
            raise ConfigError(str(error)) from error.__cause__

    def read(self) -> tuple[FileStamp, KeySet]:
        """Return the file's state and its keys. This call blocks. Raises UnusableKey."""
        try:
            with open_regular(self.path) as file:
                stamp = FileStamp.of(os.fstat(file.fileno()))
                data = file.read(MAX_FILE + 1)
        except OSError as error:
            raise UnusableKey(f"cannot be read: {error.strerror}") from error
        if len(data) > MAX_FILE:
            raise UnusableKey(f"larger than {MAX_FILE} bytes")
        config = self._config
        if config.jwks_file is not None:
            return stamp, read_set(
                data, self._allowed, True, config.issuer, self.label, self._max_keys
            )
        found = pem_keys(data, self._allowed, config.kid or None, config.issuer, self.label)
        return stamp, KeySet(tuple(found), ())

    def take(self, found: KeySet) -> frozenset[str]:
        """Switch to the keys in `found`. Return the fingerprints of the keys that were removed."""
        gone = _gone(self._keys, found.keys)
        self._keys, self.left = found
        return gone


def _gone(old: Sequence[Key], new: Sequence[Key]) -> frozenset[str]:
    return frozenset(key.fingerprint for key in old) - {key.fingerprint for key in new}


class UrlSource:
    """A JWK Set at a URL. After `begin`, it is fetched repeatedly, one fetch at a time."""

    def __init__(self, config: KeyConfig, settings: JwtConfig) -> None:
        self.label = config.label
        self.fails = "not fetched yet"
        self.left: tuple[Left, ...] = ()
        self.fetches = 0
        self.failures = 0
        self.suppressed = 0
        """Number of fetches for an unknown key that were skipped because the last fetch was too recent."""
        self.fetched_at: float | None = None
        self.fetch: Callable[..., Any] = fetch
        self._config = config
        self._settings = settings.jwks
        self._allowed = settings.allowed(config)
        self._keys: tuple[Key, ...] = ()
        self._fingerprints: frozenset[str] = frozenset()
        self._runtime: Runtime | None = None
        self._log: Log = _nothing
        self._changed: Changed = _nothing
        self._waiting: list[Promise] = []
        self._cancel: Cancel | None = None
        self._timer: Timer | None = None
        self._tried_at = float("-inf")
        self._delay = RETRY
        self._lapsed = False

    def keys(self, now: float) -> tuple[Key, ...]:
        """Return the last good keys, or none once they have expired."""
        if self.fetched_at is None or now - self.fetched_at > self._settings.max_age:
            return ()
        return self._keys

    def parse(self, data: bytes) -> KeySet:
        """Return the keys in a response. Raises UnusableKey."""
        # Anyone can fetch the set, so a secret in it would let anyone sign tokens.
        return read_set(
            data, self._allowed, False, self._config.issuer, self.label, self._settings.max_keys
        )

    async def load(self) -> KeySet:
        """Fetch the keys and return them, but do not use them yet. Raises FetchFailed and UnusableKey."""
        return self.parse(await self.fetch(self._config.jwks_url, self._settings))

    def begin(self, runtime: Runtime, log: Log, changed: Changed) -> None:
        """Prepare to fetch, using `runtime`. Call `refresh` to start the first fetch."""
        self._runtime, self._log, self._changed = runtime, log, changed

    def end(self) -> None:
        """Stop fetching. Complete all promises that `refresh` returned."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._cancel is not None:
            self._cancel()
            self._cancel = None
        self._runtime = None
        self._wake()

    def refresh(self) -> Promise | None:
        """Fetch the keys, or join a fetch already in progress. Return a promise that completes when the fetch ends,
        successfully or not.

        Return None before `begin`, or if too many callers are already waiting.
        """
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
        """Call `refresh` because a token names an unknown key. Do so at most once per ``miss_interval``."""
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
        # Vary the pause, so that brokers that start together do not keep fetching at the same time.
        self._timer = runtime.call_later(pause * (0.9 + 0.2 * runtime.random()), self._due)
        self._wake()

    def _due(self) -> None:
        self._timer = None
        promise = self.refresh()
        if promise is not None:
            self._waiting.remove(promise)  # no client waits for this fetch

    def put(self, found: KeySet, now: float) -> None:
        """Switch to the keys in `found`, which were fetched at `now`."""
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
            self._log(level, "jwt.keys", source=self.label, **log_fields(found))
        if changed and not first:
            self._changed(self, before - self._fingerprints)

    def _failed(self, runtime: Runtime, error: BaseException) -> None:
        self.failures += 1
        known = isinstance(error, FetchFailed | UnusableKey)
        why = str(error) if known else f"failed: {type(error).__name__}"
        lapsed = self.fetched_at is not None and not self.keys(runtime.now())
        if why != self.fails or lapsed != self._lapsed:
            # Log when failures begin, when the reason changes, and when the keys expire.
            level = "warning" if self.keys(runtime.now()) else "error"
            kept = len(self.keys(runtime.now()))
            self._log(level, "jwt.fetch_failed", source=self.label, error=why, keys_kept=kept)
        self.fails, self._lapsed = why, lapsed
        self._delay = min(self._delay * 2, 60.0, max(self._settings.refresh, RETRY))

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for promise in waiting:
            if not promise.done():
                promise.set_result(None)


def log_fields(found: KeySet) -> dict[str, object]:
    """Return log fields that describe a key set."""
    return {
        "keys": [key.kid or "-" for key in found.keys],
        "left_out": [f"{one.kid or '-'}: {one.why}" for one in found.left],
    }


def _nothing(*args: object, **fields: object) -> None:
    """Do nothing. This is the placeholder until `UrlSource.begin` is called."""


def source_of(
    config: KeyConfig, settings: JwtConfig, path: tuple[str | int, ...] = ()
) -> FixedSource | FileSource | UrlSource:
    """Return the source that `config` describes, and read its file. Raises ConfigError, which names the setting.

    `path` is the path of the source's settings.
    """
    allowed = settings.allowed(config)
    path = (*path, config.kind)
    if not allowed:
        raise ConfigError(f"{config.label}: algorithms allows none of its algorithms", path=path)
    if config.jwks_url:
        return UrlSource(config, settings)
    try:
        if config.secret:
            return FixedSource(config, allowed)
        return FileSource(config, allowed, settings.jwks.max_keys)
    except ConfigError as error:
        raise ConfigError(error.message, hint=error.hint, path=path) from None
