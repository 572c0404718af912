"""Test how two configurations are compared: which changes are found, and which of them require a restart."""

from hookmq.config.diff import compare
from hookmq.config.model import Config, loads
from hookmq.model.reload_report import ReloadReport

BASE = """version: 1
listeners:
  - {name: a, bind: '127.0.0.1:1'}
  - {name: b, bind: '127.0.0.1:2'}
plugins:
  - {use: p, config: {url: x, secret: hunter2}}
  - {use: q}
"""


def config(text: str, **environ: str) -> Config:
    return loads(text, "f", (), environ)


def changed(old: str, new: str) -> ReloadReport:
    assert old in BASE
    return compare(config(BASE), config(BASE.replace(old, new)))


def test_nothing_changed() -> None:
    report = compare(config(BASE), config("# a comment\n" + BASE))
    assert not report
    assert report.fields() == {"applied": [], "needs_restart": []}


def test_settings_of_the_core_are_applied() -> None:
    report = compare(config(BASE), config(BASE + "broker: {max_qos: 1}\nlog: {level: debug}\n"))
    assert [str(change) for change in report.applied] == [
        "broker.max_qos: 2 -> 1",
        "log.level: info -> debug",
    ]
    assert report.restart == ()


def test_the_loop_needs_a_restart() -> None:
    report = compare(config(BASE), config(BASE + "loop: asyncio\n"))
    assert [str(change) for change in report.restart] == ["loop: auto -> asyncio"]


def test_listeners_are_known_by_name() -> None:
    report = changed("  - {name: a, bind: '127.0.0.1:1'}\n", "")
    assert [str(change) for change in report.applied] == ["listeners.a: tcp 127.0.0.1:1 -> -"]
    report = changed("name: a,", "name: c,")
    assert {change.path for change in report.applied} == {"listeners.a", "listeners.c"}


def test_a_listener_whose_socket_stays_takes_some_keys_and_not_others() -> None:
    report = changed("name: a,", "name: a, mount_point: m/, backlog: 5,")
    assert [change.path for change in report.applied] == ["listeners.a.mount_point"]
    assert [change.path for change in report.restart] == ["listeners.a.backlog"]


def test_a_listener_that_moves_is_opened_anew_with_everything() -> None:
    report = changed("name: a, bind: '127.0.0.1:1'", "name: a, bind: '127.0.0.1:3', backlog: 5")
    assert {change.path for change in report.applied} == {"listeners.a.bind", "listeners.a.backlog"}
    assert report.restart == ()


def test_plugins_are_known_by_id_and_their_order_counts() -> None:
    report = changed(
        "  - {use: p, config: {url: x, secret: hunter2}}\n  - {use: q}\n",
        "  - {use: q}\n  - {use: p, config: {url: y, secret: other}}\n",
    )
    assert [str(change) for change in report.applied] == [
        "plugins.p.config.url: x -> y",
        "plugins.p.config.secret: *** -> ***",
        "plugins.order: [p, q] -> [q, p]",
    ]
    assert [str(c) for c in changed("  - {use: q}\n", "").applied] == ["plugins.q: q -> -"]


def test_changed_secrets_are_masked_in_the_report() -> None:
    text = BASE.replace("url: x", "url: {$env: U}")
    report = compare(config(text, U="one"), config(text, U="two"))
    assert [str(change) for change in report.applied] == ["plugins.p.config.url: *** -> ***"]


def test_changed_headers_are_masked_in_the_report() -> None:
    texts = [BASE.replace("url: x", f"headers: {{x-team: {one}}}") for one in ("one", "two")]
    report = compare(*[config(text) for text in texts])
    assert [str(change) for change in report.applied] == [
        "plugins.p.config.headers.x-team: *** -> ***"
    ]


def test_the_report_as_fields() -> None:
    report = compare(config(BASE), config(BASE + "loop: asyncio\n"))
    assert report.fields() == {"applied": [], "needs_restart": ["loop: auto -> asyncio"]}
