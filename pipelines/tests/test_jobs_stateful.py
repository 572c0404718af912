"""Test the jobs presence, anomaly and sparkplug with the configurations that they ship with and a real broker. Streams
and batches return the same rows.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import paho.mqtt.client as paho
import pytest
from broker import TOKEN, WAIT, Broker, running
from mqtt_pipelines.build import build
from mqtt_pipelines.conf import Conf, load
from mqtt_pipelines.run import run
from mqtt_pipelines.settings import PipelineError
from mqtt_pipelines.sources import open_batch
from mqtt_pipelines.transforms import tahu
from mqtt_pipelines.transforms.anomaly import alerts
from mqtt_pipelines.transforms.presence import presence
from mqtt_pipelines.transforms.silver import silver
from mqtt_pipelines.transforms.sparkplug import dead_letters, metrics
from mqtt_pipelines.transforms.stateful import PROVIDER
from paho.mqtt.enums import CallbackAPIVersion
from pyspark.sql import Row, SparkSession
from pyspark_mqtt.publisher import Message
from rows import ordered

CONF = Path(__file__).parents[1] / "conf"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    stream = {"topics": ["plant/#", "spBv1.0/#"], "partitions": 1}
    with running(tmp_path_factory.mktemp("broker"), stream=stream) as started:
        yield started


@pytest.fixture(autouse=True)
def provider(spark: SparkSession) -> Iterator[None]:
    yield
    spark.conf.unset(PROVIDER)


def configured(broker: Broker, folder: Path, job: str, *options: str) -> Conf:
    tables = ("presence", "alerts", "metrics", "dead_letter")
    text = (CONF / f"{job}.yaml").read_text()
    paths = [f"tables.{name}.path={folder}/{name}" for name in tables if f"  {name}:" in text]
    given = [
        f"source.mqtt.url=http://127.0.0.1:{broker.api_port}",
        "source.mqtt.stream=all",
        f"checkpoints={folder}/checkpoints",
    ]
    return load(CONF / f"{job}.yaml", [*given, *paths, *options], [job], {"SPARK_TOKEN": TOKEN})


def once(spark: SparkSession, conf: Conf, job: str) -> None:
    run(spark, build(spark, conf, [job]), conf.name, once=True)


def table(spark: SparkSession, folder: Path) -> list[Row]:
    return ordered(spark.read.parquet(str(folder)).collect())


@contextmanager
def client(broker: Broker, topic: str, will: str = "") -> Iterator[tuple[Any, SimpleQueue[Any]]]:
    """Yield a client and a queue with the messages that it receives."""
    got: SimpleQueue[Any] = SimpleQueue()
    ready: SimpleQueue[Any] = SimpleQueue()
    made = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    made.on_message = lambda client, data, message: got.put(message)
    made.on_connect = lambda client, *more: client.subscribe(topic, qos=1)
    made.on_subscribe = lambda *more: ready.put(None)
    if will:
        made.will_set(will, b"offline", qos=1)
    made.connect("127.0.0.1", broker.mqtt_port)
    made.loop_start()
    try:
        ready.get(timeout=WAIT)
        yield made, got
    finally:
        made.loop_stop()


def test_presence(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    with (
        client(broker, "plant/+/status") as (_, got),
        client(broker, "nothing", will="plant/d1/status") as (device, _),
    ):
        device.publish("plant/d1/status", b"online", qos=1).wait_for_publish(WAIT)
        device.publish("plant/d1/state", b"{}", qos=1).wait_for_publish(WAIT)
        assert got.get(timeout=WAIT).payload == b"online"
        device.loop_stop()
        device._sock_close()  # without DISCONNECT: its will is published
        assert got.get(timeout=WAIT).payload == b"offline"
    broker.publish([Message("plant/d2/state", b"{}") for _ in range(5)])
    conf = configured(broker, tmp_path, "presence", "presence.gap=1h", "presence.slack=0s")
    once(spark, conf, "presence")
    [row] = table(spark, tmp_path / "presence")
    assert (row.device, row.messages, row.how) == ("d1", 1, "lifecycle")
    assert row.online_at < row.offline_at
    assert row.seconds == pytest.approx((row.offline_at - row.online_at).total_seconds())
    assert conf.presence is not None
    whole = presence(open_batch(spark, conf.source), conf.presence).collect()
    assert [one for one in whole if one.offline_at is not None] == [row]
    assert [(r.device, r.messages) for r in whole if r.offline_at is None] == [("d2", 5)]


def test_anomaly(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    def send(*values: float) -> None:
        now = int(time.time() * 1000)
        broker.publish(
            Message(f"plant/a{n % 2}/state", b'{"celsius": %f, "at": %d}' % (value, now))
            for n, value in enumerate(values)
        )

    publish = f"anomaly.publish.mqtt.brokerUrl=mqtt://127.0.0.1:{broker.mqtt_port}"
    conf = configured(broker, tmp_path, "anomaly", publish)
    assert conf.silver is not None
    assert conf.anomaly is not None

    def ids(found: list[Row]) -> set[str]:
        return {f"plant-alert-{r.log_id}-{r.partition}-{r.offset}-celsius" for r in found}

    def published(got: SimpleQueue[Any], count: int) -> dict[str, Any]:
        messages = [got.get(timeout=WAIT) for _ in range(count)]
        return {dict(one.properties.UserProperty)["message-id"]: one for one in messages}

    with client(broker, "alerts/#") as (_, got):
        send(*[20.0, 21.0] * 40, 90.0, 21.0)
        once(spark, conf, "anomaly")
        [first] = table(spark, tmp_path / "alerts")
        assert (first.device, first.metric, first.value) == ("a0", "celsius", 90.0)
        [(name, message)] = published(got, 1).items()
        assert {name} == ids([first])
        assert message.topic == "alerts/a0/celsius"
        assert json.loads(message.payload)["value"] == 90.0
        # What is usual is known from the run before.
        send(20.0, 300.0)
        once(spark, conf, "anomaly")
        both = table(spark, tmp_path / "alerts")
        assert {row.value for row in both} == {90.0, 300.0}
        assert ids(both) == {name, *published(got, 1)}
        raw = open_batch(spark, conf.source)
        assert ordered(alerts(silver(raw, conf.silver), conf.anomaly).collect()) == both
        # With the checkpoint gone they are published again, under the same names.
        anew = replace(
            conf, checkpoints=f"{tmp_path}/others", tables=replace(conf.tables, alerts=None)
        )
        once(spark, anew, "anomaly")
        assert published(got, 2).keys() == ids(both)
        assert got.empty()


def test_alerts_that_go_nowhere(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    text = (CONF / "anomaly.yaml").read_text()
    head, rest = text.split("  publish:\n")
    (tmp_path / "a.yaml").write_text(head + "\ntables: {}\n\n" + rest[rest.index("spark:") :])
    conf = load(tmp_path / "a.yaml", [], ["anomaly"], {"SPARK_TOKEN": TOKEN})
    with pytest.raises(PipelineError, match=r"give anomaly\.publish or tables\.alerts"):
        build(spark, conf, ["anomaly"])


def test_sparkplug(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    def payload(*given: dict[str, Any]) -> bytes:
        data: bytes = tahu.messages()["Payload"](metrics=given, timestamp=1000).SerializeToString()
        return data

    named = {"name": "rpm", "alias": 1, "datatype": 3, "int_value": 1}
    birth = Message("spBv1.0/plant/NBIRTH/n1", payload(named))
    data = [
        Message("spBv1.0/plant/NDATA/n1", payload({"alias": 1, "int_value": n})) for n in range(20)
    ]
    conf = configured(broker, tmp_path, "sparkplug")
    broker.publish([birth, *data, Message("spBv1.0/plant/NDATA/n1", b"\xff")])
    once(spark, conf, "sparkplug")
    broker.kill()
    broker.start()
    conf = configured(broker, tmp_path, "sparkplug")
    broker.publish([*data, Message("spBv1.0/plant/NDATA/n2", payload({"alias": 1}))])
    once(spark, conf, "sparkplug")
    found = table(spark, tmp_path / "metrics")
    values = [row.value_long for row in sorted(found, key=lambda row: row.offset)]
    assert values == [1, *range(20), *range(20)]
    assert {(row.metric, row.datatype, row.edge_node) for row in found} == {("rpm", "Int32", "n1")}
    dead = table(spark, tmp_path / "dead_letter")
    assert sorted((row.reason, row.topic[-2:]) for row in dead) == [
        ("bad_payload", "n1"),
        ("unknown_metric", "n2"),
    ]
    assert conf.sparkplug is not None
    raw = open_batch(spark, conf.source)
    assert ordered(metrics(raw, conf.sparkplug).collect()) == found
    assert ordered(dead_letters(raw, conf.sparkplug).collect()) == dead
