"""Prepare a virtual environment so that Spark starts faster: compile Python modules once, and archive Java's
classes.

    .venv-spark/bin/python spark/warm.py ENVIRONMENT

Both results are stored in the virtual environment. Its file `warm` sets the shell variables that use them. Spark then
starts in half the time. A Java version that does not support such archives starts as usual, without a message.
"""

import compileall
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Drivers and executors run for only seconds, too short for the second compiler to pay off.
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
WAIT = 240.0


def options(archive: Path) -> list[str]:
    """Return Java's options. Java ignores an archive that is missing or belongs to another Java version."""
    return [*SMALL.split(), *SILENT.split(), f"-XX:SharedArchiveFile={archive}"]


def submit_args(archive: Path) -> str:
    """Return the value for PYSPARK_SUBMIT_ARGS."""
    given = " ".join(options(archive))
    settings = [f"spark.{part}.defaultJavaOptions={given}" for part in ("driver", "executor")]
    return " ".join(f"--conf {shlex.quote(one)}" for one in settings) + " pyspark-shell"


def home(folder: Path) -> None:
    """Copy Spark's home without its archives of Python modules, which every process would have to compile again.

    Spark then uses the same modules from the virtual environment. The executors' log folder is private.
    """
    import pyspark

    (folder / "python").mkdir(parents=True, exist_ok=True)
    for one in Path(pyspark.__file__).parent.iterdir():
        link = folder / one.name
        if one.name not in ("python", "work") and not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(one)


def compile_modules() -> None:
    """Compile pyspark's modules. Each Python process that Spark starts imports some of them."""
    import pyspark

    compileall.compile_dir(str(Path(pyspark.__file__).parent), quiet=2, workers=0)


def train(archive: Path, folder: str) -> None:
    """Run typical test code, and make Java write the archive when it exits."""
    sys.path.append(str(Path(__file__).parent / "tests" / "support"))
    import sparks
    from pyspark.sql import functions as f

    java_options = f"{SMALL} {SILENT} -XX:ArchiveClassesAtExit={archive}"
    spark = sparks.start(Path(folder), **{"spark.driver.extraJavaOptions": java_options})
    spark.sparkContext.setLogLevel("OFF")
    java: Any = spark.sparkContext._gateway

    rows = [(n, f"d{n % 3}", b"{}", [("k", b"v")]) for n in range(10)]
    schema = "n long, device string, payload binary, headers array<struct<key:string,value:binary>>"
    given = spark.createDataFrame(rows, schema).withColumn("at", f.current_timestamp())
    given.write.partitionBy("device").parquet(f"{folder}/in")
    read = (
        spark.readStream.schema(given.schema)
        .parquet(f"{folder}/in")
        .withWatermark("at", "1 minute")
    )
    parsed = read.withColumn("json", f.from_json(f.col("payload").cast("string"), "a double"))
    once = parsed.dropDuplicatesWithinWatermark(["device", "n"])
    windows = read.groupBy(f.window("at", "1 minute"), "device").agg(f.avg("n"))
    for name, frame in (("once", once), ("windows", windows)):
        writer = frame.writeStream.option("checkpointLocation", f"{folder}/of-{name}")
        writer.trigger(availableNow=True).format("parquet").start(
            f"{folder}/{name}"
        ).awaitTermination()

    def count(batch: Any, batch_id: int) -> None:
        batch.mapInArrow(lambda batches: batches, batch.schema).toArrow()

    writer = read.writeStream.option("checkpointLocation", f"{folder}/batches").foreachBatch(count)
    writer.trigger(availableNow=True).start().awaitTermination()

    spark.stop()
    try:
        java.jvm.java.lang.System.exit(0)
    except Exception:
        pass  # It can no longer respond.
    try:
        if code := java.proc.wait(WAIT):
            raise RuntimeError(f"Java ended with {code}")
    finally:
        java.proc.kill()


def ready(java: Path, environment: Path) -> bool:
    """Return whether this Java has the archive of its own classes, which the new archive extends. The Java from PyPI
    has none."""
    asked = [str(java), "-Xshare:on", "-version"]
    if environment in java.parents and subprocess.run(asked, capture_output=True).returncode:
        subprocess.run([str(java), "-Xshare:dump"], check=True, capture_output=True)
    return not subprocess.run(asked, capture_output=True).returncode


def main(environment: Path) -> None:
    """Prepare Spark's home and the archive, and write the file `warm`.

    Tests also run without the archive, but more slowly.
    """
    spark_home, archive = environment / "spark", environment / "classes.jsa"
    home(spark_home)
    compile_modules()
    os.environ["SPARK_HOME"] = str(spark_home)
    archive.unlink(missing_ok=True)
    new = archive.with_suffix(f".{os.getpid()}")  # Another process may be doing the same.
    java = Path(os.environ["JAVA_HOME"], "bin", "java")
    try:
        if not ready(java, environment):
            raise RuntimeError(f"{java} has none of its own")
        with TemporaryDirectory() as folder:
            train(new, folder)
        # An incomplete archive would crash every Java process that maps it.
        subprocess.run([java, *options(new), "-version"], check=True, capture_output=True)
        new.rename(archive)
    except Exception as error:
        new.unlink(missing_ok=True)
        print(f"no archive of classes: {error}", file=sys.stderr)
    given = {"SPARK_HOME": str(spark_home), "PYTHONDONTWRITEBYTECODE": ""}
    if archive.exists():
        given["PYSPARK_SUBMIT_ARGS"] = submit_args(archive)
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in given.items()]
    told = environment / f"warm.{os.getpid()}"
    told.write_text("".join(lines))
    told.rename(environment / "warm")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
