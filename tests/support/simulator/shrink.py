"""Shrink a failing plan to the shortest one that fails in the same way, with default knobs and fewer steps (delta
debugging)."""

import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from simulator.plan import Knobs, Plan
from simulator.world import run

_KEPT = frozenset({"seed", "versions"})


def shrink(plan: Plan, invariant: str, seconds: float, say: Callable[[str], None]) -> Plan:
    """Return the shortest plan found within `seconds` of real time that violates the same invariant."""
    end = time.monotonic() + seconds

    def fails(candidate: Plan) -> bool:
        return time.monotonic() < end and run(candidate).invariant == invariant

    plan = _fewer_steps(plan, fails)
    say(f"{len(plan.steps)} steps")
    plan = _calmer(plan, fails)
    say(f"{len(plan.knobs.changed())} knobs")
    while True:
        before = len(plan.steps)
        plan = _fewer_steps(plan, fails)
        if len(plan.steps) == before:
            break
    say(f"{len(plan.steps)} steps")
    return _fewer_clients(plan, fails)


def _fewer_steps(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    steps = list(plan.steps)
    size = max(1, len(steps) // 2)
    while True:
        at = 0
        removed = False
        while at < len(steps):
            rest = steps[:at] + steps[at + size :]
            if fails(plan._replace(steps=tuple(rest))):
                steps = rest
                removed = True
            else:
                at += size
        if size == 1 and not removed:
            return plan._replace(steps=tuple(steps))
        size = max(1, size // 2)


def _calmer(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    for field in fields(Knobs):
        if field.name in _KEPT or getattr(plan.knobs, field.name) == field.default:
            continue
        default: Any = {field.name: field.default}
        calmer = plan._replace(knobs=replace(plan.knobs, **default))
        if fails(calmer):
            plan = calmer
    return plan


def _fewer_clients(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    used = max((step.who for step in plan.steps if step.what != "rude"), default=0) + 1
    versions = plan.knobs.versions
    while len(versions) > max(used, 1):
        fewer = plan._replace(knobs=replace(plan.knobs, versions=versions[:-1]))
        if not fails(fewer):
            break
        plan, versions = fewer, versions[:-1]
    return plan


def as_test(plan: Plan, invariant: str, text: str) -> str:
    """Return the plan as the source of a regression test for tests/simulation/regressions."""
    name = "".join(c if c.isalnum() else "_" for c in invariant)
    return (
        f'"""{text.splitlines()[0]}"""\n\n'
        "from simulator import Knobs, Plan, Step, run\n\n"
        f"PLAN = {plan!r}\n\n\n"
        f"def test_{name.strip('_')}_{plan.knobs.seed}() -> None:\n"
        "    result = run(PLAN)\n"
        "    assert not result.failed, result.text\n"
    )
