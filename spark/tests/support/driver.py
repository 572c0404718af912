"""A driver that reads a stream into Parquet until a test kills it.

python driver.py FOLDER OPTIONS-AS-JSON
"""

import json
import sys
from pathlib import Path

import sparks

if __name__ == "__main__":
    folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    spark = sparks.start(folder)
    frame = spark.readStream.format("mqtt").options(**options).load()
    frame.writeStream.format("parquet").option(
        "checkpointLocation", str(folder / "checkpoint")
    ).start(str(folder / "table")).awaitTermination()
