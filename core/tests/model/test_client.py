"""Test which claims a client's record keeps."""

import json
from collections.abc import Callable, Mapping
from datetime import date
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pytest
from hookmq.hooks.verdicts import Accept
from hookmq_testing import DurableStore, Harness, HookRecorder

Make = Callable[..., Harness]


def known(harness: Harness) -> Mapping[str, Any]:
    return harness.broker.sessions["c"].client.claims


class Role(StrEnum):
    ADMIN = "admin"


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ({"a": [1, "b", None, 2.5, True, {"c": []}]}, {"a": [1, "b", None, 2.5, True, {"c": []}]}),
        ({"groups": {"b", "a"}}, {"groups": ["a", "b"]}),
        ({"groups": frozenset({"a"})}, {"groups": ["a"]}),
        ({"groups": ("a", ("b",))}, {"groups": ["a", ["b"]]}),
        ({"deep": [{"set": {1}}]}, {"deep": [{"set": [1]}]}),
        ({"role": Role.ADMIN}, {"role": "admin"}),
        ({"when": date(2026, 1, 2)}, {"when": "2026-01-02"}),
        ({"map": MappingProxyType({"a": 1})}, {"map": {"a": 1}}),
        ({"map": {1: 2}}, {"map": {"1": 2}}),
        (MappingProxyType({"a": 1}), {"a": 1}),
    ],
)
def test_rules_see_the_same_claims_before_and_after_a_restart(
    broker_harness: Make, given: Mapping[str, Any], seen: dict[str, Any]
) -> None:
    recorder = HookRecorder("on_connect")
    recorder.answer("on_connect", Accept("x", given))
    harness = broker_harness([recorder], store=DurableStore())
    harness.connect("c", session_expiry_interval=100)
    assert known(harness) == seen
    assert json.loads(json.dumps(known(harness))) == seen
    assert type(next(iter(known(harness).values()))) is type(next(iter(seen.values())))
