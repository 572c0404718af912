"""Test that a failure never grants access: CVE-2018-12550, CVE-2018-12551, CVE-2017-7652,
CVE-2026-95848.

The tests cover plugins that raise, return invalid values or nothing, or cannot be loaded. They also
cover configurations that are missing, empty, truncated or wrong, at startup and on reload.
"""

import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import mqttbytes as m
import pytest
from attacks import SECRET, TOKEN, check_entries
from byteclient import over_tcp
from hookmq.config.model import load, loads
from hookmq.config.plugins import build
from hookmq.model.errors import ConfigError
from hookmq.model.message import Message
from hookmq.model.subscription import Subscription
from hookmq.mqtt.errors import HookMQError
from hookmq.mqtt.packets import Connack, Suback
from hookmq.plugin import Accept, Allow, Challenge, Deny, Drop
from hookmq_testing import Harness, HookRecorder, will
from serving import HOOKMQ, serving

HOOKS = ("on_connect", "authorize", "on_publish", "on_subscribe", "on_will", "on_auth")


class Truthy:
    """An object that is true, equals everything and has every attribute."""

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class MyAccept(Accept):
    """A subclass of a verdict, which is not a valid verdict."""


async def nonsense() -> Any:
    return True


async def raising() -> Any:
    raise RuntimeError(SECRET)


async def twice() -> Any:
    return nonsense()


FAULTS: dict[str, Any] = {
    "raises": ValueError(SECRET),
    "raises what is no Exception's child": SystemError(),
    "recursion": RecursionError(),
    "timeout": "timeout",
    "True": True,
    "False": False,
    "0": 0,
    "1": 1,
    "text": "allow",
    "bytes": b"\x00",
    "class Allow": Allow,
    "class Accept": Accept,
    "truthy": Truthy(),
    "list": [Allow()],
    "function": lambda: True,
    "coroutine of nonsense": lambda: nonsense(),
    "coroutine that raises": lambda: raising(),
    "coroutine of a coroutine": lambda: twice(),
    "generator": lambda: (one for one in (Allow(),)),
    "subclass": MyAccept(),
}
WRONG: dict[str, list[Any]] = {
    "on_connect": [Allow(), Challenge(b""), Drop()],
    "authorize": [Accept(), Challenge(b""), Drop()],
    "on_publish": [
        Allow(),
        Accept(),
        Subscription("#", "#"),
        Message("", b""),
        Message("a/#", b""),
    ],
    "on_subscribe": [
        Allow(),
        Accept(),
        Drop(),
        Message("t", b""),
        Subscription("x", "t"),
        Subscription("t", "a/#/b"),
    ],
    "on_will": [Allow(), Accept(), Subscription("#", "#"), Message("", b"")],
    "on_auth": [Allow(), Drop()],
}
CASES = [(hook, name, fault) for hook in HOOKS for name, fault in FAULTS.items()]
CASES += [
    (hook, repr(type(fault).__name__) + str(n), fault)
    for hook in HOOKS
    for n, fault in enumerate(WRONG[hook])
]


def opened(harness: Harness, witness: Any, number: int) -> set[str]:
    """Return the actions that a client could perform on a broker with a broken plugin."""
    name = f"c{number}"
    found: set[str] = set()
    client = harness.connect(name, expect=None)
    harness.advance(60)
    if not any(isinstance(one, Connack) and one.code == 0 for one in client.received):
        assert client.closed
        return found
    found.add("connect")
    client.send_subscribe("t", 1)
    harness.advance(60)
    if any(isinstance(one, Suback) and one.codes[0] < 0x80 for one in client.received):
        found.add("subscribe")
    client.publish("t", b"x", qos=1)
    harness.advance(60)
    if witness.messages:
        found.add("publish")
    witness.received.clear()
    client.drop()
    failing = harness.connect(name + "w", will=will("t", b"x"), expect=None)
    harness.advance(60)
    if any(isinstance(one, Connack) and one.code == 0 for one in failing.received):
        failing.drop()
        harness.advance(60)
        if witness.messages:
            found.add("will")
    witness.received.clear()
    return found


@pytest.mark.parametrize(("hook", "name", "fault"), CASES, ids=[f"{h}-{n}" for h, n, _ in CASES])
def test_a_broken_plugin_closes_what_it_decides(
    broker_harness: Any, hook: str, name: str, fault: Any
) -> None:
    """A broken plugin denies everything that it decides, even if the default is to allow."""
    harness = broker_harness(plugins=[HookRecorder(hook)])
    witness = harness.connect("witness", properties={"authentication_method": None})
    witness.subscribe("t")
    harness.fail("recorder", hook, fault)
    can = opened(harness, witness, 1)
    everything = {"connect", "subscribe", "publish", "will"}
    closed = {
        "on_connect": everything, "authorize": {"subscribe", "publish", "will"}, "on_publish": {"publish", "will"},
        "on_subscribe": {"subscribe"}, "on_will": {"will"}, "on_auth": set(),
    }[hook]  # fmt: skip
    assert can == everything - closed
    if hook == "on_auth":
        client = harness.connect("a", authentication_method="x", expect=None)
        harness.advance(60)
        assert client.closed
        assert client.received[-1].code == 0x80
    said = "\n".join(f"{event} {fields}" for _, event, fields in harness.logs)
    assert "recorder" in said
    harness.heal()
    if hook != "on_auth":
        assert opened(harness, witness, 2) == everything


@pytest.mark.parametrize("times", [1, 2])
def test_a_failure_is_not_remembered_and_grants_nothing_later(
    broker_harness: Any, times: int
) -> None:
    recorder = HookRecorder("authorize")
    harness = broker_harness(plugins=[recorder])
    recorder.answer("authorize", Deny())
    client = harness.connect("c")
    harness.fail("recorder", "authorize", ValueError(), times=times)
    for _ in range(3):
        client.publish("t", b"x", qos=1, expect=None)
    codes = [one.code for one in client.received if type(one).__name__ == "Puback"]
    assert codes == [0x83] * times + [0x87] * (3 - times)


# --- configuration ----------------------------------------------------------------------------------------------------

SAFE = f"""\
version: 1
listeners:
  - {{name: tcp, bind: "127.0.0.1:0"}}
  - {{name: http, type: http, bind: "127.0.0.1:0", http: {{token: {TOKEN}}}}}
auth: {{default: deny}}
authz: {{default: deny}}
plugins: []
"""


def test_no_prefix_of_a_closed_configuration_is_open() -> None:
    for end in range(len(SAFE)):
        try:
            config = loads(SAFE[:end], environ={})
        except ConfigError:
            continue
        assert config.auth.default == config.authz.default == "deny"


def test_every_key_left_out_or_emptied_stays_closed() -> None:
    lines = SAFE.splitlines(keepends=True)
    for number, line in enumerate(lines):
        for instead in ("", line.split(":")[0] + ":\n", "\n", "# " + line):
            text = "".join([*lines[:number], instead, *lines[number + 1 :]])
            try:
                config = loads(text, environ={})
            except ConfigError:
                continue
            assert config.auth.default == config.authz.default == "deny"
            assert all(
                listener.http.token
                for listener in config.listeners
                if listener.type == "http" and "token" in text
            )


@pytest.mark.parametrize(
    "value", ["", "yes", "true", "1", "null", "~", "Allow", "ALLOW", "[allow]", "al low"]
)
def test_only_the_word_opens(value: str) -> None:
    text = SAFE.replace("auth: {default: deny}\nauthz", f"auth: {{default: {value}}}\nauthz")
    with pytest.raises(ConfigError):
        loads(text, environ={})
    assert loads(
        SAFE.replace("auth: {default: deny}\nauthz", "auth: {default: allow}\nauthz"), environ={}
    )


@pytest.mark.parametrize(
    "entry", ["use: nothing_like_it", "use: nothing_like_it, required: true", "use: ''", "usee: x"]
)
def test_a_plugin_that_cannot_be_loaded_ends_the_start(entry: str) -> None:
    with pytest.raises(HookMQError):
        build(loads(SAFE.replace("plugins: []", f"plugins: [{{{entry}}}]"), environ={}))


def test_a_file_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    for path, content in (
        ("none", None),
        ("empty", b""),
        ("bytes", b"\xff\xfe"),
        ("nul", b"version: 1\0"),
    ):
        if content is not None:
            (tmp_path / path).write_bytes(content)
        with pytest.raises(ConfigError):
            load(tmp_path / path, environ={})
    with pytest.raises(ConfigError):
        load(tmp_path, environ={})
    (tmp_path / "f").write_text(SAFE.replace(TOKEN, "{$file: missing}"))
    with pytest.raises(ConfigError):
        load(tmp_path / "f", environ={})


def test_serve_opens_nothing_when_something_is_wrong(tmp_path: Path) -> None:
    for text, code in (
        ("", 2),
        (SAFE.replace("plugins: []", "plugins: [{use: nothing_like_it}]"), 3),
    ):
        (tmp_path / "f").write_text(text)
        ended = subprocess.run(
            [*HOOKMQ, "serve", "-c", str(tmp_path / "f")],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert ended.returncode == code, ended.stderr
        assert "listener.opened" not in ended.stderr
        assert TOKEN not in ended.stderr


def code_of(port: int, data: bytes) -> int:
    """Return the code of the CONNACK."""
    with over_tcp(port) as client:
        answer = client.send(data).frame()
    assert answer[0] == 0x20
    return answer[3]


def test_no_reload_opens_what_was_closed(tmp_path: Path) -> None:
    """A reload with an invalid file changes nothing."""
    path = tmp_path / "f.yaml"
    path.write_text(SAFE)
    broken = [
        "", "\0", "version: 1\n", SAFE[: SAFE.index("auth")] + "auth: {default: allow", "[" * 100_000,
        SAFE.replace("deny", "allow").replace("plugins: []", "plugins: [{use: nothing_like_it}]"),
        SAFE.replace("deny", "allow") + "nonsense: 1\n", SAFE.replace("deny", "allow") + "auth: {}\n",
        SAFE.replace("deny", "allow").replace("{name: tcp, ", "{name: tcp, type: tls, "),
        SAFE.replace("deny", "allow") + "broker: {max_qos: 3}\n",
        SAFE.replace("deny", "allow").replace(TOKEN, "{$env: HOOKMQ_NOT_SET}"),
        SAFE.replace("deny", "allow").replace("127.0.0.1:0", "203.0.113.7:1"),
    ]  # fmt: skip
    with serving("-c", str(path)) as served:
        for text in broken:
            path.write_text(text)
            served.signal(signal.SIGHUP)
            served.wait_for("node.reload_failed")
            assert (
                code_of(served.ports["tcp"], m.connect("c", username="u", password=SECRET.encode()))
                == 0x87
            )
            with socket.create_connection(("127.0.0.1", served.ports["http"]), 60) as sock:
                sock.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert sock.recv(100).startswith(b"HTTP/1.1 401")
        path.unlink()
        served.signal(signal.SIGHUP)
        served.wait_for("node.reload_failed")
        assert code_of(served.ports["tcp"], m.connect("c")) == 0x87
        path.write_text(
            SAFE.replace("auth: {default: deny}\nauthz", "auth: {default: allow}\nauthz")
        )
        served.signal(signal.SIGHUP)
        served.wait_for("node.reloaded")
        assert code_of(served.ports["tcp"], m.connect("c")) == 0
        check_entries(served.log)
        served.log[:] = [entry for entry in served.log if entry["event"] != "node.reload_failed"]
