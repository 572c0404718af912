"""Build the streaming queries for jobs."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from mqtt_pipelines import jobs
from mqtt_pipelines.query import Query

if TYPE_CHECKING:
    from mqtt_pipelines.conf import Conf


def build(spark: SparkSession, conf: "Conf", names: Sequence[str]) -> list[Query]:
    """Return the queries of the named jobs, without duplicates. Connects to the source. Raises KeyError for an unknown
    job.

    Silver also writes the dead letters. If `names` includes silver, the job `dead_letter` therefore has no query of its
    own.
    """
    found: dict[str, Query] = {}
    for name in names:
        if name == "dead_letter" and "silver" in names:
            continue
        module = import_module(f"{jobs.__name__}.{jobs.JOBS[name].module}")
        for query in module.build(spark, conf):
            found.setdefault(query.name, query)
    return list(found.values())
