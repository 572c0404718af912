"""Do once what every start of Spark would do again: gather a home in which Python finds compiled modules, and archive the
classes that Java loads.

    .venv-spark/bin/python spark/warm.py ENVIRONMENT

puts both into the virtual environment and, for a shell, the variables by which Spark uses them into its file `warm`: it
starts in half the time. A Java that cannot make or use an archive starts as ever, and says nothing of it.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# A driver and executors that live for seconds: what the second compiler makes faster would never be used.
SMALL = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
WAIT = 240.0


def options(archive: Path) -> list[str]:
    """Those of Java, which passes over an archive that is not there or of another Java."""
    return [*SMALL.split(), *SILENT.split(), f"-XX:SharedArchiveFile={archive}"]


def submit_args(archive: Path) -> str:
    """What PYSPARK_SUBMIT_ARGS must be."""
    given = " ".join(options(archive))
    settings = [f"spark.{part}.defaultJavaOptions={given}" for part in ("driver", "executor")]
    return " ".join(f"--conf {shlex.quote(one)}" for one in settings) + " pyspark-shell"


def home(folder: Path) -> None:
    """Spark's, but for the archives of Python's modules: of those each process would compile anew what it imports, and of
    the same modules in the virtual environment it need not. The folder of executors' logs is not everybody's, either."""
    import pyspark

    (folder / "python").mkdir(parents=True, exist_ok=True)
    for one in Path(pyspark.__file__).parent.iterdir():
        link = folder / one.name
        if one.name not in ("python", "work") and not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(one)


def train(archive: Path, folder: str) -> None:
    """Run what is typical of tests, and let Java write the archive as it ends."""
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
        pass  # It cannot answer any more.
    try:
        if code := java.proc.wait(WAIT):
            raise RuntimeError(f"Java ended with {code}")
    finally:
        java.proc.kill()


def ready(java: Path, environment: Path) -> bool:
    """Whether it has the archive of its own classes that another one builds on; that of PyPI comes without."""
    asked = [str(java), "-Xshare:on", "-version"]
    if environment in java.parents and subprocess.run(asked, capture_output=True).returncode:
        subprocess.run([str(java), "-Xshare:dump"], check=True, capture_output=True)
    return not subprocess.run(asked, capture_output=True).returncode


def main(environment: Path) -> None:
    """Make and note. Tests need no archive: a machine on which there is none is slower, and no more."""
    spark_home, archive = environment / "spark", environment / "classes.jsa"
    home(spark_home)
    os.environ["SPARK_HOME"] = str(spark_home)
    archive.unlink(missing_ok=True)
    new = archive.with_suffix(f".{os.getpid()}")  # Others may do the same just now.
    java = Path(os.environ["JAVA_HOME"], "bin", "java")
    try:
        if not ready(java, environment):
            raise RuntimeError(f"{java} has none of its own")
        with TemporaryDirectory() as folder:
            train(new, folder)
        # One that is not whole would end each Java that maps it.
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
