"""Which servers and streams the cluster accepts."""

from collections.abc import Iterator
from typing import Any

import pytest
from hookmq_cluster.engine_errors import EngineError
from hookmq_cluster.nats_stream import check_replicas, check_server, check_stream, stream_config
from nats_bench import NatsBench
from nats_server import NatsCluster

INFO = {"version": "2.15.1", "jetstream": True, "headers": True, "max_payload": 524_288}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"version": "2.14.0"}, ""),
        ({"version": "2.14.0-RC.1"}, ""),
        ({"version": "3.0.0"}, ""),
        ({"version": "2.13.9"}, "2.13.9; at least 2.14"),
        ({"version": "2.9.10"}, "2.9.10; at least 2.14"),
        ({"version": ""}, "''; at least 2.14"),
        ({"version": None}, "''; at least 2.14"),
        ({"version": "x.y"}, "'x.y'; at least 2.14"),
        ({"jetstream": False}, "JetStream is not enabled"),
        ({"headers": False}, "headers are disabled"),
        ({"max_payload": 524_287}, "max_payload is 524287; at least 524288 is required"),
        ({"max_payload": None}, "max_payload is None"),
    ],
)
def test_servers(change: dict[str, Any], problem: str) -> None:
    found = check_server({**INFO, **change})
    assert found == "" if not problem else problem in found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, ""),
        ({"max_bytes": 10_000}, ""),
        ({"duplicate_window": 300_000_000_000}, ""),
        ({"allow_direct": None}, "allow_direct is not set, not true"),
        ({"allow_atomic": False}, "allow_atomic is false, not true"),
        ({"allow_msg_ttl": False}, "allow_msg_ttl is false, not true"),
        ({"allow_rollup_hdrs": False}, "allow_rollup_hdrs is false, not true"),
        ({"deny_purge": True}, "deny_purge is true, not false"),
        ({"storage": "memory"}, 'storage is "memory", not "file"'),
        ({"retention": "interest"}, 'retention is "interest", not "limits"'),
        ({"num_replicas": 1}, "num_replicas is 1, not 3"),
        ({"max_age": 5}, "max_age is 5, not 0"),
        ({"max_msgs_per_subject": 1}, "max_msgs_per_subject is 1, not -1"),
        ({"subjects": ["other.>"]}, 'subjects is ["other.>"], not ["s.>"]'),
        ({"max_bytes": 10_000, "discard": "old"}, 'discard is "old", not "new"'),
        ({"duplicate_window": 1_000_000_000}, "duplicate_window is less than 120 seconds"),
        ({"mirror": {"name": "x"}}, "mirror is set"),
        ({"sources": [{"name": "x"}]}, "sources is set"),
        ({"sealed": True}, "it is sealed"),
    ],
)
def test_streams(change: dict[str, Any], problem: str) -> None:
    config = {**stream_config("N", "s.>", 3), **change}
    if not problem:
        check_stream(config, "N", "s.>", 3)
        return
    with pytest.raises(EngineError) as refused:
        check_stream(config, "N", "s.>", 3)
    assert problem in str(refused.value)
    assert "the stream N exists with another configuration" in str(refused.value)


def test_all_differences_are_listed() -> None:
    config = {**stream_config("N", "s.>", 3), "max_age": 5, "storage": "memory"}
    with pytest.raises(EngineError, match=r"storage is .*; max_age is "):
        check_stream(config, "N", "s.>", 3)


def test_one_copy_on_several_servers_is_refused() -> None:
    check_replicas(INFO, 1, False)
    check_replicas({**INFO, "cluster": "c"}, 3, False)
    check_replicas({**INFO, "cluster": "c"}, 1, True)
    with pytest.raises(EngineError, match=r"replicas: .* cluster \(c\).* use 3"):
        check_replicas({**INFO, "cluster": "c"}, 1, False)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsCluster]:
    """Return a running server."""
    cluster = NatsCluster(1)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.close()


def test_a_real_stream_with_another_configuration(server: NatsCluster) -> None:
    bench = NatsBench(server.urls, "other", 1)
    engine = bench.engine()
    config = {"name": "HOOKMQ_wrong", "subjects": ["hmq.wrong.>"], "max_age": 3_600_000_000_000}
    found = bench.loop.run_until_complete(engine._call("STREAM.CREATE.HOOKMQ_wrong", config))
    assert "error" not in found
    wrong = NatsBench(server.urls, "wrong", 1)
    with pytest.raises(EngineError) as refused:
        wrong.engine()
    for text in (
        "max_age is 3600000000000, not 0",
        "allow_atomic is not set",
        "allow_msg_ttl is false",
    ):
        assert text in str(refused.value)
    wrong.close()
    bench.close()


def test_a_real_stream_that_fits_is_used_again(server: NatsCluster) -> None:
    for _ in range(2):
        bench = NatsBench(server.urls, "again", 1)
        bench.engine()
        bench.close()


def test_replicas_need_a_cluster(server: NatsCluster) -> None:
    bench = NatsBench(server.urls, "three", 3)
    with pytest.raises(EngineError, match=r"replicas: 3 copies .* not part of a cluster"):
        bench.engine()
    bench.close()


def test_another_stream_has_the_subjects(server: NatsCluster) -> None:
    bench = NatsBench(server.urls, "mine", 1)
    engine = bench.engine()
    config = {"name": "TAKEN", "subjects": ["hmq.theirs.lane.*"]}
    bench.loop.run_until_complete(engine._call("STREAM.CREATE.TAKEN", config))
    theirs = NatsBench(server.urls, "theirs", 1)
    with pytest.raises(EngineError, match="HOOKMQ_theirs cannot be used: subjects overlap"):
        theirs.loop.run_until_complete(theirs.new().open(1.0))
    theirs.close()
    bench.close()
