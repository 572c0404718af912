"""Times to recover: from a fault until a publisher's first acknowledgement afterwards."""

from collections.abc import Iterable

from clusterkill.history import FAULTS, Event


def recovery_times(history: Iterable[Event]) -> dict[str, list[float]]:
    """Return the seconds for each kind of fault, one for each publisher that sent something after the fault.

    Only messages sent after the fault count, since acknowledgements of others may already have been on their way. A
    publisher without any acknowledgement after the fault is left out; the checker reports its messages as stuck.
    """
    found: dict[str, list[float]] = {}
    faults: list[tuple[int, Event]] = []
    invoked: dict[tuple[str, int], int] = {}
    done: set[tuple[int, str]] = set()
    for position, event in enumerate(history):
        if event.client == FAULTS:
            if event.type == "invoke":
                faults.append((position, event))
                found.setdefault(event.detail, [])
        elif event.action == "publish" and event.qos:
            message = event.topic, event.number
            if event.type == "invoke":
                invoked[message] = position
            elif event.type == "ok":
                for at, fault in faults:
                    if invoked[message] > at and (at, event.client) not in done:
                        done.add((at, event.client))
                        found[fault.detail].append(event.at - fault.at)
    return found


def percentile(times: Iterable[float], share: float) -> float:
    """Return the smallest time that at least `share` of all times do not exceed. `times` must not be empty."""
    ordered = sorted(times)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]
