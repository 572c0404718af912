"""Messages wait for a shared subscription whose last member's session ends with its connection. Then the broker
crashes.

No client is left to receive these messages, so they must not stay on disk.
"""

from simulator import Knobs, Plan, Step

PLAN = Plan(
    Knobs(seed=0, versions=(5, 5, 5), max_inflight=1, duration=4.0),
    (
        Step(0.0, "connect", 0, (True, 3600, None, 20, 0, False)),
        Step(0.0, "connect", 1, (True, 3600, None, 20, 0, False)),
        Step(0.0, "connect", 2, (True, 0, None, 20, 0, False)),
        Step(0.5, "subscribe", 1, (("$share/g/s/0", 1, False, False, 0),)),
        Step(0.5, "subscribe", 2, (("$share/g/s/0", 1, False, False, 0),)),
        Step(1.0, "mute", 1, (3.0,)),
        Step(1.0, "mute", 2, (3.0,)),
        *(Step(1.5, "publish", 0, ("s/0", 1, False, 10, 0)) for _ in range(5)),
        Step(2.0, "connect", 1, (True, 0, None, 20, 0, False)),
        Step(2.5, "crash", -1, (0.1,)),
    ),
)
