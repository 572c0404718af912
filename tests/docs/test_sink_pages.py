"""Test that the configuration on each page docs/how-to/sink-DRIVER.md delivers a message to a real server, as the page
says.

One broker runs the sinks of all pages, because starting the broker and the servers takes most of the time.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from influxdb_server import InfluxDbServer
from kafka_mock import KafkaMock
from nats_server import NatsServer
from pages import blocks
from postgres_server import PostgresServer
from rabbitmq_server import RabbitMqServer
from redis_server import RedisServer
from s3_server import S3Server
from serving import serving
from sink_broker import SinkBroker, until
from workspace import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("sink_pages")]

DRIVERS = ("postgres", "redis", "nats", "rabbitmq", "influxdb", "kafka", "s3")
SUBJECT = "mqtt.plant.press.celsius"


@dataclass
class Place:
    """A server, the target settings that differ from the page, and a function that reads the delivered messages."""

    server: Any
    settings: dict[str, Any]
    read: Callable[[], Any]
    secrets: dict[str, str] = field(default_factory=dict)


def start_postgres() -> Place:
    import psycopg

    server = PostgresServer()

    def read() -> list[Any]:
        query = "SELECT machine, celsius, to_regclass('hookmq_positions') IS NOT NULL FROM readings"
        with psycopg.connect(server.url) as found:
            return found.execute(query).fetchall()

    return Place(server, {"url": server.url}, read, {"PLANT_PASSWORD": "none"})


def start_redis() -> Place:
    import redis

    server = RedisServer()

    def read() -> list[Any]:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            found: Any = client.xrange("readings")
        return [(one["machine"], float(one["celsius"])) for _, one in found]

    return Place(server, {"url": server.url}, read)


def start_nats() -> Place:
    import nats

    server = NatsServer()

    async def make() -> None:
        client = await nats.connect(server.url)
        await client.jetstream().add_stream(name="MQTT", subjects=["mqtt.>"])
        await client.close()

    async def read() -> list[Any]:
        client = await nats.connect(server.url)
        stream = client.jetstream()
        count = (await stream.stream_info("MQTT")).state.messages
        found = [await stream.get_msg("MQTT", number + 1) for number in range(count)]
        await client.close()
        return [(one.subject, one.data) for one in found]

    asyncio.run(make())
    return Place(server, {"servers": [server.url]}, lambda: asyncio.run(read()))


def start_rabbitmq() -> Place:
    server = RabbitMqServer()

    async def make() -> None:
        async with await server.client() as found:
            channel = await found.channel()
            queue = await channel.declare_queue("readings", durable=True)
            await queue.bind("amq.topic", "plant.*.celsius")

    async def read() -> list[Any]:
        async with await server.client() as found:
            channel = await found.channel()
            queue = await channel.get_queue("readings")
            got = await queue.get(fail=False)
            return [(got.routing_key, got.body, got.headers["machine"])] if got else []

    asyncio.run(make())
    settings = {"url": server.url, "user": "guest"}
    return Place(server, settings, lambda: asyncio.run(read()), {"RABBITMQ_PASSWORD": "guest"})


def start_influxdb() -> Place:
    server = InfluxDbServer()
    server.query("CREATE DATABASE plant")

    def read() -> list[Any]:
        found = server.query("SELECT machine, celsius FROM readings")
        return [tuple(row[1:]) for one in found for row in one["values"]]

    return Place(server, {"url": server.url}, read)


def start_kafka() -> Place:
    from confluent_kafka import Consumer

    server = KafkaMock()
    options = {
        "bootstrap.servers": ",".join(server.servers),
        "group.id": "test",
        "auto.offset.reset": "earliest",
    }

    def read() -> list[Any]:
        consumer = Consumer(options)
        consumer.subscribe(["plant-readings"])
        got = consumer.poll(20)
        consumer.close()
        return [] if got is None or got.error() else [(got.key(), got.value())]

    return Place(server, {"servers": server.servers}, read)


def start_s3() -> Place:
    server = S3Server()
    client = server.client()
    client.create_bucket(
        Bucket="lake", CreateBucketConfiguration={"LocationConstraint": "eu-central-1"}
    )

    def read() -> list[Any]:
        from pyarrow import parquet  # type: ignore[import-untyped]

        listed = client.list_objects_v2(Bucket="lake", Prefix="plant/dt=").get("Contents", ())
        rows: list[Any] = []
        for one in listed:
            data = client.get_object(Bucket="lake", Key=one["Key"])["Body"].read()
            rows += parquet.read_table(BytesIO(data)).to_pylist()
        return [(row["machine"], row["celsius"]) for row in rows]

    secrets = {"LAKE_KEY": server.key, "LAKE_SECRET": server.secret}
    return Place(server, {"endpoint": server.url}, read, secrets)


STARTS: Mapping[str, Callable[[], Place]] = {
    "postgres": start_postgres,
    "redis": start_redis,
    "nats": start_nats,
    "rabbitmq": start_rabbitmq,
    "influxdb": start_influxdb,
    "kafka": start_kafka,
    "s3": start_s3,
}
EXPECTED = {
    "postgres": [("press", 21.5, True)],
    "redis": [("press", 21.5)],
    "nats": [(SUBJECT, b"21.5")],
    "rabbitmq": [("plant.press.celsius", b"21.5", "press")],
    "influxdb": [("press", 21.5)],
    "kafka": [(b"press", b"21.5")],
    "s3": [("press", 21.5)],
}


def shown(driver: str) -> Any:
    """Return the configuration shown on a driver's page."""
    page = ROOT / "docs" / "how-to" / f"sink-{driver}.md"
    (block,) = [block for block in blocks(page) if block.kind == "yaml config"]
    return yaml.safe_load(block.text)


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Place | str]]:
    """Start all installed servers at the same time. For each of the others, return the reason why it is missing."""

    def start(driver: str) -> Place | str:
        try:
            return STARTS[driver]()
        except pytest.skip.Exception as error:
            return str(error)

    with ThreadPoolExecutor() as pool:
        found = dict(zip(DRIVERS, pool.map(start, DRIVERS), strict=True))
    yield found
    for place in found.values():
        if isinstance(place, Place):
            place.server.close()


@pytest.fixture(scope="module")
def broker(places: dict[str, Place | str]) -> Iterator[SinkBroker]:
    """Run a broker with the sinks of all pages, and publish the pages' message once."""
    sinks: list[Any] = []
    secrets: dict[str, str] = {}
    for driver in DRIVERS:
        place = places[driver]
        if isinstance(place, Place):
            (sink,) = shown(driver)["plugins"][1]["config"]["sinks"]
            sinks.append(
                {**sink, "batch": {"age": "50ms"}, "target": sink["target"] | place.settings}
            )
            secrets |= place.secrets
    config = shown("postgres")
    config["listeners"] = [
        {"name": "tcp", "bind": "127.0.0.1:0"},
        {"name": "http", "type": "http", "bind": "127.0.0.1:0"},
    ]
    with TemporaryDirectory() as name:
        folder = Path(name)
        storage, plugin = config["plugins"]
        storage["config"]["path"] = str(folder / "state")
        plugin["config"] = {"path": str(folder / "sinks"), "sinks": sinks}
        config["plugins"].append(
            {"use": "admin", "config": {"first_token_file": str(folder / "token")}}
        )
        (folder / "hookmq.yaml").write_text(json.dumps(config))
        with serving("-c", str(folder / "hookmq.yaml"), environ=secrets) as served:
            found = SinkBroker(folder, served)
            found.publish(b"21.5", "plant/press/celsius")
            try:
                yield found
            finally:
                found.thread.call(found.client.disconnect)
                found.thread.close()


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_message_of_the_page_arrives(
    driver: str, places: dict[str, Place | str], broker: SinkBroker
) -> None:
    place = places[driver]
    if not isinstance(place, Place):
        pytest.skip(place)
    (sink,) = shown(driver)["plugins"][1]["config"]["sinks"]
    until(lambda: broker.ask("GET", f"/sinks/{sink['name']}")["lag"] == 0, sink["name"])
    assert broker.ask("POST", f"/sinks/{sink['name']}/test", {}) == {"problems": []}
    assert place.read() == EXPECTED[driver]


def test_each_driver_has_a_page() -> None:
    found = {page.stem.removeprefix("sink-") for page in (ROOT / "docs/how-to").glob("sink-*.md")}
    assert found == set(DRIVERS)
