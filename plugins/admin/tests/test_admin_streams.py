"""Test other plugins' streams through the API and on the command line."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hookmq_admin.streams
import pytest
from admin_site import DOCUMENT, Site, validate
from hookmq.plugin import Context, Plugin, PluginError
from hookmq_testing import make_plugin, run_command
from hookmq_toolkit.streams import SERVICE, StreamConsumer, StreamStatus


class Owner(Plugin):
    """A plugin with streams."""

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.offered_services = {SERVICE: self}

    async def list_streams(self) -> Sequence[StreamStatus]:
        consumers = (
            StreamConsumer("etl", 3, 1700000000.5, 2.25, declared=False, dead_letters=7),
            StreamConsumer("new", 5, declared=True),
        )
        meters = StreamStatus(
            "meters", "log", 5, 700, 2.5, consumers, "", 1000, True, 4, 1, partitions=(3, 2)
        )
        return (
            meters,
            StreamStatus("broken", "log", 0, 0, error="the file is damaged"),
            StreamStatus("jobs", "queue", 0, 0),
        )


class Other(Plugin):
    """A plugin that offers an unrelated object under the same service name."""

    offered_services = {SERVICE: "streams"}


def test_streams_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, (make_plugin(Other), make_plugin(Owner, None, "owner")))
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["viewer"])
    try:
        items = site.ask("GET", "/streams", "viewer").json["items"]
        for one in items:
            validate(one, DOCUMENT["components"]["schemas"]["Stream"])
        assert [one["name"] for one in items] == ["meters", "broken", "jobs"]
        assert items[0] == {
            "plugin": "owner", "name": "meters", "kind": "log", "messages": 5, "bytes": 700, "oldest": 2.5,
            "consumers": [
                {
                    "name": "etl", "lag": 3, "committed_at": 1700000000.5, "lag_seconds": 2.25, "declared": False,
                    "dead_letters": 7,
                },
                {
                    "name": "new", "lag": 5, "committed_at": None, "lag_seconds": None, "declared": True,
                    "dead_letters": None,
                },
            ],
            "error": "", "max_bytes": 1000, "full": True, "refused": 4, "dropped": 1, "partitions": [3, 2],
        }  # fmt: skip
        assert (items[1]["error"], items[1]["consumers"]) == ("the file is damaged", [])
        assert (items[2]["kind"], items[2]["oldest"]) == ("queue", None)
        assert run_command(["admin", "streams", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == items
        assert run_command(["admin", "streams"]) == 0
        head, first, second, third = capsys.readouterr().out.splitlines()
        assert head.split() == [
            "plugin", "name", "kind", "messages", "bytes", "oldest", "refused", "dropped", "lag",
        ]  # fmt: skip
        assert first.split() == [
            "owner", "meters", "log", "5", "700", "2.5", "4", "1", "etl=3/2s/7dead(undeclared)", "new=5(silent)",
        ]  # fmt: skip
        assert second.endswith("the file is damaged")
        assert third.split() == ["owner", "jobs", "queue", "0", "0", "-", "0", "0", "-"]
    finally:
        site.close()


class _Answering(Plugin):
    """A plugin that responds differently depending on its id."""

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.offered_services = {SERVICE: self}

    async def list_streams(self) -> Any:
        if self.id == "refusing":
            raise PluginError(self.id, "the folder is gone")
        if self.id == "failing":
            raise ValueError("password=secret")
        if self.id == "slow":
            await asyncio.Event().wait()
        if self.id == "wrong":
            return [StreamStatus(None, "log", 0, 0)]  # type: ignore[arg-type]
        if self.id == "none":
            return None
        consumers = tuple(StreamConsumer("c\x1b" * 1000, 1, float("inf")) for _ in range(10))
        return [StreamStatus("n" * 100000, "log", 1, 1, float("nan"), consumers)] * 1000000


def test_plugins_that_fail_do_not_hide_the_streams_of_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hookmq_admin.streams, "PATIENCE", 0.5)
    broken = ("refusing", "failing", "slow", "wrong", "none", "large")
    plugins = tuple(make_plugin(_Answering, None, one) for one in broken)
    site = Site(tmp_path, (*plugins, make_plugin(Owner, None, "owner")))
    monkeypatch.setenv("HOOKMQ_ADMIN_URL", site.url)
    monkeypatch.setenv("HOOKMQ_ADMIN_TOKEN", site.tokens["viewer"])
    try:
        answer = site.ask("GET", "/streams", "viewer")
        assert answer.status == 200
        found = answer.json
        assert [one["name"] for one in found["items"] if one["plugin"] == "owner"] == [
            "meters", "broken", "jobs",
        ]  # fmt: skip
        assert {one["plugin"]: one["error"] for one in found["failed"]} == {
            "refusing": "the folder is gone",
            "failing": "ValueError",
            "slow": "no answer within 0.5 s",
            "wrong": "TypeError",
            "none": "TypeError",
            "large": "only the first 2000 rows are listed",
        }
        large = [one for one in found["items"] if one["plugin"] == "large"]
        assert sum(1 + len(one["consumers"]) for one in large) == 2000
        assert {len(one["name"]) for one in large} == {512}
        assert {one["oldest"] for one in large} == {None}
        for one in found["items"]:
            validate(one, DOCUMENT["components"]["schemas"]["Stream"])
        assert run_command(["admin", "streams"]) == 0
        out, err = capsys.readouterr()
        assert "\x1b" not in out
        assert "# refusing: the folder is gone" in err
    finally:
        site.close()
