"""Describe the streams to other plugins; see `hookmq_toolkit.streams`."""

from collections.abc import Callable, Sequence
from functools import partial

from hookmq.plugin import BrokerHandle, StoreError
from hookmq_toolkit.streams import StreamConsumer, StreamStatus
from hookmq_toolkit.threads import in_thread

from hookmq_spark_sink import consumers, files
from hookmq_spark_sink.served_queue import ServedQueue
from hookmq_spark_sink.stream import Stream


class SparkStreams:
    """Implements `hookmq_toolkit.streams.StreamOwner`. `streams` and `broker` come from the running plugin."""

    def __init__(
        self,
        streams: Callable[[], Sequence[Stream | ServedQueue]],
        broker: Callable[[], BrokerHandle | None],
    ) -> None:
        self._streams = streams
        self._broker = broker

    async def list_streams(self) -> list[StreamStatus]:
        """Return the streams. Their consumers are read in a thread."""
        broker = self._broker()
        if broker is None:
            return []
        return [
            await (
                _queue_status(broker, one) if isinstance(one, ServedQueue) else _status(broker, one)
            )
            for one in self._streams()
        ]


async def _status(broker: BrokerHandle, stream: Stream) -> StreamStatus:
    read = partial(files.read_consumers, stream.folder, stream.log.id)
    error = ""
    try:
        known = await in_thread(broker.runtime, read)
    except StoreError as failed:
        known, error = {}, str(failed)
    config = stream.config
    found = consumers.states(
        config.consumers, known, stream.earliest, stream.latest, stream.ages.time
    )
    oldest = stream.oldest
    return StreamStatus(
        stream.config.name,
        "log",
        sum(stream.latest) - sum(stream.earliest),
        stream.size,
        None if oldest is None else max(0.0, broker.time() - oldest),
        () if error else tuple(_consumer(one, broker.time()) for one in found),
        error,
        stream.config.max_bytes,
        stream.refusing,
        stream.counts.refused,
        stream.counts.dropped,
        tuple(last - first for first, last in zip(stream.earliest, stream.latest, strict=True)),
    )


async def _queue_status(broker: BrokerHandle, stream: ServedQueue) -> StreamStatus:
    name, found = stream.config.name, stream.files
    if found is None:
        return StreamStatus(name, "log", 0, 0, error=stream.missing or "the broker is starting")
    read = partial(files.read_consumers, stream.folder, found.log_id)
    error = ""
    try:
        known = await in_thread(broker.runtime, read)
    except StoreError as failed:
        known, error = {}, str(failed)
    listed = () if error else tuple(_consumer(one, broker.time()) for one in stream.states(known))
    return StreamStatus(
        name,
        "log",
        stream.readable,
        found.bytes,
        consumers=listed,
        error=error,
        partitions=(stream.readable,),
    )


def _consumer(one: consumers.ConsumerState, now: float) -> StreamConsumer:
    behind = 0.0 if not one.lag else None
    if one.behind_at is not None:
        behind = max(0.0, now - one.behind_at)
    return StreamConsumer(
        one.name, one.lag, one.updated or None, behind, one.declared, one.dead_letters
    )
