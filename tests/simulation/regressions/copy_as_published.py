"""The first copy of a message sent twice has RETAIN, because the subscription uses Retain As
Published.

The second copy arrives without RETAIN, after a later message. Both are allowed.
"""

from simulator import Knobs, Plan, Step

PLAN = Plan(
    Knobs(
        seed=831,
        versions=(5, 3, 5, 3),
        duration=40.0,
        journals=("all", "outbox"),
        journal_latency=0.3,
        lag=0.001,
        queue_qos0=True,
        fan_out_batch=2,
    ),
    (
        Step(0.0, "connect", 0, (True, 3600, None, 20, 0, False)),
        Step(0.0, "connect", 1, (True, 3600, None, 65535, 0, False)),
        Step(0.0, "connect", 2, (True, 10, (0, 3), 20, 0, False)),
        Step(0.0, "connect", 3, (True, 2, None, 65535, 2, False)),
        Step(0.1, "subscribe", 1, (("r/#", 2, False, False, 0),)),
        Step(12.9207, "subscribe", 3, (("r/#", 0, False, True, 2),)),
        Step(37.6429, "subscribe", 2, (("r/#", 1, True, True, 0),)),
        Step(40.0, "publish", 2, ("r/0", 2, True, 300, 0)),
        Step(40.0, "publish", 2, ("r/0", 1, True, 40, 0)),
        Step(40.0, "subscribe", 2, (("r/#", 2, False, True, 0), ("r/#", 2, False, False, 0))),
        Step(40.0, "publish", 3, ("r/0", 0, True, 40, 0)),
        Step(40.0, "publish", 0, ("r/0", 1, True, 300, 0)),
        Step(40.0, "publish", 0, ("r/0", 1, True, 10, 1)),
        Step(40.0396, "dark", 0, (1.95,)),
    ),
)
