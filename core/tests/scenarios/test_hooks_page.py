"""Test that the manual's page about hooks is correct. Each hook has a heading, its properties and a working example."""

import re
import textwrap
from pathlib import Path
from typing import Any

import hookmq.plugin
import pytest
from hookmq.hooks.manager import Hooks
from hookmq.hooks.observer_queue import FAILURES, OPEN_FOR
from hookmq.hooks.specs import QUEUE, SPECS
from hookmq.plugin import Allow, Context, Deny, Plugin
from hookmq_testing import Harness, HookRecorder, make_plugin

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "hooks.md"

if not PAGE.exists():
    pytest.skip("the manual is not part of this copy (an sdist)", allow_module_level=True)

TEXT = PAGE.read_text()
SECTIONS: dict[str, str] = dict(re.findall(r"^### ([^\n]*)\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S))


def test_the_headings_are_the_hooks_in_their_order() -> None:
    assert list(SECTIONS) == [spec.signature for spec in SPECS.values()]


def test_each_hook_stands_below_the_heading_of_its_kind() -> None:
    heading, found = "", {}
    for level, title in re.findall(r"^(##|###) ([^\n]*)$", TEXT, re.M):
        if level == "##":
            heading = title
        else:
            found[title] = heading.lower()
    assert found == {spec.signature: spec.kind for spec in SPECS.values()}


@pytest.mark.parametrize("name", SPECS)
def test_facts(name: str) -> None:
    spec = SPECS[name]
    body = SECTIONS[spec.signature]
    awaited = "no" if spec.timeout is None else f"yes, within {spec.timeout:g} s"
    assert f"- Kind: {spec.kind}\n" in body
    assert re.search(rf"^- Async: {re.escape(awaited)}\b", body, re.M)
    assert re.search(r"^- Failure: .+", body, re.M)
    assert re.search(r"^- Wire: .+", body, re.M)
    for choice in spec.on_error[1:]:
        assert f"on_error: {choice}" in body


@pytest.mark.parametrize("name", SPECS)
def test_the_example_is_an_implementation(name: str) -> None:
    *_, code = re.findall(r"```python\n(.*?)```", SECTIONS[SPECS[name].signature], re.S)
    names: dict[str, Any] = {one: getattr(hookmq.plugin, one) for one in hookmq.plugin.__all__}
    exec(f"class Example(Plugin):\n{textwrap.indent(code, '    ')}", names)
    example: type[Plugin] = names["Example"]
    hooks = Hooks.of(example(None, Context("example")))
    assert {hook for hook, found in hooks.registry.items() if found} == {name}


def test_the_plugin_at_the_top_loads() -> None:
    code = re.findall(r"```python\n(.*?)```", TEXT, re.S)[0]
    scope: dict[str, Any] = {"__name__": "hookmq_hello"}
    exec(code, scope)
    hello: type[Plugin] = scope["HelloPlugin"]
    assert Hooks.of(hello(hello.Config(), Context("hello"))).registry["on_publish"]


def test_a_message_that_is_published_later_does_not_bypass_the_rules() -> None:
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    [code] = (block for block in blocks if "class Later(" in block)
    scope: dict[str, Any] = {"__name__": "later"}
    exec(code, scope)
    rules = HookRecorder("authorize")
    denied: set[str] = {"door"}
    rules.answer("authorize", lambda topic: Deny() if topic in denied else Allow())
    with Harness([rules, make_plugin(scope["Later"])]) as harness:
        sub, one = harness.connect("sub"), harness.connect("one")
        sub.subscribe("#")
        for topic in ("lamp", "door", "gate"):
            one.publish(f"later/{topic}", b"x")
        denied.add("gate")
        harness.advance(61)
        sub.expect_message("lamp", b"x")
        sub.expect_nothing()


def test_numbers() -> None:
    assert (QUEUE, FAILURES, OPEN_FOR) == (10_000, 20, 30.0)
    assert "10,000 events per hook" in TEXT
    text = " ".join(TEXT.split())
    assert "After twenty failures in a row, the plugin is not called for thirty seconds" in text


def test_every_metric_is_listed() -> None:
    for name in (
        "calls_total",
        "duration_seconds",
        "queue_depth",
        "dropped_total",
        "circuit_open",
    ):
        assert f"`hookmq_hook_{name}`" in TEXT
    outcomes = {outcome for spec in SPECS.values() for outcome in spec.outcomes}
    (row,) = re.findall(r"`hookmq_hook_calls_total` \| .*", TEXT)
    assert {outcome for outcome in outcomes if outcome not in row} == set()
