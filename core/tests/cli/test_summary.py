"""Test the summary that explains what a configuration means in practice."""

import pytest
from hookmq.cli import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the core appear to be the only installed distribution."""
    monkeypatch.setattr("hookmq.config.plugins.installed", tuple)


def test_the_default_is_right_and_says_what_it_means(core_alone: None, capsys: Captured) -> None:
    assert main(["check"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("built-in default: valid\n")
    assert "mqtt://127.0.0.1:1883" in out
    assert "ws://127.0.0.1:8083/mqtt" in out
    assert "tcp      everybody: no plugin authenticates, and auth.default is allow" in out
    assert "memory: nothing survives a restart" in out
    assert (
        "a restart loses them; to keep them, in a checkout: uv pip install ./plugins/storage" in out
    )
    assert main(["serve", "--check"]) == 0
    assert capsys.readouterr().out == out


def test_the_summary_warns_of_listeners_open_to_the_network(capsys: Captured) -> None:
    assert main(["check", "-o", "listeners.0.bind=*:1883"]) == 0
    assert "anyone who can reach tcp (*:1883) may connect" in capsys.readouterr().out


def test_the_banner_says_what_to_try() -> None:
    from hookmq.cli.summary import banner
    from hookmq.config.model import default_config
    from hookmq.hooks.manager import Hooks

    config = default_config(environ={})
    text = banner(config, Hooks(), {"tcp": "127.0.0.1:1883", "ws": "127.0.0.1:8083"})
    assert "  tcp      mqtt://127.0.0.1:1883\n" in text
    assert "  ws       ws://127.0.0.1:8083/mqtt\n" in text
    assert "anonymous clients may connect, from this machine only" in text
    assert "a restart loses them" in text
    assert "  hookmq sub -t 'hello/#' -v\n" in text
    assert "to keep them, in a checkout: uv pip install ./plugins/storage" in text
    assert "  data " not in text
    text = banner(config, Hooks(), {"tcp": "127.0.0.1:2000"})
    assert "  hookmq pub -p 2000 -t hello/world -m 'it works'\n" in text
