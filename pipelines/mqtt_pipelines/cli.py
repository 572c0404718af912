"""``hookmq-pipelines``, also ``python -m mqtt_pipelines`` for ``spark-submit``.

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
from hookmq.config.problems import nearest
from hookmq.errors import HookMQError

from mqtt_pipelines import run as runner
from mqtt_pipelines.conf import Conf, load
from mqtt_pipelines.jobs import JOBS, build
from mqtt_pipelines.progress import Reporter
from mqtt_pipelines.settings import PipelineError

MAINTENANCE: Final = "mqtt_pipelines.cli_maintain"
"""Its ``register(add)`` adds the commands that look after tables, with the function that `register` here uses."""

INTRODUCTION: Final = """\
# The configuration of pipelines

Every key, its type, its default and its bounds. This page is made by `hookmq-pipelines reference`; a test keeps it
up to date.

One YAML document; an unknown key, a wrong type or a value out of bounds is an error with its line and column.
`hookmq-pipelines check JOB -c FILE` tells them without starting anything. `-o KEY=VALUE` on the command line is put over
the file. Durations are written `250ms`, `5s`, `2m`, `1h30m`, `7d`; `{$env: NAME}` takes a value from the environment,
`{$file: PATH}` from a file. Paths of tables and checkpoints are relative to the folder in which the command is started,
and may be URLs.
"""
JAVA_ENDED: Final = (
    "Java ended while it was needed: killed, without memory, or stopped together with Python. "
    "Started again, it goes on."
)
CURES: Final = {
    "JAVA_GATEWAY_EXITED": "Java ended before Spark began; if it says nothing above: Spark needs Java 17 or newer, on "
    "the PATH or named by JAVA_HOME.",
    "CONCURRENT_STREAM_LOG_UPDATE": "Another process runs this query with the same checkpoint: let one of them run. "
    "Nothing was written twice.",
    "No space left on device": "No space is left on a disk that tables or checkpoints are on: make room and start it "
    "again. Nothing is lost, the query goes on with the same batch.",
    "Read-only file system": "Tables or checkpoints are on a file system that is read-only: mount it for writing and "
    "start it again. Nothing is lost, the query goes on with the same batch.",
    "Permission denied": "Tables or checkpoints are in a folder that this user must not write to: give it the rights and "
    "start it again. Nothing is lost, the query goes on with the same batch.",
    "does not exist in the JVM": JAVA_ENDED,
    "Answer from Java side is empty": JAVA_ENDED,
    "Error while sending or receiving": JAVA_ENDED,
    "DATA_SOURCE_NOT_FOUND": 'Spark does not find format("mqtt"): PYSPARK_PYTHON must name a Python with pyspark-mqtt, '
    "on every node.",
}
"""What helps where Spark's report does not say so, by a mark in it."""

MOST_CAUSES: Final = 20

OURS: Final = re.compile(r"\bpyspark_mqtt\.errors\.\w+: (.+)")
"""A line of Spark's reports that holds an exception of ours: at its start, or behind what Spark was about to do."""

Command = Callable[[argparse.Namespace], int]
Add = Callable[[str, str, Command], Parser]
"""Add a command: its name, its line in the help, what runs it. Returns its parser, for arguments."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code. A mistake is one line on stderr; ``HOOKMQ_DEBUG=1`` shows the traceback.

    Without `arguments` it is the process's own command, and ends the process.
    """
    if arguments is None:
        code = main(sys.argv[1:])
        sys.stdout.flush()
        sys.stderr.flush()
        # All is done and written; a thread of a library in Rust or C++ may abort an interpreter that ends by itself.
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
    """The parser of all commands."""
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
    """Add our own commands."""
    made = add("run", "run jobs until they are stopped", run)
    made.add_argument("jobs", nargs="+", type=job, metavar="JOB", help=", ".join(JOBS))
    add_config(made)
    made.add_argument("--once", action="store_true", help="read what is there now, then end")
    add("jobs", "list the jobs and what each needs", jobs)
    made = add("check", "validate a configuration and start nothing", check)
    made.add_argument("jobs", nargs="*", type=job, metavar="JOB", help="for these jobs")
    add_config(made)
    made = add("package", "write the archive and the program that spark-submit takes", package)
    made.add_argument("folder", metavar="FOLDER", help="where to; it is made if need be")
    add("reference", "print the manual's page of every key of the configuration", reference)


def job(name: str) -> str:
    """The name of a job."""
    if name not in JOBS:
        raise argparse.ArgumentTypeError(f"there is no job {name!r} ({nearest(name, list(JOBS))})")
    return name


def add_config(made: Parser) -> None:
    """The arguments that name a configuration; `configured` reads it."""
    made.add_argument("-c", "--config", required=True, metavar="FILE", help="the configuration")
    made.add_argument(
        "-o",
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="put over the file's",
    )


def configured(arguments: argparse.Namespace, jobs: Sequence[str] = ()) -> Conf:
    """The configuration that the arguments name."""
    return load(arguments.config, arguments.option, jobs)


def run(arguments: argparse.Namespace) -> int:
    """``run``."""
    conf = configured(arguments, arguments.jobs)
    stop = threading.Event()
    spark = runner.session(conf)
    try:
        runner.on_signals(stop)  # Not before: Spark has a handler of its own, which is in the way.
        queries = build(spark, conf, arguments.jobs)
        reporter = Reporter(conf.name, conf.progress)
        spark.streams.addListener(reporter)
        told = reporter.written
        try:
            runner.run(spark, queries, conf.name, once=arguments.once, observe=told, stop=stop)
        finally:
            reporter.drain(spark)
    finally:
        spark.stop()
    return 0


def jobs(_: argparse.Namespace) -> int:
    """``jobs``."""
    width = max(map(len, JOBS)) + 2
    for name, job in JOBS.items():
        print(f"{name:<{width}}{job.help}\n{'':<{width}}needs {', '.join(job.needs)}")
    return 0


def check(arguments: argparse.Namespace) -> int:
    """``check``."""
    configured(arguments, arguments.jobs)
    print(f"{arguments.config} is right")
    return 0


def package(arguments: argparse.Namespace) -> int:
    """``package``."""
    from mqtt_pipelines.package import package

    archive, program = package(Path(arguments.folder))
    print(f"spark-submit --master MASTER --py-files {archive} {program} run JOB -c FILE")
    return 0


def reference(_: argparse.Namespace) -> int:
    """``reference``."""
    from hookmq.config.reference import keys

    print(INTRODUCTION + keys(Conf), end="")
    return 0


def _with_causes(error: BaseException) -> str:
    """What an exception of Spark says and what it was caused by, which its own text may leave out."""
    texts: list[str] = []
    left: Any = error
    while left is not None and len(texts) < MOST_CAUSES:
        texts.append(f"{left}\n{getattr(left, '_stackTrace', '')}")
        left = getattr(left, "_cause", None) or left.__cause__
    return "\n".join(texts)


def cause(error: BaseException) -> str:
    """The line that says what went wrong: in Spark's reports the last that names our exceptions."""
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
    ):  # By Java's gateway; what a broker refuses is an error of its own.
        return JAVA_ENDED
    if lines and lines[0].startswith("An error occurred while calling") and lines[1:]:
        return lines[1].removeprefix(
            ": "
        )  # Java's own exception; Python's call of it tells nobody anything.
    return lines[0] if lines else type(error).__name__
