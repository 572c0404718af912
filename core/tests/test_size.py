"""Test that the core stays within the limits set in docs/decisions/0011-size-limit.md."""

import ast
import io
import tokenize
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "hookmq"
BROKER_LIMIT = 22_000
PLATFORM_LIMIT = 6_750
PLATFORM = (
    "broker/client_relay.py", "broker/cluster_", "broker/core_metrics.py", "broker/handlers/locate.py",
    "broker/parked_publishes.py", "broker/plugin_", "broker/plugin_api/", "broker/tracing/", "cli/workers.py",
    "cluster_api.py",
    "config/config_check.py", "hooks/async_calls.py", "hooks/broker_handle.py", "hooks/metric_registry.py",
    "hooks/observer_queue.py", "hooks/traces.py", "model/cursors.py", "model/drain.py", "model/log_events.py",
    "model/snapshots.py", "server/client_drain.py", "server/event_log.py", "server/plugin_listeners.py",
    "server/supervisor.py", "server/worker_process.py", "server/workers.py", "storage/cluster",
)  # fmt: skip
"""Path prefixes of the platform's modules."""
IGNORED = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip


def lines_of_code(source: str) -> int:
    """Return the number of lines that are neither blank nor part of a docstring or comment."""
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in IGNORED:
            found.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


def test_lines_of_code() -> None:
    source = '"""A module."""\n\n# A comment.\nx = """a\n\nb"""\n\ndef f():\n    """A function."""\n    return x  # x\n'
    assert lines_of_code(source) == 5


def test_the_core_stays_within_its_limits() -> None:
    broker = platform = 0
    for path in SOURCE.rglob("*.py"):
        count = lines_of_code(path.read_text(encoding="utf-8"))
        if path.relative_to(SOURCE).as_posix().startswith(PLATFORM):
            platform += count
        else:
            broker += count
    assert 10_000 < broker <= BROKER_LIMIT
    assert 2_000 < platform <= PLATFORM_LIMIT


def test_each_part_of_the_platform_exists() -> None:
    paths = [path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py")]
    for part in PLATFORM:
        assert any(path.startswith(part) for path in paths), part
