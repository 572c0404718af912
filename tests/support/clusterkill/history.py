"""The history of a run: the operations of all clients and all faults, in the order in which they happened.

An operation begins with `invoke`. Its outcome is `ok`, `fail` (it had no effect) or `unknown`. An operation that is still
running at the end has no outcome. `checker` judges a history.

| action | meaning | topic | number | detail |
|---|---|---|---|---|
| connect | CONNACK arrived | | | `clean`, or `new` or `resumed` for a durable session |
| close | the connection ended | | | |
| subscribe | SUBSCRIBE, SUBACK | the filter | | `durable` or `volatile` |
| publish | PUBLISH, the last acknowledgement | topic | of the message | `clear` if it clears the retained message |
| receive | a message arrived | topic | of the message; 0 if nobody can have sent it | |
| will | CONNECT with a will was accepted; it is now due (`ok`), or must not be published (`fail`) | topic | | |
| read | a retained message, from the node in `detail` | topic | of the message; 0 if absent | node |
| fault | a fault and its end, by the client `FAULTS` | its name | | its kind |

`part` distinguishes the connections of a publisher without a session. Order is promised within one part only.
"""

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

Type = Literal["invoke", "ok", "fail", "unknown"]
FAULTS: Final = "faults"
"""The client of the events of faults."""


class Event(NamedTuple):
    """The beginning or the outcome of an operation."""

    at: float
    """Seconds since the start of the run."""
    client: str
    type: Type
    action: str
    topic: str = ""
    number: int = 0
    qos: int = 0
    part: int = 0
    detail: str = ""


class History:
    """The events of a run. All of them are added in one thread, so their order is the order in time."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.events = list(events)
        self._start = time.monotonic()

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)

    def now(self) -> float:
        """Return the seconds since the start of the run."""
        return time.monotonic() - self._start

    def add(
        self,
        client: str,
        type: Type,
        action: str,
        topic: str = "",
        number: int = 0,
        qos: int = 0,
        part: int = 0,
        detail: str = "",
    ) -> None:
        """Add an event that happens now."""
        at = round(self.now(), 4)
        self.events.append(Event(at, client, type, action, topic, number, qos, part, detail))

    def write(self, path: Path) -> None:
        """Write one JSON array for each event, one in each line."""
        with path.open("w") as file:
            for event in self.events:
                file.write(json.dumps(event) + "\n")


def read_history(path: Path) -> History:
    """Read what `History.write` wrote."""
    with path.open() as file:
        return History(Event(*json.loads(line)) for line in file)
