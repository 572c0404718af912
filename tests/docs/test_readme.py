"""The plugin on the first page does what is said of it."""

from types import ModuleType

from hookmq.testing import Harness, make_plugin
from pages import blocks
from workspace import ROOT


def test_guests_listen_and_nothing_else() -> None:
    [block] = [block for block in blocks(ROOT / "README.md") if block.kind == "python"]
    module = ModuleType("shown")
    exec(compile(block.text, str(block), "exec"), module.__dict__)
    closed = {"auth": {"default": "deny"}, "authz": {"default": "deny"}}
    with Harness([make_plugin(module.Guests)], config=closed) as harness:
        guest = harness.connect("guest")
        assert guest.subscribe(["public/a", "public/#", "#"]).codes == (0, 0, 0x87)
        guest.publish("public/a", b"", 1, expect=0x87)
        harness.connect("somebody", username="ada", expect=0x87)
    with Harness([make_plugin(module.Guests)]) as harness:
        ada = harness.connect("ada", username="ada")
        ada.publish("public/a", b"", 1, expect=0x10)
