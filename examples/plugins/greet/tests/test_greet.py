"""Test the greeting: over HTTP, with the command, and in the metrics."""

import urllib.request
from pathlib import Path

import pytest
from hookmq_example_greet.plugin import GreetPlugin
from hookmq_testing import run_command
from hookmq_testing.contracts import PluginContract
from recording import Client
from serving import Served, serving


class TestContract(PluginContract):
    kind = GreetPlugin
    use = "example_greet"
    configs = ({}, {"topic": "a/b", "text": "{name}!"})
    bad_configs = ({"text": "hello"}, {"topics": "x"})


CONFIG = """\
version: 1
listeners:
  - {name: tcp, bind: "127.0.0.1:0"}
  - {name: http, type: http, bind: "127.0.0.1:0"}
auth: {default: allow}
authz: {default: allow}
plugins:
  - {use: example_greet, id: greet}
"""


def metrics(broker: Served) -> str:
    with urllib.request.urlopen(
        f"http://127.0.0.1:{broker.ports['http']}/metrics", timeout=60
    ) as page:
        text: str = page.read().decode()
    return text


def test_a_greeting(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "hookmq.yaml").write_text(CONFIG)
    with serving("-c", str(tmp_path / "hookmq.yaml")) as broker:
        url = f"http://127.0.0.1:{broker.ports['http']}/plugins/greet"
        with Client(broker.ports["tcp"]) as client:
            client.subscribe("greetings/+", 1)
            assert run_command(["greet", "ada", "--url", url]) == 0
            message = client.message()
            assert (message.topic, message.payload) == ("greetings/ada", b"hello, ada")
        assert run_command(["greet", "nobody", "--url", url]) == 0
        assert capsys.readouterr().out == '{"matched": 1}\n{"matched": 0}\n'
        assert 'hookmq_greetings_total{plugin="greet"} 2' in metrics(broker)
        assert run_command(["greet", "a+b", "--url", url]) == 1
        assert "422" in capsys.readouterr().err
        assert 'hookmq_greetings_total{plugin="greet"} 2' in metrics(broker)


def test_without_a_broker_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["greet", "ada", "--url", "http://127.0.0.1:1/plugins/greet"]) == 1
    assert "hookmq: http://127.0.0.1:1/plugins/greet: " in capsys.readouterr().err
