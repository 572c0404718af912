"""The extras of this package, which install client libraries."""


def extra_hint(extra: str) -> str:
    """Return instructions for installing an extra, or '' if `extra` is empty."""
    if not extra:
        return ""
    return f"in a checkout of HookMQ, run: uv pip install './plugins/sinks[{extra}]'"
