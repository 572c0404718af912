"""The testing kit: a whole in-memory broker, on a virtual clock, in one thread, without ports or sleeps.

    from hookmq_testing import Harness

    with Harness(plugins=[MyPlugin(MyPlugin.Config(), Context("mine"))]) as harness:
        one = harness.connect("one")
        two = harness.connect("two", version=4)
        two.subscribe("greetings/#", qos=1)
        one.publish("greetings/all", b"hello", qos=1)
        two.expect_message("greetings/all", b"hello", qos=1)
        harness.clock.advance(60)
        two.expect_nothing()

`AsyncioClient` is for tests of a broker that runs as a process.

pytest finds the fixtures `harness` and `broker_harness` without an import. Everything is imported on first use, so the
kit does not slow down test runs that do not use it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hookmq_testing.asyncio_client import AsyncioClient
    from hookmq_testing.asyncio_runtime import AsyncioRuntime
    from hookmq_testing.client import MemoryClient, will
    from hookmq_testing.cluster_recorder import ClusterRecorder
    from hookmq_testing.commands import Parser, run_command
    from hookmq_testing.contracts import JournalContract, PluginContract, StoreContract
    from hookmq_testing.harness import Harness
    from hookmq_testing.loop_thread import LoopThread
    from hookmq_testing.plugins import PluginInstance, load_plugins, make_plugin
    from hookmq_testing.recorder import HookCall, HookRecorder
    from hookmq_testing.runtime import EPOCH, VirtualRuntime
    from hookmq_testing.stores import DurableStore, RecordingJournal, SlowStore
    from hookmq_testing.wire import MemoryWire, Write

_HOMES = {
    "AsyncioClient": "asyncio_client", "AsyncioRuntime": "asyncio_runtime", "ClusterRecorder": "cluster_recorder",
    "DurableStore": "stores", "Harness": "harness", "HookCall": "recorder",
    "HookRecorder": "recorder", "JournalContract": "contracts", "LoopThread": "loop_thread", "MemoryClient": "client",
    "MemoryWire": "wire", "Parser": "commands",
    "PluginContract": "contracts", "PluginInstance": "plugins", "RecordingJournal": "stores",
    "SlowStore": "stores", "StoreContract": "contracts", "VirtualRuntime": "runtime",
    "EPOCH": "runtime", "Write": "wire",
    "load_plugins": "plugins", "make_plugin": "plugins", "run_command": "commands", "will": "client",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


__all__ = [
    "EPOCH", "AsyncioClient", "AsyncioRuntime", "ClusterRecorder", "DurableStore", "Harness", "HookCall", "HookRecorder",
    "JournalContract", "LoopThread",
    "MemoryClient", "MemoryWire", "Parser", "PluginContract", "PluginInstance", "RecordingJournal", "SlowStore",
    "StoreContract", "VirtualRuntime", "Write", "load_plugins", "make_plugin", "run_command", "will",
]  # fmt: skip
