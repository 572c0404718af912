"""Describe a job's streaming query."""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from mqtt_pipelines.sinks import Sink, StreamSink


@dataclass(frozen=True, slots=True)
class Query:
    """A streaming query that is ready to start."""

    name: str
    frame: DataFrame
    sink: Sink | StreamSink
    checkpoint: str
    """The folder of the query's checkpoint, which no other query uses."""
    trigger: float
    """Seconds between batches; 0 means as soon as possible. ``--once`` uses AvailableNow instead."""
