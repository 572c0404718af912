"""A deterministic simulator: the real broker on a virtual clock, network and disk, driven by one seed.

    from simulator import make_plan, run

    result = run(make_plan(139))
    assert not result.failed, result.text

``python -m simulator --help`` runs many seeds, replays one and shrinks a failure to a regression test.
"""

from simulator.generate import make_plan, make_queue_plan
from simulator.plan import Knobs, Plan, Step
from simulator.process import Result
from simulator.world import run

__all__ = ["Knobs", "Plan", "Result", "Step", "make_plan", "make_queue_plan", "run"]
