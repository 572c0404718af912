"""Test a broker process that runs the plugin with real clients."""

from pathlib import Path

from recording import V5, Client
from serving import serving

CONFIG = """\
version: 1
listeners: [{name: tcp, type: tcp, bind: "127.0.0.1:0"}]
auth: {default: allow}
authz: {default: allow}
plugins:
  - use: rewrite
    config:
      rules:
        - {filter: old/+/state, to: "plant/${1}/status"}
        - {filter: plant/+/status, to: "old/${1}/state", actions: [deliver]}
"""


def test_old_devices_use_a_new_topic_scheme(tmp_path: Path) -> None:
    config = tmp_path / "hookmq.yaml"
    config.write_text(CONFIG)
    with (
        serving("-c", str(config)) as served,
        Client(served.ports["tcp"], "device", V5) as device,
        Client(served.ports["tcp"], "panel", V5) as panel,
    ):
        assert panel.subscribe("old/+/state", 1) == 1
        device.publish("old/press/state", b"on", 1)
        message = panel.message()
        assert (message.topic, bytes(message.payload)) == ("old/press/state", b"on")
