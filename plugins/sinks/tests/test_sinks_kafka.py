"""Test the `kafka` driver against librdkafka's mock cluster: the driver contract, messages, and mistakes."""

import asyncio
import itertools
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.driver import DriverContext, Rejected, TargetUnavailable
from hookmq_sinks.drivers.kafka import KafkaDriver, KafkaSettings
from hookmq_sinks.record import Record
from hookmq_sinks.testing import DriverContract, make_batch, make_record
from kafka_mock import KafkaMock

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaMock]:
    found = KafkaMock()
    yield found
    found.close()


class TestKafka(DriverContract):
    """Runs the driver contract. Each test has its own topic. All messages have the same key, so they share one
    partition.
    """

    kind = KafkaDriver
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    def _topic(self, cluster: KafkaMock) -> None:
        self.cluster = cluster
        self.name = f"t{next(NUMBERS)}"
        self.create(self.name)

    def create(self, name: str) -> None:
        """Create a topic, which has four partitions in the mock cluster."""
        admin = AdminClient({"bootstrap.servers": ",".join(self.cluster.servers)})
        for _ in range(100):
            if admin.list_topics(name, 10).topics[name].partitions:
                return
            admin.poll(0.05)
        raise AssertionError(f"the topic {name} was not created")

    def target_settings(self) -> Mapping[str, Any]:
        return {
            "servers": self.cluster.servers,
            "topic": self.name,
            "key": "one",
            "max_message": 60_000,
            "confirm_timeout": 1.5,
            "connect_timeout": 1.5,
            **self.more,
        }

    def messages(self, topic: str = "") -> list[Any]:
        """Return a topic's messages, by partition."""
        consumer = Consumer(
            {"bootstrap.servers": ",".join(self.cluster.servers), "group.id": "test"}
        )
        found: list[Any] = []
        try:
            topic = topic or self.name
            for number in consumer.list_topics(topic, 30).topics[topic].partitions:
                place = TopicPartition(topic, number, 0)
                end = consumer.get_watermark_offsets(place, 30)[1]
                consumer.assign([place])
                while len([one for one in found if one.partition() == number]) < end:
                    message = consumer.poll(30)
                    assert message is not None
                    assert message.error() is None
                    found.append(message)
        finally:
            consumer.close()
        return found

    async def stored_ids(self) -> list[str]:
        return [dict(one.headers())["hookmq-id"].decode() for one in self.messages()]

    def poison(self, offset: int) -> Record:
        return make_record(offset, "x" * 70_000)

    async def stop_target(self) -> None:
        self.cluster.stop()

    async def start_target(self) -> None:
        self.cluster.start()

    @pytest.fixture(autouse=True)
    def _running(self, cluster: KafkaMock) -> Iterator[None]:
        yield
        cluster.start()

    async def test_a_message_has_a_key_headers_and_a_time(self) -> None:
        self.more = {"key": "${payload.n}", "headers": {"plant": "${topic.1}"}}
        driver, _ = await self._opened()
        record = make_record(
            3, content_type="text/plain",
            user_properties=(("unit", "°C"), ("unit", "K"), ("Hookmq-Id", "forged"), ("mqtt-topic", "forged")),
        )  # fmt: skip
        await driver.write(make_batch([record]))
        await driver.close()
        (found,) = self.messages()
        assert (found.key(), found.value()) == (b"3", b'{"n":3}')
        assert found.timestamp()[1] == 1_767_225_603_000
        assert found.headers() == [
            ("unit", "°C".encode()),
            ("unit", b"K"),
            ("plant", b"plant"),
            ("hookmq-id", record.id.encode()),
            ("mqtt-topic", b"plant/a"),
            ("mqtt-content-type", b"text/plain"),
            ("mqtt-client-id", b"c"),
        ]

    async def test_the_key_of_the_sink_orders_messages_in_a_partition(self) -> None:
        name = f"{self.name}.many"
        self.create(name)
        self.more = {"topic": name, "key": ""}
        driver, _ = await self._opened()
        records = [make_record(n, key=f"k{n % 20}") for n in range(200)]
        for at in range(0, 200, 50):
            await driver.write(make_batch(records[at : at + 50]))
        await driver.close()
        found = self.messages(name)
        assert len({one.partition() for one in found}) > 1
        for key in range(20):
            mine = [one for one in found if one.key() == f"k{key}".encode()]
            assert len({one.partition() for one in mine}) == 1
            assert [one.value() for one in mine] == [b'{"n":%d}' % n for n in range(key, 200, 20)]

    @pytest.mark.parametrize(("tombstones", "value"), [(True, None), (False, b"")])
    async def test_an_empty_payload_can_delete_its_key(
        self, tombstones: bool, value: bytes | None
    ) -> None:
        self.more = {"tombstones": tombstones, "key": ""}
        driver, _ = await self._opened()
        await driver.write(make_batch([make_record(0, b"", key="a")]))
        await driver.close()
        assert self.messages()[0].value() == value

    async def test_topics_follow_a_template(self) -> None:
        self.create(f"{self.name}.plant.b")
        self.more = {"topic": f"{self.name}/${{topic}}"}
        driver, _ = await self._opened()
        with pytest.raises(Rejected, match="not a topic of Kafka") as caught:
            await driver.write(
                make_batch([make_record(0, topic="plant/b"), make_record(1, topic="no topic")])
            )
        assert list(caught.value.reasons) == [1]
        assert not caught.value.stored
        await driver.write(make_batch([make_record(0, topic="plant/b")]))
        await driver.close()
        assert len(self.messages(f"{self.name}.plant.b")) == 1

    async def test_check_finds_a_missing_topic_without_creating_it(self) -> None:
        self.more = {"topic": f"{self.name}-missing"}
        driver, _ = await self._opened()
        for _ in range(2):
            for sample in (self.record(0), None):
                (problem,) = await driver.check(sample)
                assert problem.key == "topic"
                assert f"the topic {self.name}-missing does not exist" in problem.message
        await driver.close()

    async def test_check_finds_a_large_sample(self) -> None:
        driver, _ = await self._opened()
        (problem,) = await driver.check(self.poison(0))
        assert problem.key == "max_message"
        await driver.close()

    @pytest.mark.parametrize(
        ("code", "template", "rejected", "word"),
        [
            (KafkaError.UNKNOWN_TOPIC_OR_PART, "a", None, "the topic a does not exist"),
            (KafkaError._UNKNOWN_TOPIC, "${topic}", "the topic a does not exist", ""),
            (KafkaError.TOPIC_AUTHORIZATION_FAILED, "a", None, "may not write to a"),
            (KafkaError.INVALID_RECORD, "a", "a: Broker", ""),
        ],
    )
    def test_errors_of_a_message(
        self, code: int, template: str, rejected: str | None, word: str
    ) -> None:
        self.more = {"topic": template}
        driver: Any = self.make()
        if rejected:
            assert driver._reason_of(KafkaError(code), "a").startswith(rejected)
            return
        with pytest.raises(TargetUnavailable, match=word) as caught:
            driver._reason_of(KafkaError(code), "a")
        assert caught.value.permanent

    def test_messages_of_a_refused_request_are_produced_again_alone(self) -> None:
        driver: Any = self.make()
        asked: list[list[int]] = []

        def produce(producer: object, messages: Mapping[int, Any]) -> dict[int, KafkaError]:
            # The cluster refuses the request with the messages 1 to 3, because of 2.
            asked.append(list(messages))
            bad = [1, 2, 3] if len(messages) > 1 else [n for n in messages if n == 2]
            return {n: KafkaError(KafkaError.MSG_SIZE_TOO_LARGE) for n in bad}

        driver._produce_some = produce
        found = driver._produce(None, [driver._message(self.record(n)) for n in range(5)])
        assert list(found) == [2]
        assert asked == [[0, 1, 2, 3, 4], [1], [2], [3]]

    async def test_nothing_is_written_after_a_cancelled_write(self) -> None:
        self.more = {"confirm_timeout": 60.0}
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(0)]))
        self.cluster.stop()
        try:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await driver.write(make_batch([self.record(n) for n in range(1, 4)]))
            began = time.monotonic()
            await driver.close()
            assert time.monotonic() - began < 5
        finally:
            self.cluster.start()
        driver, _ = await self._opened()
        await driver.write(make_batch([self.record(9)]))
        await driver.close()
        # A request that was on its way may arrive. What was queued does not follow.
        assert (await self.stored_ids())[-1] == self.record(9).id


class TestUnreachable:
    """Tests for clusters that refuse connections."""

    async def failure(self, **settings: Any) -> TargetUnavailable:
        driver = KafkaDriver(
            bind_values(KafkaSettings, {"topic": "a", "connect_timeout": 1.0, **settings}),
            DriverContext("test", "test", "5eed"),
        )
        with pytest.raises(TargetUnavailable) as caught:
            await driver.open()
        await driver.close()
        return caught.value

    async def test_nobody_listens(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
        error = await self.failure(servers=[f"127.0.0.1:{port}"])
        assert "Connection refused" in error.reason
        assert "ms in state" not in error.reason
        assert not error.permanent

    async def test_a_server_without_tls(self, cluster: KafkaMock) -> None:
        error = await self.failure(servers=cluster.servers, tls={})
        # The library names the mistake, unless the server ends the connection first.
        assert error.reason.startswith("ssl://")
        assert "PLAINTEXT broker listener?" in error.reason or "Disconnected" in error.reason

    async def test_a_server_without_users(self, cluster: KafkaMock) -> None:
        sasl = {"user": "u", "password": "hunter2"}
        error = await self.failure(servers=cluster.servers, sasl=sasl)
        assert "hunter2" not in error.reason
        assert "SASL" in error.reason

    async def test_a_missing_file(self, tmp_path: Path) -> None:
        error = await self.failure(tls={"ca_file": str(tmp_path / "no.pem")})
        assert error.reason == f"{tmp_path}/no.pem: No such file or directory"
        assert error.permanent

    async def test_an_unknown_option(self) -> None:
        error = await self.failure(options={"no.such.option": "1"})
        assert "no.such.option" in error.reason
        assert error.permanent

    def test_the_options_of_tls_and_users(self, tmp_path: Path) -> None:
        ca = trustme.CA()
        ca.cert_pem.write_to_path(tmp_path / "ca.pem")
        given = {
            "topic": "a",
            "tls": {"ca_file": str(tmp_path / "ca.pem"), "cert_file": "/c.pem"},
            "sasl": {"user": "u", "password": "hunter2", "mechanism": "SCRAM-SHA-256"},
            "options": {"broker.address.family": "v4"},
        }
        driver = KafkaDriver(bind_values(KafkaSettings, given), DriverContext("t", "t:1/2", "5eed"))
        found = driver._options()
        found.pop("error_cb")
        assert found == {
            "acks": "all",
            "bootstrap.servers": "127.0.0.1:9092",
            "broker.address.family": "v4",
            "client.id": "hookmq-sinks t:1/2",
            "compression.type": "lz4",
            "enable.idempotence": True,
            "linger.ms": 5.0,
            "log.connection.close": "false",
            "message.max.bytes": 1_000_000,
            "message.timeout.ms": 25_000,
            "partitioner": "murmur2_random",
            "sasl.mechanisms": "SCRAM-SHA-256",
            "sasl.password": "hunter2",
            "sasl.username": "u",
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": f"{tmp_path}/ca.pem",
            "ssl.certificate.location": "/c.pem",
            "ssl.key.location": "/c.pem",
            "topic.metadata.propagation.max.ms": 5000,
        }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topic": "a b"}, "topic: not a topic of Kafka: 'a b'"),
        ({"servers": []}, "servers: empty"),
        ({"servers": ["a"]}, "servers: 'a': expected HOST:PORT"),
        ({"servers": ["u:hunter2@a:1"]}, "servers: an address contains a user"),
        ({"headers": {"mqtt-topic": "a"}}, "headers: 'mqtt-topic' is a name of the driver's own"),
        ({"options": {"acks": "0"}}, "options: acks cannot be set here"),
        ({"options": {"test.mock.num.brokers": "1"}}, "options: test.mock"),
        ({"sasl": {"password": "hunter2"}}, "user: missing or empty"),
        ({"compression": "zip"}, "compression"),
    ],
)
def test_mistakes_in_settings(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(KafkaSettings, {"topic": "a", **change})
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_topic_is_required() -> None:
    with pytest.raises(ConfigError, match="topic"):
        bind_values(KafkaSettings, {})
