"""``python -m bench.acl``: what a decision of acl_file costs with 10, 1,000 and 100,000 rules.

Two files of each size, in YAML: in one all rules are for everybody, a tenth of them denials; in the other each rule is
for a user of its own, as are the rules of the clients that are measured. For comparison the same decision by going
through the rules one after another. CPU time of one thread, the best of several rounds; memory is what Python allocated.

    load        read, check and compile the file
    connect     find a client's rules, once a connection
    publish     a topic that one of the last rules allows
    nothing     a topic of which no rule speaks
    subscribe   a filter that one of the last rules contains
    all         "#", which overlaps whatever is denied
    wild        "site/+/dev/+/x", which has to be looked for below every site
    one by one  the publish, rule after rule
"""

from __future__ import annotations

import argparse
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

from hookmq.plugin import Action, ClientInfo, Peer, Rules
from hookmq.topics import matches
from hookmq.types import Scope
from hookmq_acl_file.file import load
from hookmq_acl_file.index import Index
from hookmq_acl_file.rules_yaml import read

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
    """`count` rules for everybody, the first tenth of them denials."""
    rules = []
    for number in range(count):
        site = f"site/{number % 97}/dev/{number}"
        if number < count // 10:
            rules.append(f"  - {{deny: all, topic: {site}/secret}}\n")
        else:
            rules.append(f"  - {{allow: [publish, subscribe], topic: {site}/#}}\n")
    return "rules:\n" + "".join(rules)


def users(count: int) -> str:
    """`count` rules, each for a user of its own."""
    return "rules:\n" + "".join(
        f"  - {{allow: [publish, subscribe], who: {{user: u{n}}}, topic: site/{n % 97}/dev/{n}/#}}\n"
        for n in range(count)
    )


def cpu(call: Callable[[], object], times: int, rounds: int = 7) -> float:
    """Seconds of CPU that one `call` takes: the best round of `times` calls."""
    best = float("inf")
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(times):
            call()
        best = min(best, time.thread_time() - began)
    return best / times


def measure(text: str, count: int, folder: Path) -> list[str]:
    """One row of the table."""
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
    """The decision without an index: the filters of everybody's rules in turn."""
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
