"""Random scripts of ordinary client behavior, on which the two brokers have no known differences.

Clients subscribe to filters that do not overlap, publish, retain, connect and disconnect.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mqttbytes as m
from differential.playing import Play, Script, Step
from hypothesis import strategies as st

LEVELS = {"old": 3, "mid": 4, "new": 5, "too": 5}
FILTERS = ("x/+", "y", "z/#", "$data/+")
TOPICS = ("x/1", "x/2", "x/", "y", "z", "z/1/2", "$data/a", "elsewhere")


class Move(NamedTuple):
    """One action of a client. A client that is offline connects first."""

    client: str
    what: str
    where: int
    qos: int
    flag: bool


MOVES = st.lists(
    st.builds(
        Move,
        st.sampled_from(sorted(LEVELS)),
        st.sampled_from(("subscribe", "publish", "publish", "unsubscribe", "leave", "acknowledge")),
        st.integers(0, 7),
        st.integers(0, 2),
        st.booleans(),
    ),
    min_size=4,
    max_size=16,
)


def script(moves: Sequence[Move]) -> Script:
    """Return the moves as a script."""

    def run(p: Play) -> None:
        away = set(LEVELS)
        for count, move in enumerate(moves):
            name, level = move.client, LEVELS[move.client]
            if name in away:
                away.remove(name)
                properties = m.session_expiry(60) if level == 5 else b""
                p.connect(name, level, clean=False, properties=properties)
            _make(p, move, level, b"%d" % count)
            if move.what == "leave":
                away.add(name)

    return run


def _make(p: Play, move: Move, level: int, payload: bytes) -> None:
    name, topic = move.client, TOPICS[move.where]
    chosen = FILTERS[move.where % len(FILTERS)]
    if move.what == "subscribe":
        # Retain Handling 1 and Retain As Published. They must not be changed later; see `subscriptions: options change
        # ...`
        handling = 0x10 if move.flag and level == 5 else 0
        p.subscribe(name, (chosen, move.qos | handling | (0x08 if name == "too" else 0)))
    elif move.what == "unsubscribe":
        # not from $data/+, see `subscriptions: unsubscribe below dollar`
        p.send(name, m.unsubscribe(3, FILTERS[move.where % 3], level=level))
    elif move.what == "leave":
        if move.flag:
            p.drop(name)
        else:
            p.send(name, m.disconnect())
    elif move.what == "acknowledge":
        numbers = [number for number, qos in p.clients[name].teller.qos.items() if qos == 1]
        p.send(name, *map(m.puback, numbers[-1:]))
    else:
        data = m.publish(topic, payload, move.qos, 5, level=level, retain=move.flag)
        p.send(name, data, *([m.pubrel(5)] if move.qos == 2 else []))


def alike(steps: list[Step]) -> list[Step]:
    """Return the steps after removing the differences that the standard allows.

    PUBREC may contain reason code 0x10, and either of two topics may get the lower packet id.
    """
    return [
        {client: [_alike(line) for line in lines] for client, lines in step.items()}
        for step in steps
    ]


def _alike(line: str) -> str:
    if line.startswith("PUBREC"):
        return line.replace(" 0x10", " 0x00")
    return line.rpartition(" #")[0] if line.startswith("PUBLISH") and " #" in line else line
