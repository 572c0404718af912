"""Test HTTPS from a broker's read API to Spark's readers: a private authority, a wrong authority, no authority, and
client certificates.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from broker import HOOKMQ, TOKEN, Broker
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark_mqtt.publisher import Message
from queries import available_now, last_line

# Made by the repository's environment, which has trustme.
CERTIFICATES = """\
import sys, trustme
from pathlib import Path
folder = Path(sys.argv[1])
ours, other = trustme.CA(), trustme.CA()
for name, authority in (("ca", ours), ("other", other)):
    authority.cert_pem.write_to_path(folder / f"{name}.pem")
server = ours.issue_cert("127.0.0.1", "localhost")
server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
for name, authority in (("spark", ours), ("flink", ours), ("forged", other)):
    made = authority.issue_cert("client.example", common_name="spark" if name == "forged" else name)
    made.private_key_pem.write_to_path(folder / f"{name}.key")
    made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
"""


class Secured(Broker):
    """A broker whose read API uses HTTPS and requires client certificates."""

    required = "optional"

    @property
    def read(self) -> dict[str, str]:
        return super().read | {
            "url": f"https://127.0.0.1:{self.api_port}",
            "caFile": str(self.folder / "ca.pem"),
        }

    def configuration(self) -> dict[str, Any]:
        made = super().configuration()
        made["plugins"][1]["config"]["api"] |= {
            "tls": {
                "certificate": str(self.folder / "server.pem"),
                "client_ca": str(self.folder / "ca.pem"),
                "client_certificates": self.required,
            },
            "access": [{"token": TOKEN}, {"common_name": "spark"}],
        }
        return made


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("secured")
    python = HOOKMQ.with_name("python")
    subprocess.run([python, "-c", CERTIFICATES, folder], check=True)
    made = Secured(folder)
    made.start()
    try:
        made.publish([Message(f"t/{n % 5}", b"%d" % n) for n in range(200)])
        yield made
    finally:
        made.kill()


def certificate(broker: Secured, name: str) -> dict[str, str]:
    return {
        "certFile": str(broker.folder / f"{name}.pem"),
        "keyFile": str(broker.folder / f"{name}.key"),
    }


def count(spark: SparkSession, options: dict[str, str]) -> int:
    return spark.read.format("mqtt").options(**options).load().count()


def test_a_batch_and_a_stream_over_https(
    spark: SparkSession, broker: Secured, tmp_path: Path
) -> None:
    assert count(spark, broker.read) == 200
    frame = spark.readStream.format("mqtt").options(**broker.read, consumerGroup="etl").load()
    assert sum(one["numInputRows"] for one in available_now(frame, tmp_path)) == 200


def test_a_certificate_in_the_place_of_a_token(spark: SparkSession, broker: Secured) -> None:
    options = {name: value for name, value in broker.read.items() if name != "token"}
    assert count(spark, options | certificate(broker, "spark")) == 200
    for more, said in (
        ({}, "wants a token"),
        (certificate(broker, "flink"), "knows nobody of the certificate's name"),
        (certificate(broker, "forged"), "it may not know the authority of certFile"),
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
