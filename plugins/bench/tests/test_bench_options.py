"""Test the command line: which plan its options describe, and the error for each mistake."""

import re
import shlex
from pathlib import Path

import pytest
from hookmq.plugin import ConfigError, Properties
from hookmq_bench.options import EXAMPLES, add_options, limits_of, plan_of
from hookmq_bench.plan import SCENARIOS, Limits, Plan
from hookmq_testing import Parser
from pages import blocks
from workspace import ROOT


def parser() -> Parser:
    made = Parser(prog="hookmq bench")
    add_options(made)
    return made


def planned(*words: str) -> Plan:
    return plan_of(parser().parse(words))


def test_omitted_options_have_their_defaults() -> None:
    plan = planned("pair")
    assert (plan.publishers, plan.subscribers, plan.window, plan.qos, plan.size) == (
        50,
        50,
        20,
        0,
        64,
    )
    assert (plan.duration, plan.warm_up, plan.count, plan.rate) == (10.0, 1.0, 0, 0.0)
    assert (plan.target.address, plan.target.version) == ("127.0.0.1:1883", 4)
    assert plan.prefix == f"hookmq-bench-{plan.run:06x}"
    assert plan.topic_of(3) == f"hookmq-bench/{plan.run:06x}/3"
    assert planned("pair").run != plan.run


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_has_its_numbers(name: str) -> None:
    plan, kind = planned(name), SCENARIOS[name]
    assert (plan.publishers, plan.clients) == (kind.publishers, kind.clients)
    assert plan.subscribers == kind.subscribers


def test_a_count_ends_a_run_instead_of_a_time() -> None:
    plan = planned("pair", "--count", "100")
    assert (plan.duration, plan.warm_up, plan.count) == (0.0, 0.0, 100)


def test_a_ramp_is_warm_up() -> None:
    assert planned("pair", "--rate", "10", "--ramp-up", "3s").warm_up == 3.0


def test_a_fixed_rate_needs_no_window() -> None:
    assert planned("pair", "--rate", "1000").window == 0
    assert planned("pair", "--rate", "1000", "--window", "5").window == 5


def test_everything_that_a_connection_needs(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("x")
    plan = planned(
        "fanin", "-L", "wss://u:p@localhost:1234/a/{i}", "--cafile", str(ca), "-V", "5", "-i", "x", "-c", "-x", "60",
        "-D", "publish", "user-property", "a", "b", "-D", "publish", "user-property", "c", "d",
        "-D", "subscribe", "subscription-identifier", "7", "-D", "connect", "receive-maximum", "9",
    )  # fmt: skip
    target = plan.target
    assert (target.host, target.port, target.tls, target.websocket) == (
        "localhost",
        1234,
        True,
        True,
    )
    assert (target.username, target.password, target.clean_start, target.session_expiry) == (
        "u",
        "p",
        False,
        60,
    )
    assert (plan.topic, plan.prefix) == ("a/{i}", "x")
    assert plan.properties_of("publish") == Properties(user_property=(("a", "b"), ("c", "d")))
    assert plan.properties_of("subscribe") == Properties(subscription_identifier=(7,))
    assert plan.properties_of("connect") == Properties(receive_maximum=9)
    assert plan.properties_of("will") == Properties()


def test_a_payload_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "payload"
    file.write_bytes(b"\0" * 100)
    assert planned("pub", "--payload-file", str(file)).size == 124
    assert planned("pub", "--payload", "1KiB").size == 1024


def test_limits() -> None:
    words = [
        "pair",
        "--fail-on-loss",
        "--max-p99",
        "5ms",
        "--max-p50",
        "1",
        "--max-p999",
        "2s",
        "--min-rate",
        "1e3",
    ]
    assert limits_of(parser().parse(words)) == Limits(True, 1.0, 0.005, 2.0, 1000.0)
    assert limits_of(parser().parse(["pair"])) == Limits()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("pair -h broker.example", "not this machine"),
        ("pair -L mqtt://10.0.0.1", "--yes-remote"),
        ("pair --clients 5", "--clients is for connect, churn, not pair"),
        ("connect --publishers 5", "--publishers is for pub, pair, fanin, fanout, not connect"),
        ("pair --subscribers 5", "--subscribers is for sub, fanin, fanout, not pair"),
        ("connect --storm 5s", "--storm is for churn, not connect"),
        ("pair --abrupt", "--abrupt is for churn"),
        ("pair --shared", "--shared is for sub, fanin, fanout"),
        ("sub --rate 5", "--rate is for"),
        ("pair --window 0", "--window 0 needs --rate"),
        ("pair --window 70000", "at most 65535"),
        ("pair --ramp-up 5s", "--ramp-up needs --rate"),
        ("pair --payload 23", "at least 24 bytes"),
        ("pub --payload 300MiB", "256 MiB"),
        ("pub --payload 99999GiB", "256 MiB"),
        ("pub --payload 64 --payload-file x", "use either"),
        ("pub --payload-file /no/such/file", "No such file"),
        ("pub -t a/#", "is a filter"),
        ("pair -t same", "pair needs one topic for each"),
        ("fanin -t a/x{i}", "as a whole level"),
        ("pair --duration 0", "needs --count"),
        ("pair -d", "too many packets"),
        ("pair -c", "needs a client id"),
        ("pair -D publish user-property a b", "need -V mqttv5"),
        ("pair -V 5 -D disconnect reason-string a", "sends no such packet"),
        ("churn --abrupt --will-topic w --will-payload x", "needs its own payload"),
    ],
)
def test_contradicting_options_are_refused(words: str, told: str) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(*words.split())
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("pear", "invalid choice: 'pear'"),
        ("", "SCENARIO"),
        ("pair --publishers 0", "expected a whole number above 0, not '0'"),
        ("pair --rate fast", "expected a number from 0 to 1e9, not 'fast'"),
        ("pair --payload big", "expected a size such as 512 or 16KiB, not 'big'"),
        ("pair --duration long", "expected a time such as 5s or 250ms, not 'long'"),
        ("pair -q 3", "expected 0, 1 or 2, not '3'"),
        ("pair --publisher 3", "did you mean --publishers?"),
        ("pair -A 127.0.0.1", "unknown argument -A"),
        ("pair --bind 127.0.0.1", "unknown argument --bind"),
        ("pair -I x", "unknown argument -I"),
        ("pair --unix /run/socket", "unknown argument --unix"),
        ("pair -M 5", "unknown argument -M"),
        ("pair --nodelay", "unknown argument --nodelay"),
    ],
)
def test_invalid_options_are_refused_with_the_reason(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        planned(*words.split())
    assert left.value.code == 2
    assert told in capsys.readouterr().err


def test_another_machine_needs_a_confirmation() -> None:
    assert planned("pair", "-h", "10.0.0.1", "--yes-remote").target.host == "10.0.0.1"
    assert planned("pair", "-h", "localhost").target.host == "localhost"
    assert planned("pair", "-L", "mqtt://[::1]").target.host == "::1"


def shown() -> list[str]:
    """Return every command line shown in the manual."""
    found = []
    for page in (ROOT / "plugins/bench/README.md", ROOT / "docs/how-to/load-test.md"):
        for block in blocks(page):
            lines = block.text.replace("\\\n", " ").splitlines()
            found += [
                line.removeprefix("$ ")
                for line in lines
                if line.removeprefix("$ ").startswith("hookmq bench ")
            ]
    found += [line.strip() for line in EXAMPLES.splitlines() if line.startswith("  hookmq bench ")]
    return [line for line in found if not line.split()[2].endswith(":")]  # that is output


@pytest.mark.parametrize("line", shown())
def test_the_commands_of_the_manual_are_valid(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / name).touch()
    words = shlex.split(re.split(r"   +|#", line.strip())[0])
    assert planned(*words[2:]).scenario == words[2]


def test_the_manual_names_every_option() -> None:
    text = (ROOT / "plugins/bench/README.md").read_text()
    options = {option for action in parser()._actions for option in action.option_strings}
    assert {"--rate", "-q", "--cafile", "--max-p99"} < options
    documented = set(re.findall(r"`(--?[a-zA-Z0-9][-a-z0-9]*)`", text))
    long_of_short = {
        "--host",
        "--port",
        "--id",
        "--username",
        "--pw",
        "--protocol-version",
        "--keepalive",
    }
    long_of_short |= {
        "--disable-clean-session",
        "--session-expiry-interval",
        "--property",
        "--debug",
        "--help",
    }
    assert options - documented <= long_of_short
    assert documented - options == set()
