"""The ``hookmq-pipelines`` command, also available to ``spark-submit`` as ``python -m mqtt_pipelines``.

Exit codes: 0 done, 1 failed while running, 2 wrong configuration or arguments.
"""

import argparse
import contextlib
import os
import re
import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from hookmq.cli import Formatter, Parser
from hookmq.config.diagnostics import nearest
from hookmq.mqtt.errors import HookMQError

from mqtt_pipelines import run as runner
from mqtt_pipelines.build import build
from mqtt_pipelines.conf import Conf, load
from mqtt_pipelines.dead_letters import DeadLetters
from mqtt_pipelines.jobs import JOBS
from mqtt_pipelines.progress import Reporter
from mqtt_pipelines.query import Query
from mqtt_pipelines.settings import PipelineError
from mqtt_pipelines.sinks import Written

MAINTENANCE: Final = "mqtt_pipelines.cli_maintain"
"""The module whose ``register(add)`` adds the maintenance commands, if it is installed."""

INTRODUCTION: Final = """\
# The configuration of pipelines

This page lists every key with its type, default and bounds. `hookmq-pipelines reference` generates it, and a test keeps
it up to date.

The configuration is one YAML document. An unknown key, a wrong type or a value out of bounds is an error with a line and
a column. `hookmq-pipelines check JOB -c FILE` reports such errors without starting anything. `-o KEY=VALUE` on the
command line overrides a value of the file. Write durations as `250ms`, `5s`, `2m`, `1h30m` or `7d`. `{$env: NAME}` takes
a value from the environment, and `{$file: PATH}` from a file. Paths of tables and checkpoints are relative to the working
directory, and may be URLs.
"""
JAVA_ENDED: Final = (
    "Java ended during the run: it was killed, ran out of memory, or was stopped together with Python. "
    "Start again to continue."
)
CURES: Final = {
    "JAVA_GATEWAY_EXITED": "Java ended before Spark began; if it says nothing above: Spark needs Java 17 or newer, on "
    "the PATH or named by JAVA_HOME.",
    "CONCURRENT_STREAM_LOG_UPDATE": "Another process runs this query with the same checkpoint: let one of them run. "
    "Nothing was written twice.",
    "No space left on device": "No space is left on a disk that tables or checkpoints are on: make room and start it "
    "again. Nothing is lost; the query continues with the same batch.",
    "Read-only file system": "Tables or checkpoints are on a file system that is read-only: mount it for writing and "
    "start it again. Nothing is lost; the query continues with the same batch.",
    "Permission denied": "Tables or checkpoints are in a folder that this user must not write to: give it the rights and "
    "start it again. Nothing is lost; the query continues with the same batch.",
    "does not exist in the JVM": JAVA_ENDED,
    "Answer from Java side is empty": JAVA_ENDED,
    "Error while sending or receiving": JAVA_ENDED,
    "DATA_SOURCE_NOT_FOUND": 'Spark does not find format("mqtt"): PYSPARK_PYTHON must name a Python with pyspark-mqtt, '
    "on every node.",
}
"""Advice to add to Spark errors that contain none, by a part of the error's text."""

MOST_CAUSES: Final = 20

OURS: Final = re.compile(r"\bpyspark_mqtt\.errors\.\w+: (.+)")
"""Matches a line of Spark's report with an exception of pyspark_mqtt, possibly after a prefix."""

Command = Callable[[argparse.Namespace], int]
Add = Callable[[str, str, Command], Parser]
"""Adds a command with its name, help text and function. Returns the command's parser, to which you can add arguments.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. Errors are printed as one line on stderr; ``HOOKMQ_DEBUG=1`` shows the
    traceback.

    Without `arguments`, run the command line, then end the process.
    """
    if arguments is None:
        code = main(sys.argv[1:])
        sys.stdout.flush()
        sys.stderr.flush()
        # All output has been written. A thread of a Rust or C++ library may abort an interpreter that exits normally.
        os._exit(code)
    try:
        parsed = parser().parse(list(arguments))
        done: int = parsed.run(parsed)
        return done
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("HOOKMQ_DEBUG"):
            raise
        print(f"hookmq-pipelines: {cause(error)}", file=sys.stderr)
        if isinstance(error, HookMQError):
            return error.exit_code
        return 2 if isinstance(error, PipelineError) else 1


def parser() -> Parser:
    """Return the parser for all commands."""
    top = Parser(
        prog="hookmq-pipelines", description="MQTT into tables with Apache Spark, exactly once."
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, help: str, run: Command) -> Parser:
        made: Parser = commands.add_parser(
            name, help=help, description=f"{help[:1].upper()}{help[1:]}.", formatter_class=Formatter
        )
        made.set_defaults(run=run)
        return made

    register(add)
    if find_spec(MAINTENANCE):
        import_module(MAINTENANCE).register(add)
    return top


def register(add: Add) -> None:
    """Add this module's commands."""
    made = add("run", "run jobs until they are stopped", run)
    made.add_argument("jobs", nargs="+", type=job, metavar="JOB", help=", ".join(JOBS))
    add_config(made)
    made.add_argument("--once", action="store_true", help="read what is there now, then end")
    add("jobs", "list the jobs and what each needs", jobs)
    made = add("check", "validate a configuration and start nothing", check)
    made.add_argument("jobs", nargs="*", type=job, metavar="JOB", help="check it for these jobs")
    add_config(made)
    made = add("package", "write the archive and the program for spark-submit", package)
    made.add_argument("folder", metavar="FOLDER", help="output folder; created if missing")
    add("reference", "print the manual page with every key of the configuration", reference)


def job(name: str) -> str:
    """Return `name` after checking that it names a job."""
    if name not in JOBS:
        raise argparse.ArgumentTypeError(f"no job {name!r} ({nearest(name, list(JOBS))})")
    return name


def add_config(made: Parser) -> None:
    """Add the arguments that select a configuration. `configured` reads them."""
    made.add_argument("-c", "--config", required=True, metavar="FILE", help="the configuration")
    made.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a value of the file",
    )


def configured(arguments: argparse.Namespace, jobs: Sequence[str] = ()) -> Conf:
    """Load the configuration that the arguments name."""
    return load(arguments.config, arguments.option, jobs)


def run(arguments: argparse.Namespace) -> int:
    """Run the ``run`` command."""
    conf = configured(arguments, arguments.jobs)
    stop = threading.Event()
    spark = runner.session(conf)
    try:
        runner.on_signals(stop)  # Call this after Spark has set its own handler, which interferes.
        queries = build(spark, conf, arguments.jobs)
        reporter = Reporter(conf.name, conf.progress)
        spark.streams.addListener(reporter)
        letters = DeadLetters(conf.source)

        def told(query: Query, batch_id: int, written: Written) -> None:
            reporter.written(query, batch_id, written)
            query_id = spark.sparkContext.getLocalProperty(runner.QUERY_ID) or ""
            letters.written(query, query_id, batch_id, written)

        try:
            runner.run(spark, queries, conf.name, once=arguments.once, observe=told, stop=stop)
        finally:
            reporter.drain(spark)
    finally:
        spark.stop()
    return 0


def jobs(_: argparse.Namespace) -> int:
    """Run the ``jobs`` command."""
    width = max(map(len, JOBS)) + 2
    for name, job in JOBS.items():
        print(f"{name:<{width}}{job.help}\n{'':<{width}}needs {', '.join(job.needs)}")
    return 0


def check(arguments: argparse.Namespace) -> int:
    """Run the ``check`` command."""
    configured(arguments, arguments.jobs)
    print(f"{arguments.config} is valid")
    return 0


def package(arguments: argparse.Namespace) -> int:
    """Run the ``package`` command."""
    from mqtt_pipelines.package import package

    archive, program = package(Path(arguments.folder))
    print(f"spark-submit --master MASTER --py-files {archive} {program} run JOB -c FILE")
    return 0


def reference(_: argparse.Namespace) -> int:
    """Run the ``reference`` command."""
    from hookmq.config.reference import keys

    print(INTRODUCTION + keys(Conf), end="")
    return 0


def _with_causes(error: BaseException) -> str:
    """Return the text of a Spark exception and its causes. The exception's own text may omit the causes."""
    texts: list[str] = []
    left: Any = error
    while left is not None and len(texts) < MOST_CAUSES:
        texts.append(f"{left}\n{getattr(left, '_stackTrace', '')}")
        left = getattr(left, "_cause", None) or left.__cause__
    return "\n".join(texts)


def cause(error: BaseException) -> str:
    """Return the line that explains an error. In Spark's report, it is the last line that contains a pyspark_mqtt
    exception.
    """
    text = str(error)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if ours := OURS.findall(text):
        return str(ours[-1]).strip()
    whole = _with_causes(error)
    for mark, cure in CURES.items():
        if mark in whole:
            return cure
    if isinstance(error, HookMQError):
        return text
    if isinstance(
        error, ConnectionRefusedError
    ):  # This comes from Java's gateway. A broker's refusal is a different error.
        return JAVA_ENDED
    if lines and lines[0].startswith("An error occurred while calling") and lines[1:]:
        return lines[1].removeprefix(
            ": "
        )  # Java's own exception is useful, but the Python call that led to it is not.
    return lines[0] if lines else type(error).__name__
