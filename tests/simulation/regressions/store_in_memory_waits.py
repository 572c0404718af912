"""A slow journal with an in-memory store.

Changes collected while the journal flushes are committed afterwards, without any further event.
"""

from simulator import Knobs, Plan, Step

PLAN = Plan(
    Knobs(
        seed=1158,
        versions=(5, 3, 4, 5, 4),
        duration=40.0,
        volatile=True,
        journals=("log",),
        journal_latency=0.05,
        latency=0.02,
        jitter=0.05,
        split=0.5,
        lag=0.001,
        plugins=("gate", "acl", "filter"),
        ack_delay=0.5,
        aliases=20,
        receive_maximum=3,
        flapping=2,
    ),
    (
        Step(40.0, "publish", 1, ("s/0", 2, False, 300, 0)),
        Step(40.0, "publish", 1, ("t/2", 2, False, 10, 0)),
        Step(40.0075, "connect", 2, (False, 3600, (1, 0), 1, 0, True)),
        Step(40.0357, "connect", 1, (False, 0, (0, 1), 65535, 0, False)),
    ),
)
