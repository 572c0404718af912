"""Finds out whether NATS servers write each commit to disk before they confirm it.

Ordinary clients of NATS cannot see this setting. The monitoring of a server shows it in ``/jsz``.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.request import urlopen

from hookmq.plugin import Log

from hookmq_cluster.engine_errors import EngineError

PATIENCE: Final = 5.0
"""Seconds to wait for the answer of one server."""
_LARGEST: Final = 1 << 20
"""The largest answer that is read, in bytes."""


async def check_sync(addresses: Sequence[str], log: Log) -> None:
    """Raise EngineError if a server at one of the monitoring `addresses` syncs lazily. Log those that do not answer."""
    for address, (refused, unknown) in (await read_sync(addresses)).items():
        if refused:
            raise EngineError(refused)
        if unknown:
            log("warning", "cluster.sync_unknown", address=address, reason=unknown)


async def read_sync(addresses: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return for each of the monitoring `addresses` why its server cannot be used, and why that is not known. Both are
    empty if the server writes each commit to disk."""
    found = await asyncio.gather(*(asyncio.to_thread(_problem, one) for one in addresses))
    return {
        address: (
            f"sync: the NATS server at {address} does not sync each commit to disk; set sync_interval: always there, or "
            "sync: lazy here"
            if lazy
            else "",
            problem,
        )
        for address, (lazy, problem) in zip(addresses, found, strict=True)
    }


def _problem(address: str) -> tuple[bool, str]:
    """Return whether the server syncs lazily, and why that is not known. Blocks."""
    try:
        with urlopen(f"{address.rstrip('/')}/jsz", timeout=PATIENCE) as answer:
            shown: Any = json.loads(answer.read(_LARGEST))
    except (OSError, ValueError) as error:
        return False, str(error) or type(error).__name__
    config = shown.get("config") if isinstance(shown, dict) else None
    if not isinstance(config, dict) or "sync_interval" not in config:
        return False, "the answer does not show sync_interval"
    return not config.get("sync_always"), ""
