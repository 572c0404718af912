"""The table of jobs, with a description of each and the configuration that it needs.

Each job is a module in this package with ``build(spark, conf) -> list[Query]``, which does not start the queries.
"""

from typing import Final, NamedTuple


class Job(NamedTuple):
    """An entry in the table of jobs."""

    module: str
    help: str
    needs: tuple[str, ...]
    """Required keys of the configuration, as dotted names."""


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
