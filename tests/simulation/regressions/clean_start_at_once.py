"""A clean start is abandoned and repeated at once, then the broker crashes.

The first clean start ends the old session, but the commit of this change is still running. CONNACK must not be sent
before the commit is complete.
"""

from simulator import Knobs, Plan, Step

PLAN = Plan(
    Knobs(seed=0, versions=(5, 5), disk_latency=0.3, duration=3.0),
    (
        Step(0.0, "connect", 0, (True, 3600, None, 20, 0, False)),
        Step(0.0, "connect", 1, (True, 3600, None, 20, 0, False)),
        Step(1.5, "connect", 1, (True, 0, None, 20, 0, False)),
        Step(1.505, "connect", 1, (True, 0, None, 20, 0, False)),
        Step(1.52, "crash", -1, (0.1,)),
    ),
)
