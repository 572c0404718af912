"""Test the metrics that the core exports."""

import asyncio
import time
from typing import Any

from hookmq import BUILD
from hookmq.plugin import HOOK_API, Context
from hookmq.server.settings import ListenerSettings
from http_nodes import Ask, Begin, Pages, http


async def test_metrics_of_the_core_and_of_plugins(begin: Begin, ask: Ask, dial: Any) -> None:
    tcp = ListenerSettings(name="tcp", bind="127.0.0.1:0", close_timeout=2.0)
    node = await begin((Pages(None, Context("web")),), http(), tcp)
    reader, writer = await dial(node.addresses()["tcp"])
    writer.write(bytes.fromhex("100d00044d5154540400003c000178"))  # CONNECT, the session stays
    writer.write(bytes.fromhex("820800010003612f2301"))  # SUBSCRIBE a/#
    writer.write(b"\x31\x06\x00\x03b/cx")  # retained: b/c
    writer.write(b"\xc0\x00")
    answers = await reader.readexactly(11)
    assert all(one in answers for one in (b"\x20\x02\0\0", b"\x90\x03\0\x01\x01", b"\xd0\0"))
    answer = await ask(node, "/metrics")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    assert "hookmq_connections 1" in lines
    assert 'hookmq_listener_connections{listener="tcp"} 1' in lines
    assert 'hookmq_listener_connections{listener="http"} 1' in lines
    assert "hookmq_sessions 1" in lines
    assert "hookmq_subscriptions 1" in lines
    assert "hookmq_retained_messages 1" in lines
    broker: Any = node.broker
    kept = broker.state.retained.get("b/c")
    assert kept.size == 4  # b/c and x above
    assert kept.publisher.size > 0
    assert f"hookmq_retained_bytes {4 + kept.publisher.size}" in lines
    assert "hookmq_queue_bytes 0" in lines
    for name, who in (("retained_bytes", ", and their publishers"), ("queue_bytes", "")):
        (help,) = [line for line in lines if line.startswith(f"# HELP hookmq_{name} ")]
        assert help.endswith(f"topics, payloads and properties{who}.")
    assert "hookmq_route_cache_misses_total 1" in lines
    assert "hookmq_connections_accepted_total 1" in lines
    assert "hookmq_messages_received_total 1" in lines
    assert 'hookmq_pages_total{plugin="web"} 7' in lines
    ok = 'hookmq_hook_calls_total{hook="register_metrics",outcome="ok",plugin="web"} 1'
    assert ok in lines
    info = f'hookmq_build_info{{build="{BUILD.kind}",plugins_api="{HOOK_API}",python="'
    assert any(line.startswith(info) for line in lines)
    assert len({line for line in lines if line[0] != "#"}) == len(
        [line for line in lines if line[0] != "#"]
    )
    asked = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}
    other = await ask(node, "/metrics", headers=asked)
    assert other.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert other.text.endswith("# EOF\n")


async def test_clients_are_served_while_metrics_are_read(begin: Begin, ask: Ask) -> None:
    """A slow metric delays clients only by the time it takes itself, because the event loop takes a turn after each
    metric.
    """
    node = await begin((), http())
    turns: list[int] = []
    turned = 0

    def read() -> int:
        deadline = time.perf_counter() + 0.01
        while time.perf_counter() < deadline:
            pass
        turns.append(turned)
        return 1

    def turn() -> None:
        nonlocal turned
        turned += 1
        timer[0] = loop.call_soon(turn)

    loop = asyncio.get_running_loop()
    timer = [loop.call_soon(turn)]
    for name in ("slow_a", "slow_b", "slow_c"):
        node._site.metrics.gauge(name, "Slow.", read)
    answer = await ask(node, "/metrics")
    timer[0].cancel()
    assert "hookmq_slow_c 1\n" in answer.text
    assert len(set(turns)) == 3


async def test_dropped_messages_are_counted_by_reason_and_direction(begin: Begin, ask: Ask) -> None:
    node = await begin((), http())
    node.broker.metrics.count_drop("queue_full", "out", 3)
    text = (await ask(node, "/metrics")).text
    assert 'hookmq_messages_dropped_total{direction="out",reason="queue_full"} 3\n' in text
