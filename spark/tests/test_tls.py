"""Test HTTPS between a broker's read API and Spark's readers: a private authority, a wrong authority, no authority, and
client certificates.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark_mqtt.publisher import Message
from queries import available_now, last_line
from secured import Secured


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"))
    made.start()
    try:
        made.publish([Message(f"t/{n % 5}", b"%d" % n) for n in range(200)])
        yield made
    finally:
        made.kill()


def count(spark: SparkSession, options: dict[str, str]) -> int:
    return spark.read.format("mqtt").options(**options).load().count()


def test_a_batch_over_https(spark: SparkSession, broker: Secured) -> None:
    assert count(spark, broker.read) == 200


def test_a_certificate_in_the_place_of_a_token(
    spark: SparkSession, broker: Secured, tmp_path: Path
) -> None:
    options = {name: value for name, value in broker.read.items() if name != "token"}
    options |= broker.certificate("spark")
    assert count(spark, options) == 200
    frame = spark.readStream.format("mqtt").options(**options, consumerGroup="etl").load()
    assert sum(one["numInputRows"] for one in available_now(frame, tmp_path)) == 200
    options = {name: value for name, value in broker.read.items() if name != "token"}
    for more, said in (
        ({}, "wants a token"),
        (broker.certificate("flink"), "knows nobody of the certificate's name"),
        (broker.certificate("forged"), "it may not know the authority of certFile"),
    ):
        with pytest.raises(PySparkException) as raised:
            count(spark, options | more | {"fetchOffset.numRetries": "1"})
        assert said in last_line(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"caFile": "other.pem"}, "is not trusted"),
        ({"caFile": ""}, "caFile"),
        ({"caFile": "server.key"}, "caFile, certFile or keyFile cannot be used"),
        ({"url": "http"}, "if it speaks TLS, give `url` with https://"),
        ({"url": "localhost.example"}, "not known"),
    ],
)
def test_mistakes_of_tls(
    spark: SparkSession, broker: Secured, options: dict[str, str], said: str
) -> None:
    given = broker.read | {"fetchOffset.numRetries": "1"}
    for name, value in options.items():
        if value == "http":
            given[name] = given[name].replace("https", "http")
        elif name == "url":
            given[name] = given[name].replace("127.0.0.1", value)
        elif value:
            given[name] = str(broker.folder / value)
        else:
            del given[name]
    with pytest.raises(PySparkException) as raised:
        count(spark, given)
    assert said in last_line(raised.value)
