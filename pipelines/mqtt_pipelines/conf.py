"""The configuration of a pipeline: YAML in, one frozen `Conf` out, every mistake with its line and column.

HookMQ's own binder does it, so durations, ``{$env: NAME}`` and ``{$file: PATH}`` are written as in the broker's.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final, Literal

from hookmq.config import document, overrides
from hookmq.config.binder import FAILED, Binder
from hookmq.config.document import Node
from hookmq.config.problems import Path as Keys
from hookmq.config.problems import Problems
from hookmq.errors import ConfigError
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
    """``spark:`` for a run without ``spark-submit``, which brings its own."""

    master: str = setting("local[*]", "where it runs; `spark-submit --master` has priority")
    settings: Mapping[str, str | int | bool] = field(
        default_factory=dict,
        metadata={"help": "Spark's own settings by name, such as `spark.sql.shuffle.partitions`"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """``tables:`` where each table is. Those that the job writes are needed."""

    bronze: Table | None = setting(None, "messages as they came")
    silver: Table | None = setting(None, "messages that were understood")
    dead_letter: Table | None = setting(None, "messages that were not, with the reason")
    gold: Table | None = setting(None, "windows")
    presence: Table | None = setting(None, "when each device was online")
    metrics: Table | None = setting(None, "metrics of Sparkplug B")
    alerts: Table | None = setting(None, "values that are far from what is usual")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conf:
    """A pipeline."""

    version: Literal[1] = required("the version of this format, 1")
    name: str = required("the pipeline's name: sinks know its batches by it, so it never changes")
    source: Source = required("where messages come from")
    checkpoints: str = required("a folder or URL; each query has a folder of its own in it")
    trigger: Seconds = setting(60.0, "between batches; 0: as soon as possible")
    tables: Tables = Tables()
    spark: Spark = Spark()
    progress: Progress = Progress()
    silver: Silver | None = field(default=None, metadata={"help": "how payloads are read"})
    gold: Gold | None = field(default=None, metadata={"help": "windows of what silver understands"})
    presence: Presence | None = field(default=None, metadata={"help": "when a device is online"})
    anomaly: Anomaly | None = field(default=None, metadata={"help": "which values are an alert"})
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
    """The configuration in the file `path`, with `options` (``KEY=VALUE``) put over it, for the jobs named.

    Blocks on files. Raises ConfigError that tells every mistake: also what one of the jobs needs and is not there.
    """
    source = os.fspath(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError((error.strerror or str(error)).lower(), source=source) from None
    problems = Problems()
    root = document.parse(document.decode(data, source), source, problems)
    if not isinstance(root.value, dict):
        problems.add(root.place, (), "expected a mapping of keys such as `version: 1`")
        problems.check()
    overrides.apply(root, overrides.from_options(options, problems), problems)
    binder = Binder(problems, os.environ if environ is None else environ, Path(path).parent)
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


def _need(conf: Any, jobs: Sequence[str], root: Node, problems: Problems) -> None:
    asked: set[str] = set()
    for job in jobs:
        for needed in JOBS[job].needs:
            keys = tuple(needed.split("."))
            if reduce(getattr, keys, conf) is None and needed not in asked:
                asked.add(needed)
                message = f"this key is missing, and job {job} needs it"
                problems.add(root.at(keys).place, keys, message)


def _check_source(source: Source, root: Node, problems: Problems) -> None:
    if not source.mqtt:
        return
    keys: Keys = ("source", "mqtt")
    try:
        mqtt_options.reading(sources.options(source))
    except OptionError as error:
        problems.add(root.at(keys).place, keys, str(error))


def _check_tables(tables: Tables, root: Node, problems: Problems) -> None:
    """Spark's file sink knows batches by their numbers alone: of two queries in one folder it would take the batches of
    one for those of the other, and leave their rows out."""
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
