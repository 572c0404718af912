"""The runtime of ``hookmq serve``, for tests of stores, journals and plugins that have their own threads or
processes."""

from hookmq.server.asyncio_runtime import AsyncioRuntime

__all__ = ["AsyncioRuntime"]
