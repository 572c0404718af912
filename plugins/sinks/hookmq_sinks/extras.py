"""The extras of this distribution, which install client libraries."""


def extra_hint(extra: str) -> str:
    """Return how to install an extra, or '' if `extra` is empty."""
    if not extra:
        return ""
    return f"in a checkout of HookMQ, run: uv pip install './plugins/sinks[{extra}]'"
