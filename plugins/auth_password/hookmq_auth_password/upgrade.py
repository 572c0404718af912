"""Stronger hashes for those that log in: made when there is time, written together at the next look at the file."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hookmq.errors import HookMQError
from hookmq.files import FileStamp
from hookmq.runtime import Runtime

from hookmq_auth_password.book import rehash
from hookmq_auth_password.hashes import Argon2, Format, Hash, make, read
from hookmq_auth_password.pool import Pool

MAX_WAITING = 1000
"""New hashes that wait to be written."""
Written = Callable[[dict[str, tuple[Hash, Hash]], "tuple[FileStamp, FileStamp] | None"], None]


class Upgrades:
    """Collects new hashes and writes them. `written` is told old and new by user name, and the states of the file before
    and after; `failed` why they could not be: then nothing more is tried until `again`."""

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
        """Try once more: the file has changed."""
        self._off = False

    def want(self, name: str, old: Hash, password: bytes) -> None:
        """That user's hash is weak, and this is the password. Left for the next login where there is no time."""
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
        """Write what was made, then go on; also when it is being written already."""
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
