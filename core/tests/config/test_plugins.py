"""Test how plugin objects are created from configuration entries."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hookmq.config.model import Config, loads
from hookmq.config.plugins import accepts, build, effective
from hookmq.config.show import show
from hookmq.hooks.entry_points import InstalledEntry
from hookmq.model.errors import ConfigError, PluginError, PluginNotFound
from hookmq.model.settings import setting
from hookmq.plugin import HOOK_API, Context, Plugin, hookimpl

HEAD = "version: 1\nlisteners: [{name: tcp}]\nplugins:\n"


@dataclass(frozen=True)
class Settings:
    url: str
    size: int = setting(1, "how much", maximum=9)


class Hello(Plugin):
    Config = Settings

    @hookimpl
    def on_publish(self, client: Any, message: Any) -> None:
        return None


class Bare(Plugin):
    pass


class Future(Plugin):
    requires_api = ">=99"


class Broken(Plugin):
    def __init__(self, config: Any, context: Context) -> None:
        raise RuntimeError("no disk")


class Point:
    """A stand-in for an entry point. It has the attributes that the code uses."""

    def __init__(self, load: Callable[[], Any]) -> None:
        self.load = load


def offer(name: str, kind: type[Plugin], distribution: str = "") -> InstalledEntry:
    point: Any = Point(lambda: kind)
    return InstalledEntry(
        name, f"m:{kind.__name__}", distribution or f"hookmq-{name}", "1.2", point
    )


OFFERED = (
    offer("hello", Hello),
    offer("bare", Bare),
    offer("future", Future),
    offer("broken", Broken),
)


def config(text: str) -> Config:
    return loads(HEAD + text, "f", (), {"URL": "u"})


def test_plugins_are_built_in_order_with_their_configuration() -> None:
    built = build(
        config(
            "  - {use: hello, id: b, config: {url: x}}\n"
            "  - {use: bare}\n"
            "  - {use: hello, config: {url: {$env: URL}}}\n"
        ),
        OFFERED,
    )
    assert [one.id for one in built] == ["b", "bare", "hello"]
    assert [one.plugin.config for one in built] == [Settings("x"), None, Settings("u")]
    assert (built[0].plugin.id, built[0].version) == ("b", "1.2")


def test_a_plugin_that_is_off_is_not_even_looked_for() -> None:
    assert build(config("  - {use: nowhere, enabled: false}\n"), OFFERED) == ()


def test_mistakes_of_all_plugins_are_told_at_their_places() -> None:
    with pytest.raises(ConfigError) as caught:
        build(
            config(
                "  - use: hello\n    config: {url: 5, size: 12}\n"
                "  - {use: hello, id: b}\n"
                "  - {use: bare, config: {x: 1}}\n"
            ),
            OFFERED,
        )
    assert str(caught.value).splitlines() == [
        'f:5:19: plugins[0].config.url: expected text, found the number 5 (quote it to make it text: "5")',
        "f:5:28: plugins[0].config.size: expected at most 9, found 12",
        "f:6:5: plugins[1].config.url: this key is missing",
        "f:7:26: plugins[2].config.x: the plugin 'bare' has no settings",
    ]


def test_a_missing_plugin_says_how_to_get_it() -> None:
    with pytest.raises(PluginNotFound) as caught:
        build(config("  - {use: helo}\n"), OFFERED)
    assert str(caught.value) == (
        "plugin 'helo': no plugin named 'helo' is installed; did you mean 'hello'?"
    )
    assert caught.value.exit_code == 3
    with pytest.raises(PluginNotFound, match=r"uv pip install \./plugins/auth_jwt\)"):
        build(config("  - {use: auth_jwt}\n"), OFFERED)


def test_two_distributions_of_one_name_are_named() -> None:
    twice = (offer("hello", Hello, "one"), offer("hello", Bare, "two"))
    with pytest.raises(PluginError, match=r"one 1\.2 and two 1\.2"):
        build(config("  - {use: hello}\n"), twice)


def test_another_api_is_refused_before_construction() -> None:
    with pytest.raises(PluginError, match=f"requires plugin API >=99; this HookMQ has {HOOK_API}$"):
        build(config("  - {use: future}\n"), OFFERED)


def test_a_constructor_that_fails_is_the_plugins_error() -> None:
    with pytest.raises(PluginError) as caught:
        build(config("  - {use: broken}\n"), OFFERED)
    words, _, place = str(caught.value).rpartition(" ")
    assert words == "plugin 'broken': constructing it failed: RuntimeError: no disk"
    assert place.startswith(f"({__file__}:")


def test_a_constructor_that_exits_does_not_end_the_broker() -> None:
    class Leaving(Plugin):
        def __init__(self, config: object, context: Context) -> None:
            raise SystemExit(0)

    with pytest.raises(
        PluginError, match=r"^plugin 'leaving': constructing it failed: SystemExit: 0 \("
    ):
        build(config("  - {use: leaving}\n"), (offer("leaving", Leaving),))


@pytest.mark.parametrize(
    ("use", "words"),
    [
        ("acl_flie", "did you mean 'acl_file'? (in a checkout: uv pip install ./plugins/acl_file)"),
        ("webhook_filter", "installed (in a checkout: uv pip install ./plugins/webhook)"),
        ("helo", "did you mean 'hello'?"),
        ("nobody_wrote_this", "; `hookmq plugins --installed` lists those that are"),
    ],
)
def test_no_message_tells_to_install_what_may_be_anybodys(use: str, words: str) -> None:
    with pytest.raises(PluginNotFound) as caught:
        build(config(f"  - {{use: {use}}}\n"), OFFERED)
    assert str(caught.value).endswith(words)


def test_a_plugin_that_is_not_required_is_left_out_and_logged() -> None:
    logged: list[tuple[str, str, object]] = []

    def log(level: str, event: str, /, **fields: object) -> None:
        logged.append((level, event, fields["plugin"]))

    text = (
        "  - {use: broken, required: false}\n  - {use: nowhere, required: false}\n  - {use: bare}\n"
    )
    assert [one.id for one in build(config(text), OFFERED, log)] == ["bare"]
    assert logged == [
        ("warning", "plugin.skipped", "nowhere"),
        ("warning", "plugin.skipped", "broken"),
    ]


def test_a_plugin_required_if_installed_may_be_missing_but_not_fail() -> None:
    """A plugin with ``required: if_installed`` may be missing, but must not fail. Otherwise, a broker whose installed
    store is unusable would lose all its state.
    """
    logged: list[tuple[str, object]] = []

    def log(level: str, event: str, /, **fields: object) -> None:
        logged.append((event, fields["error"]))

    text = "  - {use: nowhere, required: if_installed}\n  - {use: bare}\n"
    assert [one.id for one in build(config(text), OFFERED, log)] == ["bare"]
    [(event, error)] = logged
    assert event == "plugin.skipped"
    assert "pip install" not in str(error)
    for name, says in (("broken", "no disk"), ("future", "requires plugin API")):
        with pytest.raises(PluginError, match=says):
            build(config(f"  - {{use: {name}, required: if_installed}}\n"), OFFERED)


def test_an_object_whose_configuration_stayed_is_kept() -> None:
    first = build(config("  - {use: hello, config: {url: a}}\n  - {use: bare}\n"), OFFERED)
    text = "  - {use: bare, listeners: [tcp]}\n  - {use: hello, config: {url: b}}\n"
    second = build(config(text), OFFERED, known=first)
    assert second[0].plugin is first[1].plugin
    assert second[0].entry.listeners == ("tcp",)
    assert second[1].plugin is not first[0].plugin


def test_an_object_that_can_goes_on_with_another_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = build(config("  - {use: hello, config: {url: a}}\n"), OFFERED)
    plugin = first[0].plugin

    def reconfigure(value: Any) -> Any:
        if value.url == "fixed":
            raise ConfigError("url needs a restart")
        if value.url == "broken":
            raise RuntimeError("no")
        return None if value.url == "anew" else lambda: setattr(plugin, "config", value)

    monkeypatch.setattr(plugin, "reconfigure", reconfigure)
    [second] = build(config("  - {use: hello, config: {url: b}}\n"), OFFERED, known=first)
    assert second.plugin is plugin
    assert plugin.config.url == "a"
    assert second.apply is not None
    second.apply()
    assert plugin.config.url == "b"
    [third] = build(config("  - {use: hello, config: {url: anew}}\n"), OFFERED, known=first)
    assert third.plugin is not plugin
    for url, says in (
        ("fixed", "url needs a restart"),
        ("broken", "reconfigure failed: RuntimeError"),
    ):
        with pytest.raises(PluginError, match=says):
            build(config(f"  - {{use: hello, config: {{url: {url}}}}}\n"), OFFERED, known=first)


def test_a_plugin_built_of_no_document_is_bound_too() -> None:
    from hookmq.hooks.instance import PluginEntry
    from hookmq.server.settings import ListenerSettings

    made = Config(1, (ListenerSettings(),), plugins=(PluginEntry("hello", config={"url": "x"}),))
    assert build(made, OFFERED)[0].plugin.config == Settings("x")


def test_the_shown_configuration_has_the_effective_values() -> None:
    text = "  - {use: hello, config: {url: {$env: URL}}}\n  - {use: nowhere, config: {a: 1}}\n"
    shown = show(effective(config(text), OFFERED))
    lines = {line.split(":")[0].strip(): line for line in shown.splitlines()}
    assert lines["url"].split("#")[0].strip() == "url: '***'"
    assert lines["size"].endswith("# default")
    assert lines["a"].endswith("# f:5")
    with pytest.raises(ConfigError, match="found 12"):
        effective(config("  - {use: hello, config: {url: x, size: 12}}\n"), OFFERED)


@pytest.mark.parametrize(
    ("clauses", "version", "fits"),
    [
        (">=1.0,<2", "1.0", True), (">=1.0,<2", "1.7", True), (">=1.0,<2", "2.0", False), (">=1.1", "1.0", False),
        ("==1", "1.0", True), ("!=1.0", "1.0", False), ("~=1.2", "1.9", True), ("~=1.2", "2.0", False),
        ("~=1.2", "1.1", False), (">1", "1.0", False), ("<=1.10", "1.9", True), ("", "1.0", True), ("1.0", "1.0", False),
        ("about 1", "1.0", False),
    ],
)  # fmt: skip
def test_ranges_of_versions(clauses: str, version: str, fits: bool) -> None:
    assert accepts(clauses, version) is fits
