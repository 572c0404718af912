"""The error for frames that cannot be read. It is not compiled, because its base is a class of another package."""

from hookmq.plugin import HookMQError


class FrameError(HookMQError):
    """Stored or received data is damaged, or a newer version wrote it. The text names the mistake and its place."""
