"""``python -m bench.acl``: measure the cost of an acl_file decision with 10, 1,000 and 100,000 rules.

There are two YAML files of each size. In one, all rules apply to everybody, and every tenth rule denies. In the other,
each rule applies to one user. For comparison, the same decision is made by trying one rule after another. Figures are
one thread's CPU time in the best of several rounds. Memory is the amount that Python allocated.

    load        read, check and compile the file
    connect     look up a client's rules, once per connection
    publish     publish to a topic that one of the last rules allows
    nothing     publish to a topic that no rule matches
    subscribe   subscribe to a filter that one of the last rules covers
    all         subscribe to "#", which overlaps everything that is denied
    wild        subscribe to "site/+/dev/+/x", which requires a search below every site
    one by one  decide on the publish by trying rule after rule
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from hookmq.model.client import Scope
from hookmq.mqtt.topics import matches
from hookmq.plugin import Action, ClientInfo, Peer
from hookmq_acl_file.file import load
from hookmq_acl_file.index import Index
from hookmq_acl_file.rules_yaml import read
from hookmq_toolkit.rules import Rules

COLUMNS = (
    "load",
    "memory",
    "connect",
    "publish",
    "nothing",
    "subscribe",
    "all",
    "wild",
    "one by one",
)


def everybody(count: int) -> str:
    """Return `count` rules that apply to everybody. The first tenth of them deny."""
    rules = []
    for number in range(count):
        site = f"site/{number % 97}/dev/{number}"
        if number < count // 10:
            rules.append(f"  - {{deny: all, topic: {site}/secret}}\n")
        else:
            rules.append(f"  - {{allow: [publish, subscribe], topic: {site}/#}}\n")
    return "rules:\n" + "".join(rules)


def users(count: int) -> str:
    """Return `count` rules, each of which applies to one user."""
    return "rules:\n" + "".join(
        f"  - {{allow: [publish, subscribe], who: {{user: u{n}}}, topic: site/{n % 97}/dev/{n}/#}}\n"
        for n in range(count)
    )


def cpu(call: Callable[[], object], times: int, rounds: int = 7) -> float:
    """Return the CPU seconds that one `call` takes in the fastest of `rounds` rounds of `times` calls."""
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, time.thread_time() - began)
    return best / times


def measure(text: str, count: int, folder: Path) -> list[str]:
    """Measure and return one row of the table."""
    file = folder / "acl.yaml"
    file.write_text(text)
    began = time.thread_time()
    index = load(file, "yaml").rules
    loading = time.thread_time() - began
    tracemalloc.start()
    kept = read(text, "acl.yaml", "acl.yaml")
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    last = count - 1
    client = ClientInfo("c1", 5, f"u{last}", Peer("192.0.2.1"), Scope())
    chosen = index.choose(client)
    site = f"site/{last % 97}/dev/{last}"

    def decision(action: Action, topic: str) -> Callable[[], object]:
        return lambda: index.decide(chosen, action, topic, 0, False)

    def shown(seconds: float) -> str:
        return f"{seconds * 1e6:,.2f} us"

    wild = decision(Action.SUBSCRIBE, "site/+/dev/+/x")
    return [
        f"{loading:.2f} s",
        f"{memory / 1e6:.1f} MB",
        shown(cpu(lambda: index.choose(client), 200)),
        shown(cpu(decision(Action.PUBLISH, f"{site}/t"), 2000)),
        shown(cpu(decision(Action.PUBLISH, "other/t"), 2000)),
        shown(cpu(decision(Action.SUBSCRIBE, f"{site}/+"), 2000)),
        shown(cpu(decision(Action.SUBSCRIBE, "#"), 2000)),
        shown(cpu(wild, max(1, 20_000 // count), 3)),
        shown(cpu(lambda: one_by_one(index, f"{site}/t"), max(1, 20_000 // count), 3)),
    ]


def one_by_one(index: Index, topic: str) -> bool:
    """Decide without an index, by trying each filter in the rules for everybody."""
    for rules in _all(index):
        for rule in rules.rules:
            if matches(rule.filter, topic):
                return rule.allow
    return False


def _all(index: Index) -> list[Rules]:
    return [section.rules() for section in index.everybody]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.acl", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--rules", type=int, nargs="+", default=[10, 1000, 100_000], metavar="N")
    sizes: list[int] = parser.parse_args().rules
    print(f"{'rules':<20}" + "".join(f"{column:>14}" for column in COLUMNS))
    with tempfile.TemporaryDirectory() as folder:
        for name, make in (("for everybody", everybody), ("a user each", users)):
            for count in sizes:
                row = measure(make(count), count, Path(folder))
                if make is users:
                    row[-1] = ""
                print(
                    f"{count:>7,} {name:<12}" + "".join(f"{cell:>14}" for cell in row), flush=True
                )


if __name__ == "__main__":
    main()
