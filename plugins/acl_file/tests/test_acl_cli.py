"""Test the commands ``hookmq acl test``, ``check`` and ``import``."""

import json
from pathlib import Path

import pytest
from hookmq_testing import run_command

FILE = """\
groups: {operators: [ann]}
rules:
  - deny: all
    topic: plant/secret
  - {allow: [publish, subscribe], who: {group: operators}, topic: plant/+}
  - {allow: publish, qos: 1, retain: false, topic: d/%c/#}
  - {allow: subscribe, qos: 1, who: {ip: 10.0.0.0/8}, topic: news/#}
  - {allow: publish, who: {claim: {role: admin, level: 7}}, topic: admin}
  - {allow: publish, who: {certificate: {common_name: dev1, san: dev1.example}}, topic: cert}
  - {allow: publish, who: {listener: tls}, topic: tls}
  - {allow: publish, who: {anonymous: true}, topic: lobby}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "acl.yaml").write_text(FILE)
    return tmp_path


def test_the_decision_the_rule_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["acl", "test", "ann", "c1", "publish", "plant/x"]) == 0
    assert capsys.readouterr().out == (
        "allowed by acl.yaml:5: allow publish, subscribe, deliver, will on plant/+\n"
        "    - {allow: [publish, subscribe], who: {group: operators}, topic: plant/+}\n"
    )
    assert run_command(["acl", "test", "ann", "c1", "subscribe", "plant/#"]) == 1
    assert capsys.readouterr().out == (
        "denied by acl.yaml:3: deny publish, subscribe, deliver, will on plant/secret\n    - deny: all\n"
    )
    assert run_command(["acl", "test", "bob", "c1", "publish", "plant/x"]) == 1
    assert capsys.readouterr().out == "denied: no rule allows it\n"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("- c1 publish d/c1/t", 0),
        ("- c1 publish d/c1/t --qos 1", 0),
        ("- c1 publish d/c1/t --qos 2", 1),
        ("- c1 publish d/c1/t --retain", 1),
        ("- c2 publish d/c1/t", 1),
        ("- c1 will d/c1/t", 0),
        ("- c1 subscribe news/# --ip 10.1.1.1", 0),
        ("- c1 subscribe $share/g/news/# --ip 10.1.1.1", 0),
        ("- c1 deliver news/x --ip 10.1.1.1", 0),
        ("- c1 subscribe news/# --ip 192.0.2.1", 1),
        ("- c1 publish admin --claim role=admin --claim level=7", 0),
        ('- c1 publish admin --claim role=["admin","x"] --claim level=7', 0),
        ("- c1 publish admin --claim role=admin", 1),
        ("- c1 publish cert --common-name dev1 --san dev1.example", 0),
        ("- c1 publish cert --common-name dev1", 1),
        ("- c1 publish tls --listener tls", 0),
        ("- c1 publish tls", 1),
        ("- c1 publish lobby", 0),
        ("ann c1 publish lobby", 1),
    ],
)
def test_the_arguments_of_acl_test_are_checked(arguments: str, code: int) -> None:
    assert run_command(["acl", "test", *arguments.split()]) == code


def test_the_qos_that_would_be_granted(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["acl", "test", "-", "c", "subscribe", "news/x", "--ip", "10.0.0.1", "--qos", "2"]
    assert run_command(arguments) == 0
    assert "\ngranted QoS 1\n" in capsys.readouterr().out
    assert run_command([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "allow": True,
        "rule": "acl.yaml:7",
        "filter": "news/#",
        "actions": ["subscribe", "deliver"],
        "qos": 1,
        "retain": None,
    }
    assert run_command(["acl", "test", "-", "c", "publish", "x", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"allow": False, "rule": None}


@pytest.mark.parametrize(
    "arguments",
    [
        ["test", "ann", "c1", "publish", "plant/+"],
        ["test", "ann", "c1", "subscribe", "plant#"],
        ["test", "ann", "c1", "read", "plant"],
        ["test", "ann", "c1", "publish", "plant", "--qos", "3"],
        ["test", "ann", "c1", "publish", "plant", "--claim", "role"],
        ["test", "ann", "c1", "publish", "plant", "--file", "nowhere.yaml"],
        ["import", "nowhere"],
        ["import", "acl.yaml", "-o", "acl.yaml"],
        ["check"],
    ],
)
def test_wrong_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = run_command(["acl", *arguments])
    told = capsys.readouterr()
    assert (code, told.out) == (2, "")
    assert told.err.startswith("hookmq")


def test_check(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["acl", "check", "acl.yaml"]) == 0
    assert capsys.readouterr().out == "acl.yaml is valid: 8 rules for 7 kinds of clients\n"
    (folder / "bad.yaml").write_text("rules:\n  - {allow: all}\n  - {deny: al, topic: a}\n")
    assert run_command(["acl", "check", "bad.yaml"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        'bad.yaml:2:5: the key topic is missing (for every topic: topic: "#")',
        "bad.yaml:3:12: unknown action 'al' (did you mean 'all'?)",
    ]
    assert run_command(["acl", "check", "nowhere"]) == 1
    assert f"{folder}/nowhere: cannot read the file" in capsys.readouterr().err
    (folder / "deliver.yaml").write_text("rules: [{allow: deliver, topic: a}]\n")
    assert run_command(["acl", "check", "deliver.yaml"]) == 0
    assert "deliveries are decided" in capsys.readouterr().out


def test_import(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "acl").write_text(
        "topic read a\nuser ann\ntopic deny b\ntopic b/#\npattern write d/%c\n"
    )
    assert run_command(["acl", "import", "acl"]) == 0
    written = capsys.readouterr().out
    assert written == (
        "# converted from acl by hookmq acl import\n"
        "rules:\n"
        "  - allow: subscribe\n    who: {anonymous: true}\n    topic: a\n"
        "  - deny: all\n    who: {user: ann}\n    topic: b\n"
        '  - allow: [publish, subscribe]\n    who: {user: ann}\n    topic: "b/#"\n'
        '  - allow: publish\n    topic: "d/%c"\n'
    )
    assert run_command(["acl", "import", "acl", "-o", "new.yaml"]) == 0
    assert (folder / "new.yaml").read_text() == written
    assert run_command(["acl", "import", "acl", "-o", "new.yaml"]) == 2
    assert "File exists" in capsys.readouterr().err
    for rules in ("acl", "new.yaml"):
        assert run_command(["acl", "test", "ann", "c", "subscribe", "b/#", "--file", rules]) == 1
        assert run_command(["acl", "test", "ann", "c", "publish", "d/c", "--file", rules]) == 0
    assert run_command(["acl", "import", "acl", "--filtered", "-o", "sifted.yaml"]) == 0
    assert run_command(["acl", "test", "eve", "c", "subscribe", "#", "--file", "sifted.yaml"]) == 0
    assert run_command(["acl", "test", "eve", "c", "deliver", "a", "--file", "sifted.yaml"]) == 1
    (folder / "bad").write_text("topic raed a\n")
    assert run_command(["acl", "import", "bad"]) == 2


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["acl"], ["acl", "test"], ["acl", "check"], ["acl", "import"]):
        assert run_command([*words, "--help"]) == 0
        assert "usage: hookmq acl" in capsys.readouterr().out
