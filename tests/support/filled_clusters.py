"""Fill simulated clusters without brokers, and read their contents."""

from collections.abc import Coroutine
from random import Random
from typing import Any, TypeVar

from hookmq.mqtt_api import Pubrec, Pubrel
from hookmq_cluster.log_contents import LogContents, read_contents
from hookmq_cluster.migration import export_contents, import_store, try_import
from hookmq_cluster.names import Names
from hookmq_cluster.store_items import ItemCounts
from hookmq_testing import DurableStore, Harness, will
from hookmq_testing.runtime import VirtualRuntime
from simulated_engine import QUIET, Faults, SimulatedEngine, SimulatedLog

T = TypeVar("T")
NAMES = Names("test")
WHAT = "hookmq cluster import"
EXPIRY = 3600


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


def stored(clock: Any = None) -> DurableStore:
    """Return the store of a broker that has died, with sessions, queues and retained messages of every kind."""
    store = DurableStore()
    broker = Harness(store=store, clock=clock)
    flying = broker.connect("flying", session_expiry_interval=EXPIRY, auto_ack=False)
    flying.subscribe("t/#", 2)
    for number in range(3):
        offline = broker.connect(f"offline{number}", session_expiry_interval=EXPIRY)
        offline.subscribe([("t/#", 2), ("$share/g/work", 1)], 1)
        offline.disconnect()
    broker.connect(
        "dead", session_expiry_interval=EXPIRY, will=will("t/will", b"gone", 1, delay=100)
    ).drop()
    publisher = broker.connect("publisher", session_expiry_interval=EXPIRY)
    publisher.publish("kept/1", b"one", 1, retain=True)
    for number in range(20):
        publisher.publish(f"t/{number % 2}", b"%d" % number, 1 + number % 2)
    for number in range(5):
        publisher.publish("work", b"w%d" % number, 1)
    publisher.auto_ack = False
    publisher.publish("t/9", b"half", 2, packet_id=77)
    publisher.expect(Pubrec)
    flying.ack(flying.expect_message("t/0", b"0", 1))
    flying.ack(flying.expect_message("t/1", b"1", 2))  # PUBREC, so that PUBREL is on its way
    flying.expect(Pubrel)
    return store


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

    def try_fill(self, store: DurableStore) -> ItemCounts:
        """Return what an import would return."""
        return run(self.runtime, try_import(self.engine, NAMES, self.runtime, store))

    def contents(self) -> LogContents:
        """Return the contents of the cluster."""
        return run(self.runtime, read_contents(self.engine, NAMES, self.runtime))

    def export(self, state_lane: str = "") -> tuple[DurableStore, ItemCounts]:
        """Export everything to a new store."""
        store = DurableStore()
        work = export_contents(self.contents(), self.runtime, store, state_lane)
        return store, run(self.runtime, work)
