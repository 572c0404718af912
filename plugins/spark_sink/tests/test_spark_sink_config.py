"""Test the configuration. Every error is reported before anything starts, and no token is shown."""

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import HookMQError
from hookmq_spark_sink.plugin import SparkSinkPlugin
from hookmq_testing import load_plugins

TOKEN = "a-token-that-is-secret"
STREAM: dict[str, Any] = {"name": "all", "topics": ["#"]}


def write(tmp_path: Path, **config: Any) -> Path:
    settings = {"path": str(tmp_path / "spark"), "streams": [STREAM], **config}
    path = tmp_path / "hookmq.yaml"
    listeners = [{"name": "tcp", "bind": "127.0.0.1:0"}]
    plugins = [{"use": "spark_sink", "config": settings}]
    path.write_text(json.dumps({"version": 1, "listeners": listeners, "plugins": plugins}))
    return path


def make(tmp_path: Path, **config: Any) -> SparkSinkPlugin:
    plugin = load_plugins(write(tmp_path, **config))[0].plugin
    assert isinstance(plugin, SparkSinkPlugin)
    return plugin


def test_it_is_installed() -> None:
    [entry] = entry_points(group="hookmq.plugins", name="spark_sink")
    assert entry.load() is SparkSinkPlugin


def test_the_least_configuration(tmp_path: Path) -> None:
    plugin = make(tmp_path)
    assert plugin.config.streams[0].partitions == 1
    assert plugin.config.api is None
    assert not (tmp_path / "spark").exists()  # nothing is opened


ACCESS = [{"token": TOKEN}]
QUEUE = {"name": "all", "queue": "log"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"streams": []}, "at least one is required"),
        ({"streams": [STREAM, {**STREAM, "name": "ALL"}]}, "is listed twice"),
        ({"streams": [{**STREAM, "name": "../x"}]}, "is not a name"),
        ({"streams": [{**STREAM, "topics": []}]}, "neither a topic filter nor a queue"),
        ({"streams": [{**STREAM, "topics": ["a/#/b"]}]}, "is not a topic filter"),
        ({"streams": [{**STREAM, "topics": ["$share/g/a"]}]}, "cannot use a shared subscription"),
        ({"streams": [{**STREAM, "partitions": 0}]}, "partitions"),
        ({"streams": [{**STREAM, "on_full": "drop"}]}, "on_full"),
        ({"streams": [{**STREAM, "max_bytes": "1MiB"}]}, "quarter of max_bytes"),
        ({"streams": [{**STREAM, "retention_bytes": "20GiB"}]}, "more than max_bytes"),
        ({"streams": [{**STREAM, "consumers": ["a b"]}]}, "is not a name"),
        ({"streams": [{**STREAM, "consumers": ["a", "a"]}]}, "twice"),
        ({"streams": [{**STREAM, "partition": 2}]}, "partitions"),
        ({"streams": [{**STREAM, "queue": "log"}]}, "has topics; give one of the two"),
        ({"streams": [{"name": "all"}]}, "neither a topic filter nor a queue"),
        ({"streams": [{**QUEUE, "queue": "$queue/log"}]}, "is not the name of a queue"),
        ({"streams": [{**QUEUE, "partitions": 2}]}, "partitions: the stream all serves a queue"),
        ({"streams": [{**QUEUE, "retention_time": "1d"}]}, "retention_time: the stream all"),
        ({"streams": [QUEUE, {**QUEUE, "name": "b"}]}, "two of them serve the queue log"),
        ({"api": {}}, "nobody could read"),
        ({"api": {"access": [{}]}}, "either token or common_name"),
        ({"api": {"access": [{"token": "short"}]}}, "at least 16 characters"),
        ({"api": {"access": [{"common_name": "spark"}]}}, "clients are not asked"),
        ({"api": {"access": [*ACCESS, *ACCESS]}}, "the same token"),
        ({"api": {"access": [{"token": TOKEN, "streams": ["x"]}]}}, "no stream x"),
        ({"api": {"access": ACCESS, "bind": "0.0.0.0:1"}}, "would reveal tokens to the network"),
        ({"api": {"access": ACCESS, "bind": "localhost"}}, "not HOST:PORT"),
        ({"api": {"access": ACCESS, "tls": {"certificate": "/nowhere.pem"}}}, "nowhere.pem"),
    ],
)
def test_mistakes(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(HookMQError, match=message) as raised:
        make(tmp_path, **config)
    assert TOKEN not in str(raised.value)


def test_a_token_is_never_shown(tmp_path: Path) -> None:
    path = write(tmp_path, api={"access": ACCESS})
    for words in (["check"], ["config", "show"]):
        done = subprocess.run(
            [sys.executable, "-m", "hookmq.cli", *words, "-c", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert TOKEN not in done.stdout + done.stderr
    plugin = make(tmp_path, api={"access": ACCESS})
    assert TOKEN not in repr(plugin) + repr(plugin.config)
