"""Times to recover: from a fault until a publisher's first acknowledgement afterwards."""

from collections.abc import Iterable

from clusterkill.history import FAULTS, Event


class _Fault:
    """A fault: the positions of its beginning and of its end, and its time."""

    def __init__(self, at: int, event: Event) -> None:
        self.kind = event.detail
        self.began = at
        self.ended = 1 << 62
        self.time = event.at
        self.recovered: dict[str, tuple[int, float]] = {}
        """The position and the time of each publisher's first acknowledgement."""


def recovery_times(history: Iterable[Event]) -> dict[str, list[float]]:
    """Return the seconds for each kind of fault, one for each publisher that sent something after the fault.

    Only messages sent after the fault count, since acknowledgements of others may already have been on their way. Times
    with another fault in between are left out, and so is a publisher without any acknowledgement after the fault: the
    checker reports its messages as stuck.
    """
    faults: dict[str, _Fault] = {}
    invoked: dict[tuple[str, int], int] = {}
    for position, event in enumerate(history):
        if event.client == FAULTS:
            if event.type == "invoke":
                faults[event.topic] = _Fault(position, event)
            else:
                faults[event.topic].ended = position
        elif event.action == "publish" and event.qos:
            message = event.topic, event.number
            if event.type == "invoke":
                invoked[message] = position
            elif event.type == "ok":
                for fault in faults.values():
                    if invoked[message] > fault.began:
                        fault.recovered.setdefault(event.client, (position, event.at))
    found: dict[str, list[float]] = {}
    for fault in faults.values():
        times = found.setdefault(fault.kind, [])
        for position, at in fault.recovered.values():
            if not any(
                one is not fault and one.began < position and one.ended > fault.began
                for one in faults.values()
            ):
                times.append(at - fault.time)
    return found


def percentile(times: Iterable[float], share: float) -> float:
    """Return the smallest time that at least `share` of all times do not exceed. `times` must not be empty."""
    ordered = sorted(times)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
