"""The targets of the `kafka` and `s3` drivers. Their servers keep data in memory, so tests suspend the servers instead
of killing them.
"""

import gzip
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kafka_mock import KafkaMock
from s3_server import REGION, S3Server

from sinkkill.ledger import Stored

if TYPE_CHECKING:
    from confluent_kafka import Consumer


class KafkaTarget:
    """A topic on librdkafka's mock cluster. Each key belongs to one partition, and messages may be repeated."""

    once = False

    def __init__(self) -> None:
        self._cluster = KafkaMock()
        self._consumer: Consumer | None = None
        self._partitions: tuple[int, ...] = ()
        self._found: dict[int, list[Stored]] = {}
        self.stop, self.start = self._cluster.stop, self._cluster.start

    def sink(self) -> Mapping[str, Any]:
        """Return the driver's name and its settings for this target."""
        target = {
            "servers": self._cluster.servers, "topic": "kills", "key": "${topic}",
            "confirm_timeout": 1, "connect_timeout": 1,
        }  # fmt: skip
        return {"driver": "kafka", "target": target}

    def read(self) -> list[Stored]:
        """Return all messages stored so far, partition by partition. Only new messages are fetched."""
        from confluent_kafka import Consumer, TopicPartition

        if self._consumer is None:
            servers = ",".join(self._cluster.servers)
            self._consumer = Consumer({"bootstrap.servers": servers, "group.id": "read"})
        if not self._partitions:  # the topic may not exist at the first call
            topic = self._consumer.list_topics("kills", 30).topics["kills"]
            self._partitions = tuple(topic.partitions)
        for number in self._partitions:
            found = self._found.setdefault(number, [])
            place = TopicPartition("kills", number, len(found))
            end = self._consumer.get_watermark_offsets(place, 30)[1]
            if len(found) < end:
                self._consumer.assign([place])
            while len(found) < end:
                message = self._consumer.poll(30)
                assert message is not None
                assert message.error() is None
                headers, value = message.headers(), message.value()
                assert headers is not None
                assert value is not None
                id = dict(headers)["hookmq-id"]
                assert isinstance(id, bytes)
                payload = json.loads(value)
                found.append(Stored(id.decode(), payload["key"], payload["number"]))
        return [one for found in self._found.values() for one in found]

    def close(self) -> None:
        """Stop the cluster."""
        if self._consumer is not None:
            self._consumer.close()
        self._cluster.close()


class S3Target:
    """Objects on a moto server, in one folder for each topic."""

    once = True

    def __init__(self) -> None:
        self._server = S3Server()
        self.stop, self.start, self.close = (
            self._server.stop,
            self._server.start,
            self._server.close,
        )
        self._known: dict[tuple[str, str], list[Stored]] = {}
        self._client = self._server.client()
        self._client.create_bucket(
            Bucket="kills", CreateBucketConfiguration={"LocationConstraint": REGION}
        )

    def sink(self) -> Mapping[str, Any]:
        """Return the driver's name and its settings for this target."""
        target = {
            "bucket": "kills", "endpoint": self._server.url, "region": REGION, "folder": "${topic}",
            "access_key": self._server.key, "secret_key": self._server.secret,
            "request_timeout": 2,
        }  # fmt: skip
        return {"driver": "s3", "target": target, "batch": {"messages": 200, "age": "20ms"}}

    def read(self) -> list[Stored]:
        """Return the lines of all objects, sorted by object name. The names contain the offsets."""
        found: list[Stored] = []
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket="kills"):
            for one in page.get("Contents", ()):
                name, etag = one["Key"], one["ETag"]
                if name.startswith("_hookmq/"):
                    continue
                if (name, etag) not in self._known:
                    body = self._client.get_object(Bucket="kills", Key=name)["Body"].read()
                    lines = [json.loads(line) for line in gzip.decompress(body).splitlines()]
                    self._known[name, etag] = [
                        Stored(made["id"], made["payload"]["key"], made["payload"]["number"])
                        for made in lines
                    ]
                found += self._known[name, etag]
        return found
