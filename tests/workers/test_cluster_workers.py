"""Test the workers of the plugin `cluster`: one broker on several processes, with a nats-server that they start."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.packets import Connect, Pingreq, Subscribe, SubscribeRequest
from hookmq_testing import AsyncioClient

pytestmark = pytest.mark.slow  # each test starts several brokers, some of them twice
CONFIG = """version: 1
listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]
auth: {default: allow}
authz: {default: allow}
plugins: [{use: cluster, config: {workers: 2, lease: 3s, together: "^(site[0-9]+)-"}}]
"""


class Machine:
    """The broker's processes on one machine, and their log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log: list[dict[str, Any]] = []
        self.text: list[str] = []
        self.process: asyncio.subprocess.Process
        self._changed = asyncio.Event()

    async def start(self) -> None:
        (self.folder / "hookmq.yaml").write_text(CONFIG)
        environ = {**os.environ, "XDG_STATE_HOME": str(self.folder)}
        environ.pop("STATE_DIRECTORY", None)
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hookmq.cli", "serve", "-c", "hookmq.yaml", "--log-format", "json",
            stderr=asyncio.subprocess.PIPE, cwd=self.folder, env=environ, limit=1 << 20,
        )  # fmt: skip
        self._reader = asyncio.create_task(self._read())
        await self.event("workers.started")

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except ValueError:
                self.text.append(line.decode())
            self._changed.set()

    async def event(self, name: str, count: int = 1, **fields: object) -> dict[str, Any]:
        """Wait for the event with this number and these fields."""
        wanted = {"event": name, **fields}.items()
        async with asyncio.timeout(120):
            while len(found := [one for one in self.log if wanted <= one.items()]) < count:
                assert not self._reader.done(), (self.log[-10:], self.text)
                self._changed.clear()
                await self._changed.wait()
        return found[count - 1]

    async def port(self) -> int:
        address = (await self.event("node.started"))["listeners"]["tcp"]
        return int(address.rpartition(":")[2])

    async def connect(self, worker: str, client_id: str, **options: Any) -> AsyncioClient:
        """Return a client that is connected to `worker`. The kernel chooses the worker, so try until it is this one."""
        port = await self.port()
        for number in range(200):
            name = f"{client_id}-{number}"
            client = await AsyncioClient(name, **options).connect(port)
            async with asyncio.timeout(60):
                while not (found := [one for one in self.log if one.get("client_id") == name]):
                    self._changed.clear()
                    await self._changed.wait()
            if found[0]["worker"] == worker:
                return client
            client.disconnect()
        raise AssertionError(f"no connection reached {worker}")

    async def worker_of(self, client_id: str, count: int = 1) -> str:
        """Return the worker of this connection of the client."""
        return str((await self.event("client.connected", count, client_id=client_id))["worker"])

    def pid(self, worker: str) -> int:
        """Return the id of the worker's newest process."""
        return int(
            next(
                one["process"]
                for one in reversed(self.log)
                if one["event"] == "worker.spawned" and one["worker"] == worker
            )
        )

    async def stop(self) -> int:
        self.process.terminate()
        async with asyncio.timeout(60):
            code = await self.process.wait()
            await self._reader
        return code


@asynccontextmanager
async def machine(folder: Path) -> AsyncIterator[Machine]:
    found = Machine(folder)
    try:
        await found.start()
        yield found
    finally:
        if found.process.returncode is None:
            found.process.kill()
            await found.process.wait()


async def test_two_workers_are_one_broker(tmp_path: Path) -> None:
    async with machine(tmp_path) as found:
        one = await found.connect("w0", "one")
        two = await found.connect("w1", "two")
        await one.subscribe("t/#", 1)
        await two.subscribe("t/#", 0)
        for qos in (0, 1, 2):
            for client in (one, two):
                await client.publish("t/x", b"%d" % qos, qos)
        for client in (one, two):
            payloads = sorted([(await client.message()).payload for _ in range(6)])
            assert payloads == [b"0", b"0", b"1", b"1", b"2", b"2"]
        assert await found.stop() == 0
        assert not found.text
        assert not [one for one in found.log if one["level"] == "error"]


async def test_a_durable_session_survives_any_worker(tmp_path: Path) -> None:
    async with machine(tmp_path) as found:
        port = await found.port()
        client = await AsyncioClient("durable", session_expiry_interval=3600).connect(port)
        await client.subscribe("t", 1)
        client.drop()
        await client.wait_closed()
        for _ in range(8):  # some of these connections are relayed
            await client.reconnect()
            assert client.session_present
        client.drop()
        await client.wait_closed()
        assert await found.stop() == 0


async def test_the_state_survives_a_restart_of_all_workers(tmp_path: Path) -> None:
    async with machine(tmp_path) as first:
        client = AsyncioClient("durable", session_expiry_interval=3600)
        await client.connect(await first.port())
        await client.subscribe("t", 1)
        client.drop()
        await client.wait_closed()
        publisher = await AsyncioClient("publisher").connect(await first.port())
        await publisher.publish("t", b"kept", 1)
        assert await first.stop() == 0
    async with machine(tmp_path) as second:
        again = AsyncioClient("durable", clean_start=False, session_expiry_interval=3600)
        await again.connect(await second.port())
        assert again.session_present
        assert (await again.message()).payload == b"kept"
        assert await second.stop() == 0


async def test_a_killed_worker_comes_back_with_its_sessions(tmp_path: Path) -> None:
    async with machine(tmp_path) as found:
        client = await found.connect("w0", "durable", session_expiry_interval=3600)
        await client.subscribe("t", 1)
        publisher = await found.connect("w1", "publisher")
        os.kill(found.pid("w0"), signal.SIGKILL)
        await found.event("worker.ended", worker="w0")
        await client.wait_closed()
        await publisher.publish("t", b"kept", 1)
        await found.event("node.started", 2, worker="w0")
        await client.reconnect()
        assert client.session_present
        assert (await client.message()).payload == b"kept"
        assert await found.stop() == 0


async def test_clients_that_belong_together_use_one_worker(tmp_path: Path) -> None:
    async with machine(tmp_path) as found:
        port = await found.port()
        homes: dict[int, str] = {}
        clients: list[AsyncioClient] = []
        for site in range(6):
            names = [f"site{site}-{number}" for number in range(5)]
            clients += [await AsyncioClient(name).connect(port) for name in names]
            [homes[site]] = {await found.worker_of(name) for name in names}
        assert set(homes.values()) == {"w0", "w1"}
        first = clients[0]
        await first.subscribe("t", 1)
        for client in clients:
            await client.publish("t", client.client_id.encode(), 1)
        payloads = {(await first.message()).payload for _ in clients}
        assert payloads == {client.client_id.encode() for client in clients}

        # What a client sends behind its CONNECT goes along.
        for number in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            subscribe = Subscribe(1, (SubscribeRequest("t", 0),))
            connect = encode(Connect(f"site{number}-hasty", 4, True, 60), 4)
            writer.write(connect + encode(subscribe, 4) + encode(Pingreq(), 4))
            async with asyncio.timeout(60):
                answer = await reader.readexactly(11)
            suback, pingresp = b"\x90\x03\x00\x01\x00", b"\xd0\x00"
            assert answer[:4] == b"\x20\x02\x00\x00"
            assert answer[4:] in (suback + pingresp, pingresp + suback)
            writer.close()

        # While their worker is down, its clients stay where the kernel sends them. Nobody is refused.
        home = homes[0]
        other = "w1" if home == "w0" else "w0"
        os.kill(found.pid(home), signal.SIGKILL)
        await first.wait_closed()
        await first.reconnect()
        assert await found.worker_of("site0-0", 2) == other
        await found.event("node.started", 2, worker=home)
        await first.reconnect()
        assert await found.worker_of("site0-0", 3) == home
        assert not [one for one in found.log if one["event"] == "connect.refused"]
        assert await found.stop() == 0


@pytest.mark.parametrize("workers", ["0", "none", "-1"])
async def test_wrong_numbers_are_refused(tmp_path: Path, workers: str) -> None:
    (tmp_path / "hookmq.yaml").write_text(CONFIG.replace("workers: 2", f"workers: {workers}"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hookmq.cli", "serve", "-c", "hookmq.yaml",
        stderr=asyncio.subprocess.PIPE, cwd=tmp_path,
    )  # fmt: skip
    _, text = await process.communicate()
    assert process.returncode == 2
    assert b"workers" in text
