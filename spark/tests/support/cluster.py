"""Run an executor in a separate process without pyspark_mqtt, then follow the advice in the error message.

python cluster.py OPTIONS-AS-JSON ARCHIVE PATH-OF-EXECUTORS
"""

import json
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark_mqtt import DefaultSource

if __name__ == "__main__":
    options, archive = json.loads(sys.argv[1]), sys.argv[2]
    spark = (
        SparkSession.builder.master("local-cluster[1,1,1024]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.executorEnv.PYTHONPATH", sys.argv[3])
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    frame = spark.read.format("mqtt").options(**options).load()
    try:
        print("there", frame.count())
    except PySparkException as error:
        print(
            "missing",
            *(
                line
                for line in str(error).splitlines()
                if "Error: " in line and "pyspark_mqtt" in line
            ),
        )
    spark.sparkContext.addPyFile(archive)
    spark.dataSource.register(DefaultSource)
    print("there", spark.read.format("mqtt").options(**options).load().count())
    spark.stop()
