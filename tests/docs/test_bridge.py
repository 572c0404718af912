"""Test that the configuration in docs/how-to/bridge.md bridges two brokers as the page says."""

from pathlib import Path

import pytest
import yaml
from bridging import Client, until
from pages import blocks
from serving import serving
from workspace import ROOT

PAGE = ROOT / "docs" / "how-to" / "bridge.md"


@pytest.mark.slow
def test_a_branch_is_connected_to_the_head_office(tmp_path: Path) -> None:
    (shown,) = [block for block in blocks(PAGE) if block.kind == "yaml config"]
    branch = yaml.safe_load(shown.text)
    office = {key: branch[key] for key in ("version", "listeners", "auth", "authz")}
    for one in (branch, office):
        one["listeners"][0]["bind"] = "127.0.0.1:0"
    (tmp_path / "office.yaml").write_text(yaml.safe_dump(office))
    with serving("-c", str(tmp_path / "office.yaml")) as hq:
        config = branch["plugins"][1]["config"]
        for end in (config["sinks"][0]["target"], config["sources"][0]["origin"]):
            assert end.pop("tls") == {}
            end["addresses"] = [f"127.0.0.1:{hq.ports['tcp']}"]
        (tmp_path / "branch.yaml").write_text(yaml.safe_dump(branch))
        with serving(
            "-c", str(tmp_path / "branch.yaml"), environ={"HQ_PASSWORD": "secret"}
        ) as north:
            north.wait_for("sources.available")
            far = Client(hq.ports["tcp"], "far", "sites/#", 1)
            near = Client(north.ports["tcp"], "near", "commands/#", 1)
            until(lambda: [one.topic for one in far.messages] == ["sites/north/state"])
            near.publish("plant/press", "21")
            far.publish("commands/north/stop", "now")
            until(lambda: far.payloads == ["1", "21"] and near.payloads == ["now"])
            assert far.messages[1].topic == "sites/north/press"
            assert near.messages[0].topic == "commands/stop"
            near.close()
        until(lambda: far.payloads == ["1", "21", "0"])
        far.close()
