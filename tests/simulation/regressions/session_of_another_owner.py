"""A returning client is accepted by another plugin.

It gets a new session of its own, even after a crash. The old session's will is due at once.
"""

from simulator import Knobs, Plan, Step

PLAN = Plan(
    Knobs(seed=28, versions=(5, 5), plugins=("gate", "courier", "filter", "watch"), duration=8.0),
    (
        Step(0.0, "connect", 0, (True, 3600, None, 20, 0, False)),
        Step(0.0, "subscribe", 0, (("w/#", 2, False, False, 0),)),
        Step(0.0, "connect", 1, (True, 3600, (1, 12), 20, 0, False)),
        Step(1.0, "subscribe", 1, (("t/0", 1, False, False, 0),)),
        Step(2.0, "cut", 1, (False,)),
        Step(3.0, "connect", 1, (False, 3600, (2, 12), 20, 2, True)),
        Step(3.5, "leave", 1, ("will",)),
        Step(4.0, "crash", -1, (0.1,)),
        Step(5.0, "connect", 1, (False, 3600, None, 20, 0, False)),
    ),
)
