"""Test options: valid values, and the errors for invalid ones."""

import pytest
from pyspark_mqtt.errors import OptionError
from pyspark_mqtt.options import READ, WRITE, reading, secret, topic_filter_fault, writing

READS = {"url": "https://broker:1890", "stream": "all"}
WRITES = {"brokerUrl": "mqtt://broker"}


def test_names_are_case_insensitive() -> None:
    options = reading({"URL": "http://a:1", "Stream": "x", "MAXOFFSETSPERTRIGGER": "5"})
    assert options.limit("maxOffsetsPerTrigger") == 5
    assert options.url("url").port == 1


def test_defaults() -> None:
    options = reading(READS)
    assert options.flag("failOnDataLoss")
    assert options.limit("maxOffsetsPerTrigger") is None
    assert options.offsets("startingOffsets") is None
    waits = options.number("fetchOffset.numRetries") * options.number("fetchOffset.retryIntervalMs")
    assert waits >= 60_000  # A restart of a broker is outlasted.
    assert writing(WRITES).number("qos") == 1


def test_load_and_save_give_the_address() -> None:
    assert reading({"path": "http://a:1", "stream": "x"}).url("url").hostname == "a"
    assert writing({"path": "mqtt://a:1"}).url("brokerUrl").hostname == "a"


def test_assign_names_the_stream() -> None:
    options = reading({"url": "http://a:1", "Assign": '{"plant": [2, 0]}'})
    assert (options.text("stream"), options.assigned) == ("plant", (0, 2))
    with pytest.raises(OptionError, match="Option assign is"):
        reading({"url": "http://a:1", "assign": "[0]"})


def test_what_spark_adds_is_no_error() -> None:
    assert writing(WRITES | {"checkpointLocation": "/tmp/x", "queryName": "q"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"maxOffsetPerTrigger": "5"}, "did you mean maxOffsetsPerTrigger?"),
        ({"fail_on_data_loss": "false"}, "did you mean failOnDataLoss?"),
        ({"kafka.bootstrap.servers": "a:1"}, "`url` is the address"),
        ({"subscribe": "a"}, "`topics` the topic filters"),
        ({"brokerUrl": "mqtt://a"}, "reading goes by the broker's read API"),
        ({"wibble": "1"}, "known are url, stream, assign, topics"),
        ({"url": "broker:1890"}, "must begin with http://"),
        ({"url": "mqtt://broker:1883"}, "must begin with http://"),
        ({"url": "http://broker"}, "names no port"),
        ({"url": "http://broker:port"}, "is not a URL"),
        ({"url": "http://me:pw@broker:1"}, "must not hold a password"),
        ({"stream": "a b"}, "must be 1 to 128 of"),
        ({"maxOffsetsPerTrigger": "0"}, "must be a whole number of at least 1"),
        ({"maxOffsetsPerTrigger": "many"}, "must be a whole number of at least 1"),
        ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "more than maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "such as 500ms, 30s or 15m"),
        ({"failOnDataLoss": "no"}, "must be true or false"),
        ({"startingOffsets": "first"}, "must be earliest or latest, or JSON"),
        ({"startingOffsets": "5"}, "must be earliest or latest, or JSON"),
        ({"startingOffsets": "{}"}, "must be earliest or latest, or JSON"),
        ({"startingOffsets": '{"0": -3}'}, "must be earliest or latest, or JSON"),
        ({"startingOffsets": '{"all": {"0": 1}}'}, "must be earliest or latest, or JSON"),
        ({"endingOffsets": "earliest"}, "must be latest, or JSON"),
        ({"startingOffsets": "earliest", "startingTimestamp": "1"}, "not both"),
        ({"startingOffsets": "latest", "startingOffsetsByTimestamp": '{"0": 1}'}, "not both"),
        ({"startingTimestamp": "1", "startingOffsetsByTimestamp": '{"0": 1}'}, "not both"),
        ({"endingTimestamp": "1", "endingOffsetsByTimestamp": '{"0": 1}'}, "not both"),
        ({"startingOffsetsByTimestamp": '{"all": {"0": 1}}'}, "milliseconds by partition"),
        ({"startingOffsetsByTimestamp": '{"0": -1}'}, "milliseconds by partition"),
        ({"endingOffsetsByTimestamp": "[]"}, "milliseconds by partition"),
        ({"assign": '{"other": [0]}'}, "assign names stream other, and stream names all"),
        ({"assign": "[0]"}, "one stream and its partitions"),
        ({"assign": '{"all": []}'}, "one stream and its partitions"),
        ({"assign": '{"all": [0, 0]}'}, "names a partition twice"),
        ({"subscribePattern": "a("}, "is not a regular expression of RE2"),
        ({"subscribePattern": ""}, "must not be empty"),
        ({"topics": "a/#/b"}, "has a # that is not the whole last level"),
        ({"topics": "a/b+"}, "has a + that is not a whole level"),
        ({"topics": "a,,b"}, "is empty"),
        ({"topics": "[1]"}, "must be a JSON list of strings"),
        ({"token": "x", "tokenFile": "/y"}, "token or tokenFile, not both"),
        ({"certFile": "/x"}, "go together"),
        ({"startingOffsetsByTimestampStrategy": "none"}, "must be one of error, latest"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        reading(READS | given)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"brokerUrl": "http://broker"}, "must begin with mqtt://"),
        ({"qos": "2"}, "from 0 to 1"),
        ({"topic": "a/+"}, "has a wildcard"),
        ({"mqttVersion": "4"}, "must be one of 5, 3.1.1"),
        ({"clientId": "me"}, "each task has one of its own"),
        ({"stream": "all"}, "Unknown option stream"),
        ({"mqttVersion": "3.1.1", "password": "x"}, "needs username"),
    ],
)
def test_a_mistake_of_a_writer_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as raised:
        writing(WRITES | given)
    assert said in str(raised.value)


@pytest.mark.parametrize(("options", "given"), [(reading, READS), (writing, WRITES)])
def test_what_is_needed_is_asked_for(options: object, given: dict[str, str]) -> None:
    assert callable(options)
    for name in given:
        with pytest.raises(OptionError, match=f"Option {name} is missing"):
            options({n: v for n, v in given.items() if n != name})


def test_a_secret_is_not_shown() -> None:
    with pytest.raises(OptionError) as raised:
        reading(READS | {"token": ""})
    assert str(raised.value) == "Option token must not be empty."


def test_a_file_that_cannot_be_read() -> None:
    with pytest.raises(OptionError, match="must be on every node"):
        secret(reading(READS | {"tokenFile": "/does/not/exist"}), "token")


def test_filters() -> None:
    assert reading(READS | {"topics": "a/+/b, c/#"}).filters("topics") == ("a/+/b", "c/#")
    assert reading(READS | {"topics": '["a,b/#", "+"]'}).filters("topics") == ("a,b/#", "+")
    assert [topic_filter_fault(f) for f in ("#", "+", "a//b", "$SYS/#", "/")] == [None] * 5


def test_every_option_is_in_the_readme() -> None:
    from pathlib import Path

    text = (Path(__file__).parents[1] / "README.md").read_text()
    for table in (READ, WRITE):
        for option in table.values():
            assert f"`{option.name}`" in text, option.name
