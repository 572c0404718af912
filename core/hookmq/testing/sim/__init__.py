"""A deterministic simulator: the real broker under a virtual clock, network and disk, driven by one seed.

    from hookmq.testing.sim import make_plan, run

    result = run(make_plan(139))
    assert not result.failed, result.text

``python -m hookmq.testing.sim --help`` runs many seeds, replays one and shrinks a failure to a regression test.
"""

from hookmq.testing.sim.drawing import make_plan
from hookmq.testing.sim.plan import Knobs, Plan, Step
from hookmq.testing.sim.process import Result
from hookmq.testing.sim.world import run

__all__ = ["Knobs", "Plan", "Result", "Step", "make_plan", "run"]
