"""Test how the streams are described to other plugins."""

from pathlib import Path
from typing import Any

from hookmq_spark_sink import files
from hookmq_spark_sink.plugin import SparkSinkPlugin
from hookmq_testing import DurableStore, Harness, make_plugin
from hookmq_toolkit.streams import SERVICE, StreamConsumer, StreamOwner, StreamStatus


def described(harness: Harness) -> StreamStatus:
    owner = harness.handle("spark_sink").services(SERVICE)["spark_sink"]
    assert isinstance(owner, StreamOwner)
    [found] = harness.clock.run(owner.list_streams())
    assert isinstance(found, StreamStatus)
    return found


def opened(tmp_path: Path, store: DurableStore) -> Harness:
    stream = {"name": "all", "topics": ["#"], "consumers": ["bronze"]}
    config: dict[str, Any] = {"path": tmp_path / "spark", "streams": [stream]}
    return Harness([make_plugin(SparkSinkPlugin, config, "spark_sink")], store=store)


def test_a_stream_is_described(tmp_path: Path) -> None:
    store = DurableStore()
    with opened(tmp_path, store) as harness:
        empty = described(harness)
        assert (empty.name, empty.kind, empty.messages, empty.oldest) == ("all", "log", 0, None)
        assert empty.consumers == (StreamConsumer("bronze", 0, None, 0.0, declared=True),)
        assert (empty.max_bytes, empty.full, empty.refused, empty.dropped) == (
            10 << 30,
            False,
            0,
            0,
        )
        client = harness.connect("sender")
        for _ in range(2):
            client.publish("a", b"x" * 100, qos=1)
            harness.advance(30)
        found = described(harness)
        assert (found.messages, found.error) == (2, "")
        assert found.bytes > empty.bytes + 200
        assert found.oldest is not None
        assert 60 <= found.oldest < 80  # the disk takes virtual time, too
        assert found.partitions == (2,)
        [bronze] = found.consumers
        assert (bronze.lag, bronze.committed_at, bronze.declared) == (2, None, True)
        assert bronze.lag_seconds is not None
        assert abs(bronze.lag_seconds - found.oldest) < 1
        plugin = harness.hooks.plugins[0].plugin
        assert isinstance(plugin, SparkSinkPlugin)
        [stream] = plugin.streams
        reported = files.Reported(12, "q", 3)
        known = {
            "bronze": files.Consumer({0: 1}, 7.5, reported),
            "etl": files.Consumer({0: 2}, 8.5),
        }
        files.write_consumers(stream.folder, stream.log.id, known)
        bronze, etl = described(harness).consumers
        assert (bronze.name, bronze.lag, bronze.committed_at) == ("bronze", 1, 7.5)
        assert bronze.dead_letters == 12
        assert bronze.lag_seconds is not None
        assert 30 <= bronze.lag_seconds < 50  # the second message was published 30 s later
        assert etl == StreamConsumer("etl", 0, 8.5, 0.0, declared=False)
        files_path = stream.folder / "consumers.json"
        files_path.write_text("?")
        broken = described(harness)
        assert (broken.messages, broken.consumers) == (2, ())
        assert broken.error.startswith(f"{files_path} cannot be read")
        files_path.unlink()
    with opened(tmp_path, store) as harness:
        again = described(harness)
        assert again.messages == 2
        assert again.oldest is not None
