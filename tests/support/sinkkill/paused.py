"""The targets of the drivers `kafka` and `s3` for kills. Their data is in memory, so they are paused, not killed."""

import gzip
import json
from collections.abc import Mapping
from typing import Any

from kafka_mock import KafkaMock
from s3_server import REGION, S3Server

from sinkkill.ledger import Stored


class KafkaTarget:
    """A topic of librdkafka's mock cluster. A key has one partition, and messages may be repeated."""

    once = False

    def __init__(self) -> None:
        self._cluster = KafkaMock()
        self.stop, self.start, self.close = (
            self._cluster.stop,
            self._cluster.start,
            self._cluster.close,
        )

    def sink(self) -> Mapping[str, Any]:
        """Return the driver and its target."""
        target = {
            "servers": self._cluster.servers, "topic": "kills", "key": "${topic}",
            "confirm_timeout": 2, "connect_timeout": 2,
        }  # fmt: skip
        return {"driver": "kafka", "target": target}

    def read(self) -> list[Stored]:
        """Return the messages of all partitions."""
        from confluent_kafka import Consumer, TopicPartition

        servers = ",".join(self._cluster.servers)
        consumer = Consumer({"bootstrap.servers": servers, "group.id": "read"})
        found: list[Stored] = []
        try:
            for number in consumer.list_topics("kills", 30).topics["kills"].partitions:
                place = TopicPartition("kills", number, 0)
                left = consumer.get_watermark_offsets(place, 30)[1]
                consumer.assign([place])
                while left:
                    message = consumer.poll(30)
                    assert message is not None
                    assert message.error() is None
                    headers, value = message.headers(), message.value()
                    assert headers is not None
                    assert value is not None
                    id = dict(headers)["hookmq-id"]
                    assert isinstance(id, bytes)
                    payload = json.loads(value)
                    found.append(Stored(id.decode(), payload["key"], payload["number"]))
                    left -= 1
        finally:
            consumer.close()
        return found


class S3Target:
    """Objects of moto's server, in a folder for each topic."""

    once = True

    def __init__(self) -> None:
        self._server = S3Server()
        self.stop, self.start, self.close = (
            self._server.stop,
            self._server.start,
            self._server.close,
        )
        self._server.client().create_bucket(
            Bucket="kills", CreateBucketConfiguration={"LocationConstraint": REGION}
        )

    def sink(self) -> Mapping[str, Any]:
        """Return the driver and its target."""
        target = {
            "bucket": "kills", "endpoint": self._server.url, "region": REGION, "folder": "${topic}",
            "access_key": self._server.key, "secret_key": self._server.secret,
            "request_timeout": 2,
        }  # fmt: skip
        return {"driver": "s3", "target": target}

    def read(self) -> list[Stored]:
        """Return the lines of all objects by their names, which contain the offsets."""
        client, found = self._server.client(), []
        for page in client.get_paginator("list_objects_v2").paginate(Bucket="kills"):
            for one in page.get("Contents", ()):
                if one["Key"].startswith("_hookmq/"):
                    continue
                body = client.get_object(Bucket="kills", Key=one["Key"])["Body"].read()
                for line in gzip.decompress(body).splitlines():
                    made = json.loads(line)
                    payload = made["payload"]
                    if isinstance(payload, str):
                        payload = json.loads(payload)
                    found.append(Stored(made["id"], payload["key"], payload["number"]))
        return found
