"""The runtime of ``hookmq serve``, for tests of stores, journals and plugins with threads or processes of their own."""

from hookmq.server.asyncio_runtime import AsyncioRuntime

__all__ = ["AsyncioRuntime"]
