"""Run the processes that write old messages to Parquet: start them, restart them, and log their output.

There is one process per target, because only one process may write to a target. Retention waits for the consumer
`TIER`, whose offsets the process records once its files are complete. No message is therefore deleted before it is in a
file.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from hookmq_spark_sink.config import StreamConfig, TierConfig

LONGEST: Final = 60.0
"""Maximum seconds to wait before a process is restarted."""
_SAYS: Final = "hookmq spark export: "


class TierProcess:
    """The process for one target. Call `start` and `stop` on a running event loop."""

    def __init__(
        self,
        folder: Path,
        config: TierConfig,
        streams: Sequence[str],
        log: Callable[..., None],
        wait: float = 1.0,
    ) -> None:
        self.up = False
        self.restarts = 0
        self.target = config.target
        self._given = {
            "folder": str(folder.absolute()),
            "target": config.target,
            "streams": list(streams),
            "file_size": config.file_size,
        }
        self._python = config.python or sys.executable
        self._log = log
        self._wait = wait
        self._task: asyncio.Task[None] | None = None
        self._process: asyncio.subprocess.Process | None = None

    def start(self) -> None:
        """Start the process and watch it."""
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        delay = self._wait
        while True:
            code, said = -1, ""
            try:
                process = await self._spawn()
            except OSError as error:
                said = str(error)
            else:
                self.up = True
                assert process.stderr is not None
                while line := await process.stderr.readline():
                    said = line.decode("utf-8", "replace").strip().removeprefix(_SAYS)
                    self._log("info", "spark_sink.tier", target=self.target, text=said)
                    delay = self._wait
                code = await process.wait()
                self.up = False
            self._log(
                "warning", "spark_sink.tier_ended", target=self.target, code=code, reason=said
            )
            await asyncio.sleep(delay)
            delay = min(LONGEST, delay * 2)
            self.restarts += 1

    async def _spawn(self) -> asyncio.subprocess.Process:
        self._process = process = await asyncio.create_subprocess_exec(
            self._python, "-P", "-m", "hookmq_spark_sink.export.tier",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._given).encode() + b"\n")
        with suppress(ConnectionError):  # it has ended, as `_watch` notices
            await process.stdin.drain()
        return process

    async def stop(self, deadline: float) -> None:
        """End the process, giving it `deadline` seconds to complete its file. If it runs out of time, the next process
        writes the file again.
        """
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
            async with asyncio.timeout(max(0.5, deadline)):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def processes(
    folder: Path, streams: Sequence[StreamConfig], log: Callable[..., None]
) -> list[TierProcess]:
    """Return a process for each target that the streams use."""
    tiers: dict[TierConfig, list[str]] = {}
    for one in streams:
        if one.tier is not None:
            tiers.setdefault(one.tier, []).append(one.name)
    return [TierProcess(folder, tier, names, log) for tier, names in tiers.items()]
