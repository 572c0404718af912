"""Test converting mosquitto's bridges."""

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from hookmq.config_api import bind_values
from hookmq.plugin import ConfigError
from hookmq_sinks.bridge_cli import add_arguments
from hookmq_sinks.config import SinksConfig
from hookmq_sinks.mosquitto_bridge import convert

FULL = """\
listener 1883
max_queued_messages 5
connection hq one
address a.example.com:8883 b.example.com
topic # both 1 plant/ sites/north/
topic commands/# in 2
topic "" out 0 local/state remote/state
topic plain
bridge_psk 1234
bridge_insecure true
cleansession true
remote_username north
remote_password secret
remote_clientid north-bridge
local_username bridge
notification_topic bridges/state
keepalive_interval 30
round_robin true
start_type lazy
bridge_max_packet_size 2000
bridge_outgoing_retain false
restart_timeout 5 30

# the second
connection other
addresses c.example.com
bridge_protocol_version mqttv311
notifications false
topic x/# both 1
listener 1884
password_file passwd
"""


def load(text: str) -> tuple[dict[str, Any], list[str]]:
    made = convert(text, "north")
    notes = [line[2:] for line in made.splitlines() if line.startswith("# ")]
    config = yaml.safe_load(made)["plugins"][0]["config"]
    return config, notes


def bound(config: Any) -> SinksConfig:
    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            if "$env" in value:
                return "secret"
            return {key: plain(one) for key, one in value.items()}
        return [plain(one) for one in value] if isinstance(value, list) else value

    made: SinksConfig = bind_values(SinksConfig, plain(config))
    return made


def test_everything_with_a_counterpart_is_taken_over() -> None:
    config, _ = load(FULL)
    made = bound(config)
    out, other = made.sinks
    assert (out.name, out.topics) == ("hq-one-out", ("plant/#", "local/state", "plain"))
    target = out.target
    assert [str(one) for one in target.remotes] == ["a.example.com:8883", "b.example.com:1883"]
    assert (target.username, target.client_id, target.retain) == (
        "north",
        "north-bridge-out",
        False,
    )
    assert (target.keep_alive, target.round_robin, target.session_expiry) == (30, True, 0)
    assert (target.max_packet_size, target.state_topic) == (2000, "bridges/state")
    assert [(one.local_filter, one.remote_filter, one.qos) for one in target.rules] == [
        ("plant/#", "sites/north/#", 1),
        ("local/state", "remote/state", 0),
        ("plain", "plain", 0),
    ]
    inward = made.sources[0]
    assert (inward.name, inward.identity) == ("hq-one-in", "bridge")
    assert (inward.origin.client_id, inward.origin.state_topic) == ("north-bridge", "")
    assert [(one.local_filter, one.remote_filter, one.qos) for one in inward.origin.rules] == [
        ("plant/#", "sites/north/#", 1),
        ("commands/#", "commands/#", 2),
    ]
    assert (other.target.protocol, other.target.broker) == ("3.1.1", "north")


def test_what_is_left_out_is_named_and_secrets_are_not_copied() -> None:
    config, notes = load(FULL)
    text = "\n".join(notes)
    for word in ("bridge_psk", "bridge_insecure", "start_type lazy", "QoS 0", "restart_timeout"):
        assert word in text
    assert "other: with MQTT 3.1.1, messages that the remote broker sends back" in text
    assert "HQ_ONE_PASSWORD" in text
    assert config["sinks"][0]["target"]["password"] == {"$env": "HQ_ONE_PASSWORD"}
    assert "secret" not in convert(FULL, "north")
    assert "1234" not in convert(FULL, "north")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listener 1883\n", "no bridge"),
        ("connection a\ntopic #\n", ":1: the bridge a has no address"),
        ("connection a\naddress b\n", ":1: the bridge a has no topic"),
        ("connection\n", ":1: connection without a name"),
        ("connection a\naddress b\ntopic # sideways\n", ":3:1: 'sideways' is not a direction"),
        ("connection a\naddress b\ntopic # in 3\n", ":3:1: '3' is not a QoS"),
        ("connection a\naddress b\ntopic # in 1 a b c\n", ":3:1: expected PATTERN"),
        ("connection a\naddress b\ntopic #\nkeepalive_interval x\n", ":4:1: 'x' is not a number"),
    ],
)
def test_mistakes_have_a_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        convert(text, "north")
    assert message in str(caught.value)


def test_the_command_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser()
    add_arguments(parser)

    def run(*words: str) -> int:
        arguments = parser.parse_args(["import", str(tmp_path / "m.conf"), *words])
        code: int = arguments.run(arguments)
        return code

    (tmp_path / "m.conf").write_text("connection a\naddress b\ntopic #\n")
    made = tmp_path / "made.yaml"
    assert run("--broker", "x", "-o", str(made)) == 0
    assert "use: sinks" in made.read_text()
    with pytest.raises(ConfigError, match="file exists"):
        run("-o", str(made))
    capsys.readouterr()
    assert run("--broker", "x") == 0
    assert capsys.readouterr().out == made.read_text()
    (tmp_path / "m.conf").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not UTF-8"):
        run()
