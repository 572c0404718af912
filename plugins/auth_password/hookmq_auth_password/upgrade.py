"""Replace weak hashes when clients connect. Idle threads compute the new hashes, which are written at the next file
check.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hookmq.plugin import HookMQError, Runtime
from hookmq_toolkit.files import FileStamp
from hookmq_toolkit.passwords.hashes import Argon2, Format, Hash, make, read
from hookmq_toolkit.passwords.pool import Pool

from hookmq_auth_password.book import rehash

MAX_WAITING = 1000
"""Maximum number of new hashes that may wait to be written."""
Written = Callable[[dict[str, tuple[Hash, Hash]], "tuple[FileStamp, FileStamp] | None"], None]


class Upgrades:
    """Collects new hashes and writes them to the file.

    `written` receives the old and new hashes by user name, and the file's states before and after. `failed` receives
    the reason for a failure. After a failure, nothing more is written until `again` is called.
    """

    def __init__(
        self,
        runtime: Runtime,
        pool: Pool,
        path: Path,
        format: Format,
        argon2: Argon2,
        written: Written,
        failed: Callable[[str], None],
    ) -> None:
        self._runtime = runtime
        self._pool = pool
        self._path = path
        self._format = format
        self._argon2 = argon2
        self._written = written
        self._failed = failed
        self._making: set[str] = set()
        self._made: dict[str, tuple[Hash, str]] = {}
        self._off = False
        self._flushing = False
        self._after: list[Callable[[], None]] = []

    def again(self) -> None:
        """Allow writing again after a failure, because the file has changed."""
        self._off = False

    def want(self, name: str, old: Hash, password: bytes) -> None:
        """Compute a new hash for a user whose hash is weak. If no thread is idle, try again at the user's
        next login.
        """
        if self._off or not self._pool.idle or name in self._making or name in self._made:
            return
        if len(self._made) >= MAX_WAITING:
            return
        self._making.add(name)
        call = partial(make, password, self._format, self._argon2)
        self._pool.submit("", call, partial(self._ready, name, old))

    def _ready(self, name: str, old: Hash, made: Any, error: BaseException | None) -> None:
        self._making.discard(name)
        if error is None:
            self._made[name] = old, str(made)
        else:
            self._fail(error)

    def flush(self, then: Callable[[], None]) -> None:
        """Write the new hashes and call `then`. If a write is in progress, wait for it first."""
        if not self._made and not self._flushing:
            then()
            return
        self._after.append(then)
        if self._flushing:
            return
        self._flushing = True
        made, self._made = self._made, {}
        call = partial(rehash, self._path, self._format, made)
        self._runtime.run_blocking(call, partial(self._flushed, made))

    def _flushed(
        self,
        made: dict[str, tuple[Hash, str]],
        result: Any,
        error: BaseException | None,
    ) -> None:
        self._flushing = False
        if error is None:
            names, stamps = result
            new = {name: (made[name][0], read(made[name][1], self._format)) for name in names}
            self._written(new, stamps)
        else:
            self._fail(error)
        after, self._after = self._after, []
        for then in after:
            then()

    def _fail(self, error: BaseException) -> None:
        self._off = True
        known = isinstance(error, HookMQError | OSError)
        self._failed(str(error) if known else type(error).__name__)
