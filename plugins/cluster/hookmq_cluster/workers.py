"""Run a cluster on one machine: several workers of one broker, and the nats-server that they share."""

import asyncio
import os
import time
from collections.abc import Mapping
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import cast

from hookmq.plugin import Log, Runtime, StoreError

from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_child import NatsChild
from hookmq_cluster.transfer import AVAILABLE, MAX_PATH, socket_path


class SupervisorRuntime:
    """The part of a `Runtime` that the nats-server's owner needs. The supervisor has no broker, hence no other one."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def now(self) -> float:
        """Return the monotonic time in seconds."""
        return time.monotonic()

    def token(self, size: int) -> str:
        """Return `size` random bytes as lower-case hex."""
        return os.urandom(size).hex()


class ClusterWorkers:
    """The plan for the workers of one machine. `node` is the beginning of their names, or empty.

    If `folder` is not None, a nats-server with its data there is started for them. Otherwise they use the servers in the
    configuration. A temporary folder has the sockets for transfers between them.
    """

    def __init__(self, node: str, folder: Path | None, log: Log) -> None:
        self._prefix = f"{node}-" if node else ""
        self._child: NatsChild | None = None
        if folder is not None:
            self._child = NatsChild(folder, cast("Runtime", SupervisorRuntime(log)))
        self._running = False
        self._log = log
        self._transfers = ""

    async def start(self) -> None:
        """Start the nats-server. Raises StoreError."""
        if AVAILABLE:
            self._transfers = await asyncio.to_thread(mkdtemp, prefix="hookmq-transfers-")
            longest = socket_path(Path(self._transfers), f"{self._prefix}w1023")
            if len(os.fsencode(longest)) > MAX_PATH:
                # The workers relay bytes to each other instead.
                await self._remove_folder()
                self._log("warning", "cluster.no_transfers", path=str(longest), limit=MAX_PATH)
        if self._child is None:
            return
        try:
            await self._child.start()
        except EngineError as error:
            raise StoreError(str(error)) from None
        self._running = True

    def settings(self, worker: str) -> Mapping[str, str]:
        """Return the settings of the node in a worker."""
        found = {"node": self._prefix + worker}
        if self._transfers:
            found["transfers"] = self._transfers
        if self._child is not None:
            options = self._child.options
            found |= {
                "servers.0": options.servers[0],
                "user": options.user,
                "password": options.password,
            }
            found |= {"replicas": "1", "allow_single_replica": "true"}
        return found

    async def stop(self) -> None:
        """Stop the nats-server, and remove the temporary folder."""
        await self._remove_folder()
        if self._child is not None and self._running:
            self._running = False
            await self._child.stop()

    async def _remove_folder(self) -> None:
        if self._transfers:
            await asyncio.to_thread(rmtree, self._transfers, ignore_errors=True)
            self._transfers = ""
