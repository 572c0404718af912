"""Test how the effective configuration is displayed, including the origins of values. Secrets are hidden."""

import pathlib

from hookmq.config.model import default_config, loads
from hookmq.config.show import masked, show

TEXT = """version: 1
listeners:
  - name: tls
    type: tls
    tls: {certificate: a.pem, key_password: hunter2}
plugins:
  - use: webhook
    filters: [a/#]
    config:
      url: https://me:hunter2@example.org/x
      secret: hunter2
      key: {$env: KEY}
      other: {$file: key}
      nested: {token: hunter2, plain: seen}
      list: [{password: hunter2}, {$env: KEY}]
"""


def test_the_shown_configuration_can_be_loaded_again() -> None:
    config = default_config(["broker.max_qos=1", "broker.shared_groups.g=random"], {})
    again = loads(show(config, origins=False), environ={})
    assert again == config
    assert loads(show(config), environ={}) == config


def test_every_value_says_where_it_came_from() -> None:
    config = loads(
        "version: 1\nlisteners: [{name: x}]\n",
        "f.yaml",
        ["log.level=debug"],
        {"HOOKMQ__BROKER__MAX_QOS": "1", "SECRET": "s", "HOOKMQ__SESSION__QUEUE_QOS0": "true"},
    )
    lines = {line.split(":")[0].strip(): line for line in show(config).splitlines()}
    assert lines["- name"].endswith("# f.yaml:2")
    assert lines["backlog"].endswith("# default")
    assert lines["max_qos"].endswith("# environment HOOKMQ__BROKER__MAX_QOS")
    assert lines["level"].endswith("# option -o log.level")
    assert lines["hold_timeout"].startswith("  hold_timeout: 1m ")
    assert lines["max_packet_size"].startswith("  max_packet_size: 1MiB ")


def test_secrets_are_masked_wherever_they_are(tmp_path: pathlib.Path) -> None:
    (tmp_path / "key").write_text("hunter2")
    config = loads(TEXT, "f", environ={"KEY": "hunter2"}, folder=tmp_path)
    text = show(config)
    assert "hunter2" not in text
    assert text.count("'***'") == 7
    assert "https://me:***@example.org/x" in text
    assert "plain: seen" in text
    assert "# f:12, $env: KEY" in text


def test_headers_of_requests_are_masked() -> None:
    """Request headers are masked, because a service may expect an API key in a header with any name."""
    headers = "{x-honeycomb-team: hunter2, content-language: hunter2}"
    plugins = f"plugins: [{{use: unknown, config: {{headers: {headers}}}}}]"
    text = show(loads(f"version: 1\nlisteners: [{{type: tcp}}]\n{plugins}\n"))
    assert "hunter2" not in text
    assert "x-honeycomb-team: '***'" in text


def test_a_password_that_is_not_set_is_shown_as_such() -> None:
    config = loads("version: 1\nlisteners: [{type: tls, tls: {certificate: a}}]\n", environ={})
    assert "key_password: ''" in show(config)


def test_only_the_password_of_a_url_is_masked() -> None:
    assert masked("a://u:p@h/x, b://v:q@i") == "a://u:***@h/x, b://v:***@i"
    assert masked("see a://h:1883/x@y and mail@x:y") == "see a://h:1883/x@y and mail@x:y"
