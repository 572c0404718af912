"""The streams of other plugins over the API and on the command line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from admin_site import DOCUMENT, Site, validate
from hookmq.plugin import Context, Plugin
from hookmq_testing import make_plugin, run_command
from hookmq_toolkit.streams import SERVICE, StreamConsumer, StreamStatus


class Owner(Plugin):
    """A plugin with streams."""

    def __init__(self, config: Any, context: Context) -> None:
        super().__init__(config, context)
        self.offered_services = {SERVICE: self}

    async def list_streams(self) -> Sequence[StreamStatus]:
        consumers = (StreamConsumer("etl", 3, 1700000000.5), StreamConsumer("new", 5))
        return (
            StreamStatus("meters", "log", 5, 700, 2.5, consumers),
            StreamStatus("broken", "log", 0, 0, error="the file is damaged"),
            StreamStatus("jobs", "queue", 0, 0),
        )


class Other(Plugin):
    """A plugin that offers something else under the same name."""

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
                {"name": "etl", "lag": 3, "committed_at": 1700000000.5},
                {"name": "new", "lag": 5, "committed_at": None},
            ],
            "error": "",
        }  # fmt: skip
        assert (items[1]["error"], items[1]["consumers"]) == ("the file is damaged", [])
        assert (items[2]["kind"], items[2]["oldest"]) == ("queue", None)
        assert run_command(["admin", "streams", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == items
        assert run_command(["admin", "streams"]) == 0
        head, first, second, third = capsys.readouterr().out.splitlines()
        assert head.split() == ["plugin", "name", "kind", "messages", "bytes", "oldest", "lag"]
        assert first.split() == ["owner", "meters", "log", "5", "700", "2.5", "etl=3", "new=5"]
        assert second.endswith("the file is damaged")
        assert third.split() == ["owner", "jobs", "queue", "0", "0", "-", "-"]
    finally:
        site.close()
