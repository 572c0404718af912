"""A cluster with everything that can fail: brokers, NATS servers, their network and their disks."""

import asyncio
import shutil
from pathlib import Path
from typing import Final

from nats_server import NatsCluster, NatsNode
from ports import free_port

from clusterkill.disks import Disk, missing
from clusterkill.network import Network
from clusterkill.nodes import BrokerNode

BROKERS: Final = "abcde"
RESTART: Final = 0.3
"""Seconds between two looks for brokers that ended by themselves. A node that was expelled does that."""


class Cluster:
    """Brokers and NATS servers. Broker number i and server number i are one machine.

    `disks` is empty if disks are impossible on this machine; `without` then has the reason.
    """

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.network = Network()
        self.without = missing(folder)
        self.disks: list[Disk] = []
        self.brokers: list[BrokerNode] = []
        self.restarts = 0
        """How often a broker ended by itself and was started again."""
        self.down: set[int] = set()
        """The machines whose broker must not be started now."""
        if not self.without:
            self.disks = [Disk(folder / f"disk{number}") for number in range(size)]
        stores = [disk.folder for disk in self.disks]
        self.nats = NatsCluster(size, stores=stores, route=self._route)
        for name in BROKERS[:size]:
            urls = [
                f"nats://127.0.0.1:{self.network.add(name, server.name, server.port).port}"
                for server in self.nats.nodes
            ]
            relay = free_port()
            known = self.network.add("", name, relay).port
            more = f', relay: "127.0.0.1:{relay}", advertise: "127.0.0.1:{known}"'
            self.brokers.append(BrokerNode(folder, name, urls, size, more))

    def _route(self, number: int, other: int, port: int) -> int:
        return self.network.add(f"n{number}", f"n{other}", port).port

    @property
    def servers(self) -> list[NatsNode]:
        """The NATS servers."""
        return self.nats.nodes

    def names(self, machine: int) -> set[str]:
        """Return the names of the broker and of the server on a machine."""
        return {self.brokers[machine].name, self.servers[machine].name}

    def everyone(self) -> set[str]:
        """Return the names of all brokers and servers."""
        return set().union(*(self.names(machine) for machine in range(len(self.brokers))))

    async def start(self) -> None:
        """Start everything and wait until all brokers accept clients."""
        await self.network.open()
        await asyncio.to_thread(self.nats.start)
        for node in self.brokers:
            node.start()
        await asyncio.gather(*(asyncio.to_thread(node.wait) for node in self.brokers))

    def revive(self) -> None:
        """Start the brokers that ended by themselves."""
        for machine, node in enumerate(self.brokers):
            if machine not in self.down and node.ended():
                node.start()
                self.restarts += 1

    async def supervise(self) -> None:
        """Start brokers that end by themselves, until this call is cancelled."""
        while True:
            await asyncio.sleep(RESTART)
            self.revive()

    async def heal(self) -> None:
        """Start and resume everything, and wait until all brokers accept clients."""
        self.network.heal()
        self.down.clear()
        for disk in self.disks:
            disk.thaw()
            disk.empty()
        for server in self.servers:
            server.resume()
        for node in self.brokers:
            node.resume()
            if node.process is None:
                node.start()
        self.revive()
        await asyncio.to_thread(self.nats.start)
        await asyncio.gather(*(asyncio.to_thread(node.wait) for node in self.brokers))

    def keep_logs(self, folder: Path) -> None:
        """Copy the logs of the NATS servers to `folder`."""
        for server in self.servers:
            shutil.copy(server._log, folder)

    def close(self) -> None:
        """Kill everything."""
        for disk in self.disks:
            disk.thaw()
        for node in self.brokers:
            node.resume()
            node.kill()
        for server in self.servers:
            server.resume()
            server.kill()
        for disk in self.disks:
            disk.close()
        self.nats.close()
        self.network.close()
