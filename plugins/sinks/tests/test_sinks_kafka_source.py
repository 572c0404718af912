"""Test the `kafka` source against librdkafka's mock cluster, which is not a full broker."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.source import SourceUnavailable
from hookmq_sinks.sources.kafka import KafkaSource
from hookmq_sinks.testing import SourceContract
from kafka_mock import KafkaMock
from long_tests import skip_unless_wanted

pytestmark = pytest.mark.slow
NUMBERS = itertools.count()
ALWAYS = ("test_messages_arrive_in_order",)
"""The test that runs without HOOKMQ_LONG_TESTS."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[KafkaMock]:
    found = KafkaMock()
    yield found
    found.close()


class TestKafkaSource(SourceContract):
    """Runs the source contract. Each test has its own topic."""

    kind = KafkaSource
    once = True
    more: Mapping[str, Any] = {}

    @pytest.fixture(autouse=True)
    def _topic(self, request: pytest.FixtureRequest) -> None:
        from confluent_kafka import Producer

        skip_unless_wanted(request, ALWAYS)
        cluster: KafkaMock = request.getfixturevalue("cluster")
        self.cluster = cluster
        self.topic = f"t.{next(NUMBERS)}"
        self.producer = Producer({"bootstrap.servers": ",".join(cluster.servers)})
        self.producer.list_topics(self.topic, 10)  # creates it

    def origin_settings(self) -> Mapping[str, Any]:
        return {
            "servers": self.cluster.servers, "topics": [self.topic], "group": f"g-{self.topic}",
            "publish": {"topic": "${topic}/${property.to}"}, "session_timeout": "6s", **self.more,
        }  # fmt: skip

    def produce(self, payloads: Sequence[bytes], to: str = "x", **more: Any) -> None:
        for one in payloads:
            self.producer.produce(self.topic, one, headers={"to": to}, partition=0, **more)
        assert self.producer.flush(30) == 0

    async def send(self, payloads: Sequence[bytes]) -> None:
        self.produce(payloads)

    async def send_poison(self) -> None:
        self.produce([b"x"], "+")

    async def unacknowledged(self) -> int:
        from confluent_kafka import Consumer, TopicPartition

        one = TopicPartition(self.topic, 0)
        found = Consumer(
            {"bootstrap.servers": ",".join(self.cluster.servers), "group.id": f"g-{self.topic}"}
        )
        (committed,) = found.committed([one], timeout=10)
        low, high = found.get_watermark_offsets(one, timeout=10)
        found.close()
        return int(high - max(low, committed.offset))

    async def test_keys_and_headers_are_values(self) -> None:
        self.more = {"publish": {"topic": "a/${key}", "pass_properties": True}}
        source = await self.opened()
        self.produce([b"1"], key=b"k")
        (one,) = await self.take(source, 1)
        await source.close()
        assert (one.topic, one.payload) == ("a/k", b"1")
        assert one.properties.user_property == (("to", "x"),)
        assert self.marks == {f"{self.topic}/0": "0"}

    async def test_a_mark_beyond_the_end_is_ignored(self) -> None:
        self.marks[f"{self.topic}/0"] = "1000"  # the topic was created anew
        source = await self.opened()
        self.produce([b"1"])
        (one,) = await self.take(source, 1)
        await source.close()
        assert one.payload == b"1"

    async def test_a_topic_that_is_missing_needs_an_operator(self) -> None:
        self.more = {"topics": ["nothing"]}
        source = self.make()
        with pytest.raises(SourceUnavailable, match="topic nothing does not exist") as caught:
            await source.open()
        assert caught.value.permanent
        await source.close()

    async def stop_origin(self) -> None:
        pytest.skip("librdkafka reconnects by itself")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topics": []}, "topics: empty"),
        ({"topics": ["a/b"]}, "topics: 'a/b' is not a topic"),
        ({"servers": ["x"]}, "expected HOST:PORT"),
        ({"servers": ["u@x:1"]}, "contains a user"),
        ({"options": {"group.id": "x"}}, "options: group.id cannot be set here"),
    ],
)
def test_mistakes_are_reported(given: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        bind_values(KafkaSource.Settings, {"topics": ["a"], "publish": {"topic": "t"}, **given})
    assert message in str(caught.value)
