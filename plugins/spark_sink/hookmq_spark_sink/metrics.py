"""The metrics for the streams and the reader process."""

from collections.abc import Callable, Iterator
from functools import partial

from hookmq.plugin import MetricRegistry, StoreError

from hookmq_spark_sink.consumers import ConsumerState
from hookmq_spark_sink.process import ReaderProcess
from hookmq_spark_sink.served_queue import ServedQueue
from hookmq_spark_sink.stream import Stream
from hookmq_spark_sink.tier import TierProcess

_COUNTERS = {
    "spark_sink_records_total": ("records", "Messages written."),
    "spark_sink_bytes_total": ("bytes", "Bytes written."),
    "spark_sink_blocks_total": ("blocks", "Blocks written."),
    "spark_sink_removed_total": ("removed", "Messages removed by retention."),
    "spark_sink_dropped_total": (
        "dropped",
        "Removed messages that a declared consumer had not committed.",
    ),
    "spark_sink_refused_total": ("refused", "Messages refused because a stream was full."),
    "spark_sink_merged_total": ("merged", "Segments whose small blocks were merged."),
}
_READER = {
    "spark_sink_reader_requests_total": ("requests", "Requests to the read API."),
    "spark_sink_reader_refused_total": ("refused", "Requests answered with an error."),
    "spark_sink_reader_reads_total": ("reads", "Requests for records that were answered."),
    "spark_sink_reader_failed_total": ("failed", "Answers that were cut off."),
    "spark_sink_reader_bytes_total": ("bytes", "Bytes of records sent."),
}


def register(
    registry: MetricRegistry,
    streams: Callable[[], list[Stream]],
    queues: Callable[[], list[ServedQueue]],
    reader: Callable[[], ReaderProcess | None],
    time: Callable[[], float],
    tiers: Callable[[], list[TierProcess]],
) -> None:
    """Add the metrics to a `MetricRegistry`. `time` returns the time in epoch seconds."""

    def each(read: Callable[[Stream], float]) -> list[tuple[dict[str, str], float]]:
        return [({"stream": one.config.name}, read(one)) for one in streams()]

    def counts(field: str) -> list[tuple[dict[str, str], float]]:
        return each(lambda one: getattr(one.counts, field))

    for name, (field, help) in _COUNTERS.items():
        registry.counter(name, help, partial(counts, field))
    registry.counter(
        "spark_sink_syncs_total",
        "Syncs of a stream's file.",
        lambda: each(lambda one: one.log.syncs),
    )
    registry.gauge("spark_sink_stored_bytes", "Size of a stream.", lambda: each(lambda s: s.size))
    registry.gauge(
        "spark_sink_fill",
        "Share of `max_bytes` that a stream uses.",
        lambda: each(lambda s: s.fill),
    )
    registry.gauge(
        "spark_sink_full",
        "1 while messages are refused, and for a minute after a message was refused.",
        lambda: each(lambda s: int(s.refusing)),
    )
    registry.gauge(
        "spark_sink_readable_records",
        "Messages that can be read.",
        lambda: (
            each(lambda s: sum(s.latest) - sum(s.earliest))
            + [({"stream": one.config.name}, one.readable) for one in queues()]
        ),
    )
    registry.gauge(
        "spark_sink_queue_missing",
        "1 if the queue that a stream serves does not exist, or is not a stream.",
        lambda: [
            ({"stream": one.config.name, "queue": one.config.queue}, int(bool(one.missing)))
            for one in queues()
        ],
    )
    registry.summary(
        "spark_sink_flush_seconds",
        "Time from the end of a commit until its blocks are safe.",
        lambda: [
            ({"stream": one.config.name}, one.counts.flushes, one.counts.flush_seconds)
            for one in streams()
        ],
    )
    registry.gauge(
        "spark_sink_consumer_lag",
        "Messages that a consumer has not committed.",
        lambda: list(consumers(lambda one: one.lag)),
    )
    registry.gauge(
        "spark_sink_consumer_declared",
        "1 if messages are kept for a consumer that has not committed them, 0 if it is not in the configuration.",
        lambda: list(consumers(lambda one: one.declared)),
    )
    registry.gauge(
        "spark_sink_consumer_committed_time_seconds",
        "Unix time of a consumer's last commit; 0 if it has never committed.",
        lambda: list(consumers(lambda one: one.updated)),
    )

    registry.counter(
        "spark_sink_consumer_dead_letters_total",
        "Messages that a consumer has written to its table of dead letters, as it has reported.",
        lambda: list(consumers(lambda one: one.dead_letters)),
    )
    registry.gauge(
        "spark_sink_consumer_lag_seconds",
        "Approximate age of the oldest message that a consumer has not committed; 0 if there is none.",
        lambda: list(
            consumers(lambda one: 0 if one.behind_at is None else max(0.0, time() - one.behind_at))
        ),
    )
    registry.gauge(
        "spark_sink_retention_held",
        "1 while retention keeps files that are due, because a consumer has not committed their messages.",
        lambda: each(lambda s: int(s.upkeep.held)),
    )

    def consumers(
        read: Callable[[ConsumerState], float | None],
    ) -> Iterator[tuple[dict[str, str], float]]:
        every: list[Stream | ServedQueue] = [*streams(), *queues()]
        for stream in every:
            try:
                found = stream.consumers()
            except StoreError:
                continue
            for one in found:
                if (value := read(one)) is not None:
                    yield {"stream": stream.config.name, "consumer": one.name}, float(value)

    def of_reader(field: str) -> int:
        found = reader()
        return 0 if found is None else found.counts[field]

    for name, (field, help) in _READER.items():
        registry.counter(name, help, partial(of_reader, field))

    def attribute(name: str) -> int:
        found = reader()
        return 0 if found is None else int(getattr(found, name))

    registry.gauge(
        "spark_sink_tier_up",
        "1 while old messages are written to Parquet.",
        lambda: [({"target": one.target}, float(one.up)) for one in tiers()],
    )
    registry.gauge("spark_sink_reader_up", "1 while readers are served.", lambda: attribute("up"))
    registry.counter(
        "spark_sink_reader_restarts_total", "Restarts of the reader process.",
        lambda: attribute("restarts"),
    )  # fmt: skip
