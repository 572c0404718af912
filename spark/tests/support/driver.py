"""A driver that is killed by a test: reads a stream into Parquet until then.

python driver.py FOLDER OPTIONS-AS-JSON
"""

import json
import runpy
import sys
from pathlib import Path

from pyspark.sql import SparkSession

if __name__ == "__main__":
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    builder = SparkSession.builder
    conftest = runpy.run_path(str(Path(__file__).parents[1] / "conftest.py"))
    for name, value in conftest["SETTINGS"].items():
        builder = builder.config(name, value)
    spark = builder.config("spark.sql.warehouse.dir", str(folder / "spark")).getOrCreate()
    frame = spark.readStream.format("mqtt").options(**options).load()
    frame.writeStream.format("parquet").option(
        "checkpointLocation", str(folder / "checkpoint")
    ).start(str(folder / "table")).awaitTermination()
