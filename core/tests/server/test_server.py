"""Test a server's startup, drain, reload and signals."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hookmq.model.errors import BindError, ConfigError, StoreError
from hookmq.model.reload_report import ReloadReport
from hookmq.model.settings import BrokerSettings, Settings
from hookmq.model.snapshots import ListenerSnapshot
from hookmq.server.asyncio_runtime import AsyncioRuntime
from hookmq.server.server import Server
from hookmq.server.settings import ListenerSettings, TlsSettings


class NodeRuntime(AsyncioRuntime):
    """A runtime that logs to a list."""

    __slots__ = ("log",)

    def __init__(self, log: Any) -> None:
        super().__init__()
        self.log = log  # type: ignore[method-assign]


def listener(name: str = "default", **options: Any) -> ListenerSettings:
    defaults: dict[str, Any] = {"bind": "127.0.0.1:0", "close_timeout": 2.0}
    return ListenerSettings(name=name, **defaults | options)


@pytest.fixture
async def runtime(log: Any) -> AsyncIterator[AsyncioRuntime]:
    runtime = NodeRuntime(log)
    yield runtime
    await runtime.close()


async def closed(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(60):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def test_start_serve_and_drain(broker: Any, dial: Any, runtime: Any, log: Any) -> None:
    broker.settings = Settings(broker=BrokerSettings(server_reference="other:1883"))
    node = Server(broker, (listener("one"), listener("web", type="ws")), runtime)
    await node.start()
    addresses = node.addresses()
    assert set(addresses) == {"one", "web"}
    assert not any(address.endswith(":0") for address in addresses.values())
    reader, writer = await dial(addresses["one"])
    connection = await broker.next()
    assert node.state()["connections"] == {"one": 1, "web": 0}
    assert broker.listeners() == (
        ListenerSnapshot("one", "tcp", addresses["one"], 1, 100000),
        ListenerSnapshot("web", "ws", addresses["web"], 0, 100000),
    )
    stopping = asyncio.create_task(node.stop())
    assert await closed(reader) == b"bye"
    writer.close()
    await stopping
    await node.stop()
    assert broker.drained == ["other:1883"]
    assert connection.ended
    assert log.events()[-1] == "node.drained"
    assert "node.drain_cut_short" not in log.events()
    for address in addresses.values():
        with pytest.raises(OSError, match=r"refused|Connect call failed"):
            await dial(address)


async def test_reference_of_a_drain(broker: Any, runtime: Any) -> None:
    node = Server(broker, (), runtime)
    await node.start()
    await node.stop("next:1883")
    assert broker.drained == ["next:1883"]


async def test_drain_that_takes_too_long_is_cut_short(
    broker: Any, dial: Any, runtime: Any, log: Any
) -> None:
    broker.settings = Settings(broker=BrokerSettings(shutdown_timeout=0.1))
    node = Server(broker, (listener(close_timeout=60.0),), runtime)
    await node.start()
    reader, _ = await dial(node.addresses()["default"])
    connection = await broker.next()
    await node.stop()  # the client never closes
    assert connection.ended
    assert await closed(reader) in (b"bye", b"")
    fields = next(fields for _, event, fields in log.records if event == "node.drain_cut_short")
    assert fields == {"connections": 1, "committed": True}


async def test_second_request_does_not_wait(broker: Any, dial: Any, runtime: Any, log: Any) -> None:
    broker.drain = lambda reference, done: None  # never done
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    node = Server(broker, (listener(),), runtime)
    running = asyncio.create_task(node.run())
    await until(lambda: "node.started" in log.events())
    await dial(node.addresses()["default"])
    connection = await broker.next()
    os.kill(os.getpid(), signal.SIGINT)
    await until(lambda: "node.stopping" in log.events())
    os.kill(os.getpid(), signal.SIGINT)
    async with asyncio.timeout(60):
        await running
    del running
    gc.collect()
    assert connection.ended
    assert "node.drain_cut_short" in log.events()
    assert reported == []


async def until(condition: Any) -> None:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        while not condition():
            future = loop.create_future()
            loop.call_later(0.005, future.set_result, None)
            await future


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_run_until_a_signal(
    broker: Any, runtime: Any, log: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, number: int
) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        reloaded: list[int] = []

        async def reload() -> ReloadReport:
            reloaded.append(1)
            return ReloadReport()

        node = Server(broker, (listener(),), runtime, reload=reload)
        running = asyncio.create_task(node.run())
        await until(lambda: "node.started" in log.events())
        assert gc.get_freeze_count() > 0
        os.kill(os.getpid(), signal.SIGUSR1)
        await until(lambda: "node.state" in log.events())
        os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "node.reloaded" in log.events())
        os.kill(os.getpid(), number)
        async with asyncio.timeout(60):
            await running
        manager.setblocking(False)
        told = []
        while True:
            try:
                told.append(manager.recv(200).decode())
            except BlockingIOError:
                break
    assert reloaded == [1]
    assert told[0] == "READY=1"
    assert "WATCHDOG=1" in told  # sent until the end, because a drain may take long
    assert [state for state in told if state != "WATCHDOG=1"][-1] == "STOPPING=1"
    reloading = next(i for i, state in enumerate(told) if state.startswith("RELOADING=1\nMONO"))
    assert "READY=1" in told[reloading:]
    state = next(fields for _, event, fields in log.records if event == "node.state")
    assert state["connections"] == {"default": 0}
    assert state["metrics"]["connections_refused"] == 0
    assert broker.drained == [""]


@pytest.mark.parametrize("step", ["load", "start"])
async def test_a_signal_interrupts_the_start(
    broker: Any, runtime: Any, log: Any, step: str
) -> None:
    reached = asyncio.Event()
    setattr(broker, step, lambda _done: reached.set())  # never done
    node = Server(broker, (listener("web", type="http"), listener()), runtime)
    running = asyncio.create_task(node.run())
    await reached.wait()
    assert not running.done()
    address = node.addresses()["web"]
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 60)
    assert node.phase() == "stopping"
    assert "node.started" not in log.events()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncio.open_connection(*address.split(":"))
    assert broker.drained == []


async def test_a_start_that_is_cancelled_is_not_a_stop(broker: Any, runtime: Any) -> None:
    broker.load = lambda _done: None
    running = asyncio.create_task(Server(broker, (), runtime).run())
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_store_that_fails_ends_it_with_an_error(
    broker: Any, dial: Any, runtime: Any, log: Any
) -> None:
    node = Server(broker, (listener(),), runtime)
    running = asyncio.create_task(node.run())
    await until(lambda: "node.started" in log.events())
    reader, writer = await dial(node.addresses()["default"])
    await broker.next()
    broker.on_failure("no space left on device")
    assert await closed(reader) == b"bye"
    writer.close()
    with pytest.raises(StoreError, match="no space left"):
        await running
    assert "node.store_failed" in log.events()


async def test_sockets_of_the_service_manager(
    broker: Any, dial: Any, runtime: Any, log: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as lent, socket.socket() as stray:
        port = lent.getsockname()[1]
        node = Server(broker, (listener("lent"), listener("own")), runtime)
        await node.start({"lent": lent.dup(), "nobody": stray.dup()})
    assert node.addresses()["lent"] == f"127.0.0.1:{port}"
    assert ("warning", "listener.unknown_socket", {"name": "nobody"}) in log.records
    _, writer = await dial(node.addresses()["lent"])
    connection = await broker.next()
    assert connection.scope.name == "lent"
    writer.close()
    await connection.until_ended()
    await node.stop()


async def test_nothing_stays_open_when_a_listener_cannot_open(
    broker: Any, dial: Any, runtime: Any
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        node = Server(broker, (listener("good"), listener("bad", bind=address)), runtime)
        with pytest.raises(BindError, match="'bad'"):
            await node.start()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await dial(node.addresses()["good"])


async def test_a_store_that_cannot_load_opens_nothing(broker: Any, runtime: Any) -> None:
    broker.start = lambda done: done(StoreError("no disk"))
    node = Server(broker, (listener(),), runtime)
    with pytest.raises(StoreError, match="no disk"):
        await node.start()
    assert node.listeners == {}


def test_names_are_unique(broker: Any) -> None:
    async def build() -> None:
        with pytest.raises(ConfigError, match="two listeners are named 'a'"):
            Server(broker, (listener("a"), listener("b"), listener("a")), AsyncioRuntime())

    asyncio.run(build())


async def test_reload_that_fails_is_logged_and_certificates_are_read_all_the_same(
    broker: Any, runtime: Any, log: Any, files: Any
) -> None:
    async def reload() -> ReloadReport:
        raise ConfigError("no good")

    settings = TlsSettings(**files.server())
    node = Server(broker, (listener("tls", type="tls", tls=settings),), runtime, reload=reload)
    await node.start()
    node.request_reload()
    await until(lambda: "listener.certificates_reloaded" in log.events())
    assert log.events().count("node.reload_failed") == 1
    files.spoil(settings.key)
    assert not await node.reload_certificates()
    refused = next(f for _, event, f in log.records if event == "listener.certificates_refused")
    assert refused["listener"] == "tls"
    assert "server.key" in refused["error"]
    await node.stop()


async def test_failures_before_connect_are_reported(
    broker: Any, dial: Any, runtime: Any, files: Any
) -> None:
    """Failed TLS handshakes, and connections to a full listener, are reported to the broker's observers with the
    client's address.
    """
    tls = TlsSettings(**files.server())
    listeners = (listener("tls", type="tls", tls=tls), listener("small", max_connections=1))
    node = Server(broker, listeners, runtime)
    await node.start()
    reader, writer = await dial(node.listeners["tls"])
    writer.write(b"this is not TLS")
    await reader.read()
    await until(lambda: broker.reported)
    await dial(node.listeners["small"])
    await until(lambda: node.listeners["small"].gate.entered)
    reader, _ = await dial(node.listeners["small"])
    assert await reader.read() == b""
    await until(lambda: len(broker.reported) == 2)
    await node.stop()
    (failed, first, about), (refused, second, why) = broker.reported
    port = writer.get_extra_info("sockname")[1]
    assert (failed, first) == ("broker.handshake_failed", "tls")
    assert (about["peer"], set(about)) == (f"127.0.0.1:{port}", {"peer", "error"})
    assert (refused, second, why["why"]) == (
        "broker.connection_refused",
        "small",
        "max_connections",
    )
