"""When a full queue drops its oldest message to make room, the message must come from this queue.

A QoS 0 message is queued while other QoS 0 messages wait separately for the slow client.
"""

from simulator import Knobs, Plan, Step

PLAN = Plan(
    Knobs(
        seed=96,
        versions=(5, 4, 3, 5, 3, 4, 5),
        split=0.5,
        high_water=200,
        ack_delay=0.5,
        max_inflight=1,
        queue_messages=8,
        queue_drop="oldest",
    ),
    (
        Step(0.0, "connect", 1, (True, 2, (1, 0), 2, 0, False)),
        Step(0.0, "connect", 2, (True, 3600, (0, 1), 2, 0, False)),
        Step(0.0, "connect", 3, (True, 2, (1, 0), 65535, 0, False)),
        Step(0.0, "connect", 4, (True, 3600, (0, 0), 2, 2, False)),
        Step(0.0, "connect", 5, (False, 2, (1, 3), 2, 0, False)),
        Step(0.0, "connect", 6, (True, 2, (1, 12), 65535, 2, False)),
        Step(
            0.1, "subscribe", 4, (("t/#", 2, False, False, 0), ("$share/h/s/1", 1, False, False, 0))
        ),
        Step(3.5008, "publish", 2, ("t/2", 1, False, 40, 0)),
        Step(3.5008, "publish", 2, ("t/0", 2, False, 10, 0)),
        Step(3.5008, "publish", 2, ("t/0/x", 1, False, 300, 0)),
        Step(3.5008, "publish", 2, ("t/0/x", 2, False, 300, 0)),
        Step(3.5109, "stall", 4, (3.09,)),
        Step(3.6306, "publish", 6, ("t/1", 2, False, 40, 0)),
        Step(3.6306, "publish", 6, ("t/1", 0, False, 300, 0)),
        Step(4.099, "publish", 3, ("s/1", 0, False, 10, 0)),
        Step(4.099, "publish", 3, ("t/0", 1, False, 40, 0)),
        Step(4.1765, "publish", 5, ("t/1/x", 2, False, 40, 0)),
        Step(4.1765, "publish", 5, ("t/0", 1, False, 10, 0)),
        Step(4.8753, "publish", 5, ("t/2", 1, False, 10, 0)),
        Step(5.1661, "publish", 1, ("t/0", 2, False, 40, 0)),
    ),
)
