"""Run the reader process for the broker: start it, restart it if it dies, and receive its counters."""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Final

from hookmq.plugin import StoreError

from hookmq_spark_sink.config import ApiConfig, address
from hookmq_spark_sink.served_queue import ServedQueue
from hookmq_spark_sink.stream import Stream

START: Final = 30.0
"""Seconds that the process may take to start listening."""
LONGEST: Final = 30.0
COUNTS: Final = ("requests", "refused", "reads", "failed", "bytes")


class ReaderProcess:
    """Manages the reader process. Call `start` and `stop` on a running event loop.

    `counts` includes the counters of processes that have ended. `port` is the port that the process is listening on.
    """

    def __init__(
        self,
        config: ApiConfig,
        streams: Sequence[Stream | ServedQueue],
        boot: bytes,
        log: Callable[..., None],
    ) -> None:
        self.port = 0
        self.restarts = 0
        self.up = False
        self._log = log
        self._before = dict.fromkeys(COUNTS, 0)
        self._now = dict.fromkeys(COUNTS, 0)
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None
        host, port = address(config.bind)
        self._given = {
            "boot": boot.hex(),
            "host": host,
            "port": port,
            "tls": None if config.tls is None else asdict(config.tls),
            "access": [asdict(one) for one in config.access],
            "max_response": config.max_response,
            "max_requests": config.max_requests,
            "timeout": config.timeout,
            "streams": [
                {
                    "name": one.config.name,
                    "folder": str(one.folder.absolute()),
                    "partitions": one.config.partitions,
                    "filters": list(one.config.topics),
                    "queue": one.config.queue,
                    "consumers": list(one.config.consumers),
                }
                for one in streams
            ],
        }
        self._host = host

    def __repr__(self) -> str:
        return f"<ReaderProcess on port {self.port}>"

    @property
    def counts(self) -> dict[str, int]:
        """Return the reader's counters, by name."""
        return {name: self._before[name] + self._now[name] for name in COUNTS}

    async def start(self) -> None:
        """Start the process, and wait until it is listening. Raises StoreError with the reason if it fails to start."""
        process = await self._spawn()
        self._task = asyncio.get_running_loop().create_task(self._watch(process))

    async def _spawn(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "hookmq_spark_sink.reader",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self._process = process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(self._given).encode() + b"\n")
        told: dict[str, Any] = {}
        with suppress(TimeoutError, ValueError, ConnectionError):
            async with asyncio.timeout(START):
                await process.stdin.drain()
                told = json.loads(await process.stdout.readline() or b"{}")
        if "port" not in told:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            why = told.get("failed", "the reader process ended")
            raise StoreError(f"{self._host}:{self._given['port']}: {why}")
        # The process keeps its port when it is restarted, even a port that the system chose.
        self.port = self._given["port"] = told["port"]
        self.up = True
        return process

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        delay = 0.1
        while True:
            assert process.stdout is not None
            while line := await process.stdout.readline():
                with suppress(ValueError, KeyError):
                    counted = json.loads(line)["counts"]
                    self._now = {name: int(counted[name]) for name in COUNTS}
                    delay = 0.1
            code = await process.wait()
            self.up = False
            self._before = self.counts
            self._now = dict.fromkeys(COUNTS, 0)
            self._log("warning", "spark_sink.reader_died", code=code)
            while True:
                await asyncio.sleep(delay)
                delay = min(LONGEST, delay * 2)
                try:
                    process = await self._spawn()
                except (OSError, StoreError) as error:
                    self._log("warning", "spark_sink.reader_not_started", reason=str(error))
                    continue
                self.restarts += 1
                self._log("info", "spark_sink.reader_started", port=self.port)
                break

    async def stop(self, deadline: float) -> None:
        """End the process, giving it `deadline` seconds to complete its responses."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(max(0.5, deadline / 2)):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
