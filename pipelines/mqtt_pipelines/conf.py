"""Read a pipeline's configuration from YAML into a frozen `Conf`, and report every mistake with its line and column.

This module uses HookMQ's binder, so durations, ``{$env: NAME}`` and ``{$file: PATH}`` are written as in the broker's
configuration.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, Literal

from hookmq.config import overrides
from hookmq.config import yaml_document as document
from hookmq.config.binding import FAILED, ConfigBinder
from hookmq.config.diagnostics import ConfigProblems
from hookmq.config.diagnostics import KeyPath as Keys
from hookmq.config.yaml_document import YamlNode
from hookmq.model.errors import ConfigError
from pyspark_mqtt import options as mqtt_options
from pyspark_mqtt.errors import OptionError

from mqtt_pipelines import sources
from mqtt_pipelines.jobs import JOBS
from mqtt_pipelines.progress import Progress
from mqtt_pipelines.settings import Seconds, Table, required, setting
from mqtt_pipelines.sources import Source
from mqtt_pipelines.transforms.anomaly import Anomaly
from mqtt_pipelines.transforms.ddl import mistake
from mqtt_pipelines.transforms.gold import Gold
from mqtt_pipelines.transforms.presence import Presence
from mqtt_pipelines.transforms.silver import Silver
from mqtt_pipelines.transforms.sparkplug import Sparkplug

__all__ = ["Conf", "ConfigError", "Spark", "Tables", "load"]

NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """``spark:`` settings for Spark in a run without ``spark-submit``."""

    master: str = setting("local[*]", "Spark's master; `spark-submit --master` has priority")
    settings: Mapping[str, str | int | bool] = field(
        default_factory=dict,
        metadata={"help": "Spark settings by name, such as `spark.sql.shuffle.partitions`"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """``tables:`` the location of each table. Those that the job writes are required."""

    bronze: Table | None = setting(None, "messages as received")
    silver: Table | None = setting(None, "messages that were parsed")
    dead_letter: Table | None = setting(None, "messages that could not be parsed, with the reason")
    gold: Table | None = setting(None, "windows")
    presence: Table | None = setting(None, "when each device was online")
    metrics: Table | None = setting(None, "metrics of Sparkplug B")
    alerts: Table | None = setting(None, "unusual values")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """A pipeline's configuration."""

    version: Literal[1] = required("the version of this format, 1")
    name: str = required(
        "the pipeline's name. Sinks identify batches by this name, so never change it"
    )
    source: Source = required("the source of the messages")
    checkpoints: str = required("a folder or URL; each query gets a folder in it")
    trigger: Seconds = setting(60.0, "time between batches; 0: as soon as possible")
    tables: Tables = Tables()
    spark: Spark = Spark()
    progress: Progress = Progress()
    silver: Silver | None = field(default=None, metadata={"help": "how payloads are read"})
    gold: Gold | None = field(
        default=None, metadata={"help": "aggregates of silver's values in windows of time"}
    )
    presence: Presence | None = field(default=None, metadata={"help": "when a device is online"})
    anomaly: Anomaly | None = field(default=None, metadata={"help": "which values cause an alert"})
    sparkplug: Sparkplug | None = field(default=None, metadata={"help": "Sparkplug B"})

    def __post_init__(self) -> None:
        import re

        if not re.fullmatch(NAME, self.name):
            raise ValueError(
                "name: expected 1 to 64 of A-Z a-z 0-9 _ . - with a letter or digit first"
            )
        if not self.checkpoints:
            raise ValueError("checkpoints: expected a folder or URL, found nothing")


def load(
    path: str | os.PathLike[str],
    options: Iterable[str] = (),
    jobs: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> Conf:
    """Load the configuration file `path` for the given jobs. `options` (``KEY=VALUE``) override its values.

    This call reads files, so it blocks. Raises ConfigError with a list of all mistakes, including missing keys.
    """
    source = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError((error.strerror or str(error)).lower(), source=source) from None
    problems = ConfigProblems()
    root = document.parse(document.decode(data, source), source, problems)
    if not isinstance(root.value, dict):
        problems.add(root.place, (), "expected a mapping of keys such as `version: 1`")
        problems.check()
    overrides.apply(root, overrides.from_options(options, problems), problems)
    binder = ConfigBinder(problems, os.environ if environ is None else environ, Path(path).parent)
    conf: Any = binder.bind(root, Conf)
    problems.check()
    assert conf is not FAILED
    _need(conf, jobs, root, problems)
    _check_source(conf.source, root, problems)
    _check_tables(conf.tables, root, problems)
    if conf.silver is not None and (wrong := mistake(conf.silver.schema)):
        at: Keys = ("silver", "schema")
        problems.add(root.at(at).place, at, wrong)
    problems.check()
    result: Conf = conf
    return result


def _need(conf: Any, jobs: Sequence[str], root: YamlNode, problems: ConfigProblems) -> None:
    asked: set[str] = set()
    for job in jobs:
        for needed in JOBS[job].needs:
            keys = tuple(needed.split("."))
            if reduce(getattr, keys, conf) is None and needed not in asked:
                asked.add(needed)
                message = f"this key is missing, and job {job} needs it"
                problems.add(root.at(keys).place, keys, message)


def _check_source(source: Source, root: YamlNode, problems: ConfigProblems) -> None:
    if not source.mqtt:
        return
    keys: Keys = ("source", "mqtt")
    try:
        mqtt_options.reading(sources.options(source))
    except OptionError as error:
        problems.add(root.at(keys).place, keys, str(error))


def _check_tables(tables: Tables, root: YamlNode, problems: ConfigProblems) -> None:
    """Report queries that write to the same folder.

    Spark's file sink identifies batches only by number. It would mistake one query's batches for those of the other,
    and omit their rows.
    """
    seen: dict[str, str] = {}
    for name in Tables.__slots__:
        table: Table | None = getattr(tables, name)
        if table is None or table.format == "iceberg":
            continue
        folder = os.path.normpath(table.path.removeprefix("file:"))
        other = seen.setdefault(folder, name)
        if other != name and "files" in (table.format, getattr(tables, other).format):
            keys: Keys = ("tables", name, "path")
            problems.add(
                root.at(keys).place,
                keys,
                f"is that of tables.{other}, too; a table of format files needs a folder of its own",
            )
