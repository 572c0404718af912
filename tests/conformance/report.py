"""Run the conformance tests, report the result for each statement of the standards, and write
docs/reference/conformance.md.

    .venv/bin/python tests/conformance/report.py

For each statement, the report lists its tests and the lines of the broker that enforce it. The exit code is 0 if every
test passed and every statement that concerns a server has a test or an exception.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from statements import (
    ROOT,
    TESTS,
    Covered,
    Statement,
    covered,
    edges,
    exceptions,
    excused,
    statements,
    tagged,
)

PAGE = ROOT / "docs" / "reference" / "conformance.md"
INTRO = """\
# Conformance

Every normative statement in MQTT 5.0 and MQTT 3.1.1 that a server can follow or violate has a test. The tests send
hand-written bytes and do not use HookMQ's codec. They check the bytes of the answer, the order of packets, and whether
the connection ends. The page also lists statements that bind clients, if a test can violate them and check the broker's
reaction.

`make conformance` runs the tests, prints where in the source each statement is enforced, and writes this page. The
statements are paraphrased. Ids starting with `MQTT-` belong to MQTT 5.0, and ids starting with `MQTT311-` to 3.1.1.
The tests are in `tests/conformance`. A note such as `(0x81, close)` means that the broker may send this reason code
and closes the connection.
"""


class Results:
    """A pytest plugin that records the outcome of each test function, which is the worst of its cases."""

    def __init__(self) -> None:
        self.outcomes: dict[str, str] = {}
        self.cases: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        path, _, function = report.nodeid.partition("[")[0].rpartition("::")
        name = f"{Path(path).name}::{function}"
        if report.when == "call":
            self.cases[name] += 1
        if report.failed:
            self.outcomes[name] = "failed"
        elif report.skipped:
            self.outcomes.setdefault(name, "skipped")
        elif report.when == "call" and self.outcomes.get(name) != "failed":
            self.outcomes[name] = "passed"

    def of(self, tests: list[str]) -> str:
        """Return the combined result of several functions."""
        found = {self.outcomes.get(name, "not run") for name in tests}
        for worst in ("failed", "not run", "skipped"):
            if worst in found:
                return worst
        return "passed"


def main() -> int:
    """Run the tests, print the report and write the page. Return the exit code."""
    results = Results()
    page_itself = f"--ignore={TESTS / 'test_report.py'}"
    code = pytest.main(
        ["-q", "--no-header", "--tb=short", page_itself, str(TESTS)], plugins=[results]
    )
    tests, places, reasons = covered(), tagged(), excused("test")
    listed = [one for one in statements().values() if one.concerns_us]
    for one in listed:
        named = tests.get(one.id, [])
        result = results.of(named) if named else "excepted" if one.id in reasons else "UNTESTED"
        lines = ", ".join(f"{file}:{line}" for file, line in places.get(one.id, []))
        print(f"{one.id:<18} {sum(results.cases[n] for n in named):>4} tests  {result:<8} {lines}")
    untested = [one.id for one in listed if one.id not in tests and one.id not in reasons]
    print(f"\n{len(listed)} statements, {len(untested)} untested without a reason", *untested)
    PAGE.write_text(page(listed, tests, places, results), encoding="utf-8")
    return int(code) or bool(untested)


def page(
    listed: list[Statement],
    tests: Covered,
    places: dict[str, list[tuple[str, int]]],
    results: Results,
) -> str:
    """Return the text of docs/reference/conformance.md."""
    parts = [INTRO, _summary(listed, tests, results)]
    for title, prefix in (("MQTT 5.0", "MQTT-"), ("MQTT 3.1.1", "MQTT311-")):
        parts.append(f"## {title}\n")
        parts.append(
            "| Statement | Binds | In our words | Tests | Result | Enforced in |\n"
            "|---|---|---|---|---|---|"
        )
        for one in listed:
            if one.id.startswith(prefix):
                named = tests.get(one.id, [])
                files = sorted({file for file, _ in places.get(one.id, [])})
                result = results.of(named) if named else "see exceptions"
                parts.append(
                    f"| {one.id} | {one.side} | {_cell(one.text)} | {_names(named)} | {result} | "
                    f"{'<br>'.join(f'`{file}`' for file in files)} |"
                )
        parts.append("")
    parts += ["## Exceptions\n", "| Statement | Reason |\n|---|---|"]
    parts += [f"| {id} | {_cell(reason)} |" for id, reason in exceptions().items()]
    parts += [
        "",
        "## Edge cases\n",
        "Cases in which implementations have bugs or differ in behavior.\n",
        "| Case | In our words | Tests | Result |\n|---|---|---|---|",
    ]
    for number, text in edges().items():
        named = tests.get(number, [])
        parts.append(f"| {number} | {_cell(text)} | {_names(named)} | {results.of(named)} |")
    return "\n".join(parts) + "\n"


def _summary(listed: list[Statement], tests: Covered, results: Results) -> str:
    rows = [
        "| Standard | Statements | Concern a server | Tested | Passed |",
        "|---|---|---|---|---|",
    ]
    for title, prefix in (("MQTT 5.0", "MQTT-"), ("MQTT 3.1.1", "MQTT311-")):
        total = sum(id.startswith(prefix) for id in statements())
        ours = [one for one in listed if one.id.startswith(prefix)]
        tested = [one for one in ours if one.id in tests]
        passed = sum(results.of(tests[one.id]) == "passed" for one in tested)
        rows.append(f"| {title} | {total} | {len(ours)} | {len(tested)} | {passed} |")
    rows.append("")
    rows.append(
        "The other statements bind only clients, and a server cannot tell whether a client follows them.\n"
    )
    return "\n".join(rows)


def _names(tests: list[str]) -> str:
    return "<br>".join(f"`{name}`" for name in tests)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
