"""Test that `--against` compares HookMQ with another checkout, which runs in its own environment with its own
configurations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench import peers
from bench.__main__ import arguments, builds, with_counterparts

if TYPE_CHECKING:
    import pathlib


def test_every_build_gets_its_counterpart() -> None:
    names, earlier = with_counterparts(["mosquitto", "hookmq-pure", "nats", "hookmq"], "@1234567")
    ours = {"hookmq-pure": "hookmq-pure@1234567", "hookmq": "hookmq@1234567"}
    assert names == ["mosquitto", "hookmq-pure", ours["hookmq-pure"], "nats", "hookmq", ours["hookmq"]]  # fmt: skip
    assert earlier == ours
    assert builds(dict.fromkeys(names, "0.1.0, pure")) == dict.fromkeys(ours, "pure")


def test_a_checkout_brings_its_own_program_plugins_and_configurations(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "PEERS", dict(peers.PEERS))
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / "bench").mkdir()
    with pytest.raises(peers.PeerError, match="make install"):
        peers.add_checkout(tmp_path)
    program = tmp_path / ".venv" / "bin" / "hookmq"
    program.write_text('#!/bin/sh\necho \'{"hookmq": "0.0.9", "build": "pure"}\'\n')
    program.chmod(0o755)
    python = program.with_name("python")
    python.write_text('#!/bin/sh\necho \'{"hookmq-pure": {"plain": "a: 1"}}\'\n')
    python.chmod(0o755)
    suffix = peers.add_checkout(tmp_path)
    assert suffix.startswith("@")
    peer = peers.PEERS[f"hookmq-pure{suffix}"]
    assert peer.program() == str(program)
    assert peer.version(str(program)).startswith("0.0.9, pure")
    assert peer.configs == {"plain": "a: 1"}
    assert peer.environment["PYTHONPATH"] == str(tmp_path / "bench" / "plugged")
    assert peer.environment["HOOKMQ_BUILD"] == "pure"
    assert peers.PEERS[f"hookmq-compiled{suffix}"].program() is None
    python.write_text("#!/bin/sh\necho no such module >&2; exit 1\n")
    with pytest.raises(peers.PeerError, match="no such module"):
        peers.add_checkout(tmp_path)


def test_the_option_takes_a_path(tmp_path: pathlib.Path) -> None:
    assert arguments(["--against", str(tmp_path)]).against == tmp_path
    assert arguments([]).against is None
