"""Test metric families and their text format."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hookmq.hooks.metric_registry import MetricRegistry
from hookmq.model.histogram import Exemplar, Histogram
from hookmq.model.metrics import HELP, Metrics
from hypothesis import given
from hypothesis import strategies as st

ERRORS = """# HELP hookmq_metric_errors_total Failed readings of metrics, by family.
# TYPE hookmq_metric_errors_total counter
"""


def test_every_kind_as_text() -> None:
    registry = MetricRegistry()
    registry.counter("b_total", "How many.", lambda: 3)
    registry.gauge("a", "By name.", lambda: [({"x": "1", "c": "2"}, 0.5), ({}, -1)])
    registry.summary("z", "Seconds.", lambda: [({"k": "v"}, 2, 1.5)])
    assert registry.text() == (
        "# HELP hookmq_a By name.\n# TYPE hookmq_a gauge\n"
        'hookmq_a{c="2",x="1"} 0.5\nhookmq_a -1\n'
        "# HELP hookmq_b_total How many.\n# TYPE hookmq_b_total counter\nhookmq_b_total 3\n"
        + ERRORS
        + "# HELP hookmq_z Seconds.\n# TYPE hookmq_z summary\n"
        'hookmq_z_count{k="v"} 2\nhookmq_z_sum{k="v"} 1.5\n'
    )


def test_a_histogram_has_cumulative_buckets() -> None:
    registry = MetricRegistry()
    found = Histogram((0.5, 2.0))
    for value in (0.25, 0.5, 1.0, 3.0):
        found.add(value)
    registry.histogram("h_seconds", "Seconds.", lambda: [({"k": "v"}, found)])
    text = registry.text()
    assert (
        "# HELP hookmq_h_seconds Seconds.\n# TYPE hookmq_h_seconds histogram\n"
        'hookmq_h_seconds_bucket{k="v",le="0.5"} 2\nhookmq_h_seconds_bucket{k="v",le="2.0"} 3\n'
        'hookmq_h_seconds_bucket{k="v",le="+Inf"} 4\n'
        'hookmq_h_seconds_count{k="v"} 4\nhookmq_h_seconds_sum{k="v"} 4.75\n'
    ) in text
    assert registry.values()['h_seconds_bucket{k="v",le="+Inf"}'] == 4


def test_standard_names_have_no_prefix() -> None:
    registry = MetricRegistry()
    registry.standard().gauge("process_open_fds", "Files.", lambda: 3)
    registry.gauge("process_open_fds", "Other files.", lambda: 4)
    assert registry.values()["process_open_fds"] == 3
    assert "\nprocess_open_fds 3\n" in registry.text()
    assert "\nhookmq_process_open_fds 4\n" in registry.text()


def test_openmetrics_names_families_and_ends() -> None:
    registry = MetricRegistry()
    registry.counter("b_total", 'A "quoted" word.', lambda: 3)
    text = registry.text(openmetrics=True)
    assert (
        '# HELP hookmq_b A \\"quoted\\" word.\n# TYPE hookmq_b counter\nhookmq_b_total 3\n' in text
    )
    assert text.endswith("\n# EOF\n")
    assert '# HELP hookmq_b_total A "quoted" word.\n' in registry.text()


def test_only_openmetrics_shows_exemplars() -> None:
    registry, histogram = MetricRegistry(), Histogram((0.1, 1.0))
    registry.histogram("h", "H.", lambda: [({"a": "b"}, histogram)])
    plain = registry.text(openmetrics=True)
    histogram.add(0.25)
    histogram.exemplify(Exemplar(0.25, "0af7651916cd43dd8448eb211c80319c", 1700000000.0625))
    lines = registry.text(openmetrics=True).splitlines()
    assert [line for line in lines if line.startswith("hookmq_h")] == [
        'hookmq_h_bucket{a="b",le="0.1"} 0',
        'hookmq_h_bucket{a="b",le="1.0"} 1 # {trace_id="0af7651916cd43dd8448eb211c80319c"} 0.25 1700000000.062',
        'hookmq_h_bucket{a="b",le="+Inf"} 1',
        'hookmq_h_count{a="b"} 1',
        'hookmq_h_sum{a="b"} 0.25',
    ]
    assert "trace_id" not in plain + registry.text()
    assert registry.values()['h_bucket{a="b",le="1.0"}'] == 1


@pytest.mark.parametrize(
    "wrong", [5, Exemplar(0.1, '"} 1', 1.0), Exemplar(0.1, "a" * 32, math.nan)]
)
def test_an_invalid_exemplar_hides_only_its_histogram(wrong: Any) -> None:
    registry, histogram = MetricRegistry(), Histogram((0.1,))
    registry.of("broken").histogram("h", "H.", lambda: [({}, histogram)])
    registry.gauge("one", "One.", lambda: 1)
    histogram.exemplars = [wrong, None]
    lines = registry.text(openmetrics=True).splitlines()
    assert "hookmq_one 1" in lines
    assert not any(line.startswith("hookmq_h") for line in lines)
    assert 'metric_errors_total{family="hookmq_h",plugin="broken"}' in registry.values()


def test_the_parts_are_the_text() -> None:
    registry = MetricRegistry()
    read: list[str] = []

    def gauge(name: str) -> int:
        read.append(name)
        return 1

    for name in ("a", "b"):
        registry.gauge(name, "A.", partial(gauge, name))
    parts = registry.parts(openmetrics=True)
    assert next(parts).startswith("# HELP hookmq_a ")
    assert read == ["a"]  # the other metrics are read only when they are needed
    assert list(parts)[-1] == "# EOF\n"
    for openmetrics in (True, False):
        assert "".join(registry.parts(openmetrics)) == registry.text(openmetrics)


def test_values_are_read_when_asked_for() -> None:
    registry, counted = MetricRegistry(), [0]

    def read() -> int:
        counted[0] += 1
        return counted[0]

    registry.counter("a_total", "A.", read)
    assert counted == [0]
    assert "hookmq_a_total 1\n" in registry.text()
    assert "hookmq_a_total 2\n" in registry.text()


def test_two_plugins_share_a_family() -> None:
    registry = MetricRegistry()
    for plugin, value in (("one", 1), ("two", 2)):
        registry.of(plugin).gauge("a", "A.", partial(list, [({"plugin": "me"}, value)]))
    text = registry.text()
    assert text.count("# TYPE hookmq_a gauge") == 1
    assert 'hookmq_a{plugin="one"} 1\nhookmq_a{plugin="two"} 2\n' in text


@pytest.mark.parametrize(
    ("add", "words"),
    [
        (lambda r: r.counter("a", "A.", int), "must end in _total"),
        (lambda r: r.gauge("a_total", "A.", int), "are reserved"),
        (lambda r: r.gauge("a-b", "A.", int), "invalid metric name"),
        (lambda r: r.gauge("a", "A.", int), "hookmq_a already exists$"),
        (lambda r: r.of("p").gauge("a", "B.", int), "already exists as a gauge: A"),
        (lambda r: r.of("p").summary("a", "A.", list), "already exists as a gauge: A"),
    ],
)
def test_metrics_that_cannot_be_exported_are_refused(
    add: Callable[[MetricRegistry], None], words: str
) -> None:
    registry = MetricRegistry()
    registry.gauge("a", "A.", int)
    with pytest.raises(ValueError, match=words):
        add(registry)


def fail() -> Any:
    raise RuntimeError("gone")


@pytest.mark.parametrize(
    "read",
    [
        fail,
        lambda: None,
        lambda: "7",
        lambda: [({"a": "1"}, "7")],
        lambda: [({"a b": "1"}, 7)],
        lambda: [({"__a": "1"}, 7)],
        lambda: [({"a": "1"}, 1), ({"a": "1"}, 2)],
    ],
)
def test_a_reader_that_fails_is_left_out_and_counted(read: Any) -> None:
    told: list[tuple[str, str]] = []
    registry = MetricRegistry(lambda family, plugin, error: told.append((family, plugin)))
    registry.of("good").gauge("a", "A.", lambda: 1)
    registry.of("bad").gauge("a", "A.", read)
    text = registry.text()
    assert 'hookmq_a{plugin="good"} 1\n' in text
    assert 'plugin="bad"' not in text.partition("hookmq_metric_errors_total")[0]
    assert 'hookmq_metric_errors_total{family="hookmq_a",plugin="bad"} 1\n' in text
    assert 'family="hookmq_a",plugin="bad"} 2\n' in registry.text()
    assert told == [("hookmq_a", "bad")]


@given(st.text(), st.text(), st.text(min_size=1))
def test_labels_and_help_are_one_line_and_can_be_read_back(
    value: str, help: str, other: str
) -> None:
    registry = MetricRegistry()
    registry.gauge("a", help, lambda: [({"k": value, "z": other}, 1)])
    lines = registry.text().split("\n")
    assert lines[0] == "# HELP hookmq_a " + help.replace("\\", r"\\").replace("\n", r"\n")
    (sample,) = (line for line in lines if line.startswith("hookmq_a{"))
    found, rest = [], sample.removeprefix('hookmq_a{k="')
    while not rest.startswith('"'):
        taken = 2 if rest[0] == "\\" else 1
        found.append({r"\\": "\\", r"\n": "\n", r"\"": '"'}.get(rest[:taken], rest[:taken]))
        rest = rest[taken:]
    assert "".join(found) == value
    assert rest.startswith('",z="')
    assert rest.endswith('"} 1')


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "1"), (1 << 70, str(1 << 70)), (0.1, "0.1"), (-3.0, "-3"), (1e300, "1e+300"),
        (math.inf, "+Inf"), (-math.inf, "-Inf"), (math.nan, "NaN"),
    ],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    registry = MetricRegistry()
    registry.gauge("a", "A.", lambda: value)
    assert f"\nhookmq_a {text}\n" in registry.text()


def _is_counter(name: str) -> bool:
    counted = isinstance(getattr(Metrics(), name), int | dict)
    # `received_by_qos` converts these two into counts. `listeners` has the traffic of each listener.
    return (
        counted
        and name not in ("listeners", "received_qos_sum", "received_qos2")
        and name[0] != "_"
    )


def test_every_counter_of_the_broker_says_what_it_counts() -> None:
    assert sorted(HELP) == [name for name in dir(Metrics()) if _is_counter(name)]
    assert all(text.endswith(".") for text in HELP.values())
