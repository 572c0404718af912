"""The secret by which the nodes of a cluster recognize each other."""

from collections.abc import Callable

from hookmq.plugin import Runtime

from hookmq_cluster.engine import Engine, Entry, Stored, Unavailable
from hookmq_cluster.names import Names
from hookmq_cluster.waiting import answer, pause


async def shared_secret(runtime: Runtime, engine: Engine, names: Names) -> str:
    """Return the secret in the log. Create it if there is none."""
    subject = names.secret
    new = Entry(subject, runtime.token(32).encode(), (subject, 0))

    def look(done: Callable[[Stored | Unavailable | None], None]) -> None:
        engine.last(subject, done, exact=True)

    def create(done: Callable[[object], None]) -> None:
        engine.commit((new,), done)

    while True:
        found: object = await answer(runtime, look)
        if isinstance(found, Stored):
            return found.data.decode()
        if found is None:
            found = await answer(runtime, create)
        if isinstance(found, Unavailable):
            runtime.log("warning", "cluster.engine_silent", reason=found.reason)
            await pause(runtime, 1.0)
