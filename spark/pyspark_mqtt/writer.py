"""Publish rows with QoS 1, over one connection for each task. A task is done when all its messages are acknowledged.

Delivery is at least once: MQTT has no transactions, so a repeated task or batch publishes its messages again. The
messages are then identical. Receivers can recognize duplicates by the user property ``message-id``.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from pyspark_mqtt.errors import MqttError
from pyspark_mqtt.options import Options, topic_fault
from pyspark_mqtt.portable import Portable
from pyspark_mqtt.publisher import Message, Publisher

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("pyspark_mqtt")
MESSAGE_ID = "message-id"


@dataclass
class PublishedMessages(WriterCommitMessage):
    """The number of messages that a task published and the broker acknowledged."""

    count: int


class MqttBatchWriter(Portable, DataSourceArrowWriter):
    """The writer of ``df.write.format("mqtt").mode("append")``."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish a task's rows. This runs on an executor, and blocks until all messages are acknowledged. Raises
        MqttError.
        """
        return write(self.options, iterator)


class MqttStreamWriter(Portable, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream.format("mqtt")``."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Publish a task's rows. This runs on an executor, and blocks until all messages are acknowledged. Raises
        MqttError.
        """
        return write(self.options, iterator)


def write(options: Options, batches: Iterator[pa.RecordBatch]) -> PublishedMessages:
    """Publish batches over one connection. A task without rows does not connect."""
    publisher: Publisher | None = None
    count = 0
    for batch in batches:
        for message in messages(options, batch):
            if publisher is None:
                publisher = Publisher(options, client_id(options)).__enter__()
            try:
                publisher.publish(message)
            except BaseException as error:
                publisher.__exit__(type(error), error, error.__traceback__)
                raise
            count += 1
    if publisher is not None:
        with_end = publisher
        try:
            with_end.finish()
        finally:
            with_end.__exit__(None, None, None)
    return PublishedMessages(count)


def client_id(options: Options) -> str:
    """Return a client id for one attempt of a task. If two attempts shared an id, the second would disconnect the
    first."""
    context = TaskContext.get()
    task = (
        f"{context.stageId()}-{context.partitionId()}-{context.attemptNumber()}" if context else "0"
    )
    return f"{options.text('clientIdPrefix')}-{task}-{uuid.uuid4().hex[:12]}"


def messages(options: Options, batch: pa.RecordBatch) -> Iterator[Message]:
    """Yield a batch's messages. Raises MqttError for a row that cannot be published."""
    names = batch.schema.names
    rows = batch.num_rows

    def column(name: str, default: Any = None) -> list[Any]:
        if name not in names:
            return [default] * rows
        return [default if value is None else value for value in batch.column(name).to_pylist()]

    payloads = column("payload" if "payload" in names else "value", b"")
    headers = column("headers", ())
    ids = column("message_id")
    if "message_id" not in names and "partition" in names and "offset" in names:
        prefix = options.text("messageIdPrefix")
        ids = [
            f"{prefix}-{partition}-{offset}"
            for partition, offset in zip(column("partition"), column("offset"), strict=True)
        ]
    for topic, payload, qos, retain, kind, response, correlation, pairs, message_id in zip(
        column("topic", options.text("topic")),
        payloads,
        column("qos", options.number("qos")),
        column("retain", options.flag("retain")),
        column("content_type"),
        column("response_topic"),
        column("correlation_data"),
        headers,
        ids,
        strict=True,
    ):
        if fault := topic_fault(topic):
            raise MqttError(
                f"Topic {topic!r} {fault}, and cannot be published to: filter such rows out."
            )
        if qos not in (0, 1, 2):
            raise MqttError(f"A row has qos {qos}: it must be 0, 1 or 2.")
        yield Message(
            topic,
            payload.encode() if isinstance(payload, str) else payload,
            min(qos, 1),  # A repeated task would resend QoS 2 messages, too.
            retain,
            kind,
            response,
            correlation,
            _headers(pairs, message_id),
        )


def _headers(pairs: Any, message_id: str | None) -> tuple[tuple[str, str], ...]:
    """Return the user properties. A ``message-id`` from the row's headers is replaced by the new one."""
    found = []
    for pair in pairs:
        if pair is None or (message_id is not None and pair["key"] == MESSAGE_ID):
            continue
        try:
            found.append((pair["key"] or "", (pair["value"] or b"").decode()))
        except UnicodeDecodeError:
            raise MqttError(
                f"Header {pair['key']!r} is not UTF-8, and MQTT's user properties are text: encode it, in "
                "base64 for instance."
            ) from None
    if message_id is not None:
        found.append((MESSAGE_ID, message_id))
    return tuple(found)
