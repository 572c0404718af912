"""Rules about certificates also apply to stored sessions. A restart therefore does not change a client's
permissions.
"""

from pathlib import Path
from typing import Any

import pytest
from hookmq.plugin import Certificate, Peer
from hookmq_acl_file.plugin import AclFilePlugin
from hookmq_testing import DurableStore, Harness, make_plugin, will

CERTIFICATES = {
    "common_name": Certificate(common_name="dev1"),
    "fingerprint": Certificate(fingerprint="ab" * 32),
    "san": Certificate(sans=("other", "dev1")),
}
VALUES = {"common_name": "dev1", "fingerprint": "AB" * 32, "san": "dev1"}
FIELDS = pytest.mark.parametrize("field", list(CERTIFICATES))
WILL = will("w", b"gone", qos=1)


class Running:
    """A broker with a store and rules, which can restart with different rules."""

    def __init__(self, file: Path, *lines: str) -> None:
        self.file = file
        self.store = DurableStore()
        self.start(*lines)

    def start(self, *lines: str) -> None:
        """Start or restart the broker with these rules."""
        self.file.write_text("rules:\n" + "".join(f"  - {{{line}}}\n" for line in lines))
        acl = make_plugin(AclFilePlugin, {"path": self.file}, "acl", use="acl_file")
        self.harness = Harness([acl], store=self.store, config={"authz": {"default": "deny"}})

    def device(self, field: str, **options: Any) -> Any:
        """Connect the client, with a certificate that contains this field."""
        peer = Peer("192.0.2.1", 40000, "tls", CERTIFICATES[field])
        return self.harness.connect("dev", session_expiry_interval=600, peer=peer, **options)


@FIELDS
def test_a_subscription_granted_by_certificate_survives_a_restart(
    tmp_path: Path, field: str
) -> None:
    """After a restart and a reload, the rules still decide on the stored subscription, because the broker remembers the
    client's certificate.
    """
    rules = (
        f"allow: subscribe, who: {{certificate: {{{field}: '{VALUES[field]}'}}}}, topic: t",
        "allow: publish, topic: t",
    )
    running = Running(tmp_path / "acl.yaml", *rules)
    running.device(field).subscribe("t", 1)
    running.start(*rules)
    running.harness.connect("pub").publish("t", b"acknowledged", 1)
    running.harness.reload()
    client = running.device(field, clean_start=False)
    assert client.session_present
    client.expect_message("t", b"acknowledged")


@FIELDS
def test_a_will_allowed_by_certificate_fires_after_a_restart(tmp_path: Path, field: str) -> None:
    rules = (
        f"allow: publish, who: {{certificate: {{{field}: '{VALUES[field]}'}}}}, topic: w",
        "allow: subscribe, topic: w",
    )
    running = Running(tmp_path / "acl.yaml", *rules)
    running.harness.connect("watcher", session_expiry_interval=600).subscribe("w", 1)
    running.device(field, will=WILL)
    running.start(*rules)
    watcher = running.harness.connect("watcher", clean_start=False, session_expiry_interval=600)
    watcher.expect_message("w", b"gone")


@FIELDS
def test_a_deny_added_while_the_broker_was_down_stops_the_will(tmp_path: Path, field: str) -> None:
    """A denied will is not published if the rule was added while the broker was down. Otherwise,
    the broker would fail open.
    """
    allow = "allow: [publish, subscribe], topic: w"
    running = Running(tmp_path / "acl.yaml", allow)
    running.harness.connect("watcher", session_expiry_interval=600).subscribe("w", 1)
    running.device(field, will=WILL)
    deny = f"deny: publish, who: {{certificate: {{{field}: '{VALUES[field]}'}}}}, topic: w"
    running.start(deny, allow)
    watcher = running.harness.connect("watcher", clean_start=False, session_expiry_interval=600)
    watcher.expect_nothing()
    assert running.harness.logged("authz.denied")
