"""Test a sink's target without writing to it, and a source's origin without reading from it."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from hookmq_sinks.config import SinkConfig
from hookmq_sinks.driver import DriverContext, Problem, TargetUnavailable
from hookmq_sinks.extras import extra_hint
from hookmq_sinks.source import SourceContext, SourceUnavailable
from hookmq_sinks.source_config import SourceConfig

_TIMEOUT = 30.0
"""Seconds that opening an origin may take."""


async def try_target(config: SinkConfig, log_id: str, log: Callable[..., None]) -> list[Problem]:
    """Open the target on a separate connection, and check it with the sample. Return all problems."""
    driver = config.kind(
        config.target, DriverContext(config.name, f"{config.name}:test", log_id, log)
    )
    try:
        async with asyncio.timeout(config.timeout):
            await driver.open()
            return list(await driver.check(config.sample_record()))
    except TargetUnavailable as error:
        return [Problem("", error.reason)]
    except TimeoutError:
        return [Problem("", f"no answer within {config.timeout:g} s")]
    except ImportError as error:
        return [Problem("", str(error), extra_hint(config.kind.extra))]
    except Exception as error:
        return [Problem("", f"the driver failed: {type(error).__name__}: {error}")]
    finally:
        with suppress(Exception):
            async with asyncio.timeout(5):
                await driver.close()


async def try_origin(config: SourceConfig) -> list[Problem]:
    """Open and close the origin. This may create a group of consumers. Return all problems."""
    source = config.kind(config.origin, SourceContext(config.name))
    try:
        async with asyncio.timeout(_TIMEOUT):
            await source.open()
        return []
    except SourceUnavailable as error:
        return [Problem("", error.reason)]
    except TimeoutError:
        return [Problem("", f"no answer within {_TIMEOUT:g} s")]
    except ImportError as error:
        return [Problem("", str(error), extra_hint(config.kind.extra))]
    except Exception as error:
        return [Problem("", f"the source failed: {type(error).__name__}: {error}")]
    finally:
        with suppress(Exception):
            async with asyncio.timeout(5):
                await source.close()
