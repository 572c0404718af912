"""Test traces with a broker process. Its event loop keeps running if the collector does not respond."""

from pathlib import Path

import pytest
from otlp_collector import collecting, values
from recording import V5, Client
from serving import WAIT, serving

pytestmark = pytest.mark.slow
CONFIG = """
version: 1
listeners: [{{name: tcp, bind: "127.0.0.1:0"}}]
auth: {{default: allow}}
authz: {{default: allow}}
plugins:
  - use: otel
    config:
      {{endpoint: "{url}", sampling: 1, max_rate: 100000, max_queue: 50, timeout: 1s, metrics_interval: 1s}}
"""


def test_a_collector_that_does_not_answer_stops_nothing(tmp_path: Path) -> None:
    """Messages are delivered while an export hangs, and the broker stops within the export's time limit."""
    with collecting() as collector:
        collector.answers.clear()
        (tmp_path / "hookmq.yaml").write_text(CONFIG.format(url=collector.url))
        with serving("-c", str(tmp_path / "hookmq.yaml")) as served:
            with Client(served.ports["tcp"], version=V5) as client:
                client.subscribe("a", 1)
                assert collector.requests.get(timeout=WAIT)  # an export hangs from here on
                for number in range(60):
                    client.publish("a", b"%d" % number, 1)
                    assert client.message().payload == b"%d" % number
            assert served.stop() == 0
        assert collector.spans == []
        failed = [one["signal"] for one in served.log if one["event"] == "otel.export_failed"]
        assert sorted(failed) == ["metrics", "traces"]
        assert not [one for one in served.log if one["event"] == "log"]


STORED = """
  - use: storage
    config: {{path: "{folder}/state"}}
  - use: webhook
    config: {{url: "{url}/hook", events: [message.published], outbox: {{path: "{folder}/outbox"}}}}
"""


def test_spans_and_metrics_reach_the_collector(tmp_path: Path) -> None:
    """The collector also receives the webhook requests, which carry the trace context of their messages."""
    with collecting() as collector:
        text = (CONFIG + STORED).format(url=collector.url, folder=tmp_path)
        (tmp_path / "hookmq.yaml").write_text(text)
        with (
            serving("-c", str(tmp_path / "hookmq.yaml")) as served,
            Client(served.ports["tcp"], version=V5) as client,
        ):
            client.subscribe("a", 1)
            for _ in range(2):  # the second request begins when the first has been answered
                client.publish("a", b"x", 1)
                client.message()
                while collector.requests.get(timeout=WAIT) != "/hook":
                    pass
        assert {span.name for span in collector.spans} == {
            "connect", "publish", "commit", "deliver", "webhook",
        }  # fmt: skip
        first = collector.named("publish")[0]
        assert values(first.attributes)["hookmq.matched"] == 2  # the client and the outbox
        assert first.start_time_unix_nano < first.end_time_unix_nano
        sent = [one["traceparent"] for one in collector.headers if "traceparent" in one]
        assert sent[0].split("-")[1:3] == [first.trace_id.hex(), first.span_id.hex()]
        for name in ("commit", "webhook"):
            [span] = [
                one for one in collector.named(name) if one.parent_span_id == first.span_id
            ]  # fmt: skip
            assert (span.trace_id, span.status.code) == (first.trace_id, 0)
        assert values(span.attributes)["hookmq.plugin"] == "webhook"
        assert values(span.attributes)["server.address"] == "127.0.0.1"
        assert "hookmq.messages_received" in collector.metrics
