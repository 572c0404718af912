"""The jobs: their descriptions, the configuration that they need, and their queries.

Each job is a module in this package with ``build(spark, conf) -> list[Query]``, which does not start the queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from mqtt_pipelines.sinks import Sink, StreamSink

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


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


class Job(NamedTuple):
    """A row in the table of jobs."""

    module: str
    help: str
    needs: tuple[str, ...]
    """Required keys of the configuration, with dots."""


JOBS: Final[dict[str, Job]] = {
    "bronze": Job("bronze", "messages as they came, by day", ("tables.bronze",)),
    "silver": Job(
        "silver",
        "parsed, typed, each once; what is not understood goes to the dead letters",
        ("silver", "tables.silver", "tables.dead_letter"),
    ),
    "dead_letter": Job(
        "dead_letter", "only the dead letters of silver", ("silver", "tables.dead_letter")
    ),
    "gold": Job(
        "gold",
        "count, minimum, average, maximum of each device and window",
        ("silver", "gold", "tables.gold"),
    ),
    "presence": Job("presence", "when each device was online", ("presence", "tables.presence")),
    "anomaly": Job("anomaly", "alerts, published back to MQTT", ("silver", "anomaly")),
    "sparkplug": Job("sparkplug", "metrics of Sparkplug B", ("sparkplug", "tables.metrics")),
}


def build(spark: SparkSession, conf: "Conf", names: Sequence[str]) -> list[Query]:
    """Return the queries of some jobs, each query once. Connects to the source. Raises KeyError for an unknown job."""
    found: dict[str, Query] = {}
    for name in names:
        module = import_module(f"{__name__}.{JOBS[name].module}")
        for query in module.build(spark, conf):
            found.setdefault(query.name, query)
    return list(found.values())
