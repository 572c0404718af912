"""Fill simulated clusters without brokers, and read what they contain."""

from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

from hookmq_cluster.log_contents import LogContents, read_contents
from hookmq_cluster.migration import export_contents, import_store
from hookmq_cluster.names import Names
from hookmq_cluster.store_items import ItemCounts
from hookmq_testing import DurableStore
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import QUIET, Faults, SimulatedEngine, SimulatedLog

T = TypeVar("T")
NAMES = Names("test")
WHAT = "hookmq cluster import"


def run(runtime: VirtualRuntime, work: Coroutine[Any, Any, T], seconds: float = 600.0) -> T:
    """Run a coroutine to its end, and return its result or raise its error."""
    ended: list[tuple[Any, BaseException | None]] = []
    runtime.spawn(work, lambda result, error: ended.append((result, error)))
    end = runtime.now() + seconds
    while not ended and runtime.now() < end:
        runtime.advance(0.01)
    assert ended, "the command does not end"
    result, error = ended[0]
    if error is not None:
        raise error
    return result  # type: ignore[no-any-return]


class Filled:
    """A cluster without brokers, on `log` or on a new one."""

    def __init__(
        self, runtime: VirtualRuntime, log: SimulatedLog | None = None, faults: Faults = QUIET
    ) -> None:
        self.runtime = runtime
        self.log = log or SimulatedLog(runtime, Random(1), faults)
        self.engine = SimulatedEngine(self.log, runtime, Random(2))

    def fill(self, store: DurableStore, *lanes: str, **options: Any) -> ItemCounts:
        """Import a store."""
        return run(self.runtime, self.filling(store, *lanes, **options))

    def filling(
        self, store: DurableStore, *lanes: str, **options: Any
    ) -> Coroutine[Any, Any, ItemCounts]:
        """Return an import that has not begun."""
        return import_store(
            self.engine, NAMES, self.runtime, store, lanes or ("a", "b"), WHAT, **options
        )

    def contents(self) -> LogContents:
        """Return what the cluster contains."""
        return run(self.runtime, read_contents(self.engine, NAMES, self.runtime))

    def export(self, state_lane: str = "") -> tuple[DurableStore, ItemCounts]:
        """Export everything to a new store."""
        store = DurableStore()
        work = export_contents(self.contents(), self.runtime, store, state_lane)
        return store, run(self.runtime, work)
