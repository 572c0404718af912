"""Test a plugin's declarations and its configuration entry. Every error names the plugin and the problem."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pluggy
import pytest
from hookmq.hooks.instance import HookOptions, PluginEntry, PluginInstance
from hookmq.hooks.manager import Hooks
from hookmq.hooks.registry import adapt
from hookmq.hooks.specs import SPECS
from hookmq.model.errors import ConfigError, PluginError
from hookmq.model.events import Action
from hookmq.plugin import Context, Plugin, hookimpl

Make = Callable[..., Plugin]
MakeInstance = Callable[..., PluginInstance]
marker = pluggy.HookimplMarker("hookmq")


def refused(plugin: Plugin | PluginInstance, **entry: Any) -> str:
    with pytest.raises((PluginError, ConfigError)) as caught:
        Hooks([plugin]) if isinstance(plugin, PluginInstance) else Hooks.of(plugin)
    assert "'p'" in str(caught.value)
    return str(caught.value)


def of(**members: Any) -> Plugin:
    made: type[Plugin] = type("Made", (Plugin,), members)
    return made(None, Context("p"))


# methods ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["wrapper", "hookwrapper", "tryfirst", "trylast"])
def test_wrappers_and_order_marks_are_refused(option: str) -> None:
    def on_publish(self: Any, message: Any) -> Any:
        return (yield) if "wrapper" in option else None

    options: Any = {option: True}
    marked = marker(**options)(on_publish)
    assert f"on_publish is marked {option}=True" in refused(of(on_publish=marked))


@pytest.mark.parametrize("optional", [False, True])
def test_unknown_hooks_are_refused_with_the_nearest(optional: bool) -> None:
    marked = marker(lambda self, message: None, optionalhook=optional)
    words = refused(of(on_publsh=marked))
    assert "unknown hook on_publsh; did you mean on_publish?" in words


def test_any_marked_method_must_be_a_hook() -> None:
    assert "unknown hook frobnicate" in refused(of(frobnicate=marker(lambda self: None)))


def test_unmarked_methods_are_plain_methods() -> None:
    hooks = Hooks.of(of(on_pebbles=lambda self: None, helper=lambda self: None))
    assert not any(hooks.registry.values())


def test_a_hook_that_lacks_its_mark_is_refused() -> None:
    words = refused(of(authorize=lambda self, topic: None))
    assert "authorize is named like a hook but is not marked @hookimpl" in words


def test_an_override_must_be_marked_again() -> None:
    class Base(Plugin):
        @hookimpl
        def authorize(self, topic: Any) -> Any:
            return None

    class Derived(Base):
        def authorize(self, topic: Any) -> Any:
            return None

    assert "not marked" in refused(Derived(None, Context("p")))


def test_inherited_hooks_count() -> None:
    class Base(Plugin):
        @hookimpl
        def authorize(self, topic: Any) -> Any:
            return None

    class Derived(Base):
        pass

    assert len(Hooks.of(Derived(None, Context("p"))).registry["authorize"]) == 1


def test_specname_gives_a_method_another_name() -> None:
    hooks = Hooks.of(of(check=marker(lambda self, topic: None, specname="authorize")))
    assert [one.arguments for one in hooks.registry["authorize"]] == [("topic",)]


def test_two_methods_for_one_hook_name_both() -> None:
    first = marker(lambda self, topic: None, specname="authorize")
    second = marker(lambda self, topic: None)
    words = refused(of(check=first, authorize=second))
    assert "authorize and check both implement authorize" in words


def test_each_plugin_can_refuse_the_others() -> None:
    found: list[list[str]] = []

    def check_together(self: Plugin, plugins: list[Plugin]) -> None:
        found.append([one.id for one in plugins])
        if len(plugins) > 2:
            raise ConfigError("'p' is enough")

    one, other = of(check_together=check_together), Plugin(None, Context("q"))
    Hooks.of(other, one)
    assert found == [["q", "p"]]
    with pytest.raises(ConfigError, match="enough"):
        Hooks.of(one, other, Plugin(None, Context("r")))


# signatures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (lambda self, mesage: None, "'mesage' of on_publish is not one of on_publish(client,"),
        (lambda self, mesage: None, "did you mean message?"),
        (lambda self, subscription: None, "'subscription' of on_publish is not one of"),
        (lambda self, message=None: None, "argument 'message' of on_publish has a default"),
        (lambda self, *args: None, "takes '*args'"),
        (lambda self, **kwargs: None, "takes '**kwargs'"),
        (lambda self, *, message: None, "takes 'message'"),
    ],
)
def test_signatures_are_checked(method: Any, words: str) -> None:
    assert words in refused(of(on_publish=marker(method)))


@pytest.mark.parametrize("hook", SPECS)
def test_every_hook_takes_all_its_arguments_and_none(hook: str) -> None:
    names = ", ".join(("self", *SPECS[hook].arguments))
    full = eval(f"lambda {names}: ({', '.join(SPECS[hook].arguments)},)")
    none = eval("lambda self: ()")
    for method, count in ((full, len(SPECS[hook].arguments)), (none, 0)):
        hooks = Hooks.of(of(**{hook: marker(method)}))
        (one,) = hooks.registry[hook]
        assert len(one.arguments) == count
        broker: Any = "broker"
        given = tuple(SPECS[hook].given)
        answer = adapt(one.function, one.arguments, one.spec, broker)(*given)
        assert answer == SPECS[hook].arguments[:count]


def test_arguments_may_stand_in_any_order() -> None:
    hooks = Hooks.of(
        of(on_publish=marker(lambda self, broker, message, client: (broker, message, client)))
    )
    (one,) = hooks.registry["on_publish"]
    broker: Any = "b"
    assert adapt(one.function, one.arguments, one.spec, broker)("c", "m") == ("b", "m", "c")


def test_static_and_class_methods_are_hooks() -> None:
    class Made(Plugin):
        @staticmethod
        @hookimpl
        def on_publish(message: Any) -> Any:
            return message

        @classmethod
        @hookimpl
        def on_will(cls, message: Any) -> Any:
            return cls, message

    hooks = Hooks.of(Made(None, Context("p")))
    assert hooks.registry["on_publish"][0].function("m") == "m"
    assert hooks.registry["on_will"][0].function("m") == (Made, "m")


# colour ----------------------------------------------------------------------------------------------------------


async def _async(self: Any) -> None:
    return None


def _generator(self: Any) -> Any:
    yield


async def _async_generator(self: Any) -> Any:
    yield


@pytest.mark.parametrize("hook", SPECS)
def test_async_implementations(hook: str) -> None:
    plugin = of(**{hook: marker(_async)})
    if SPECS[hook].timeout is None:
        assert f"{hook} cannot be async" in refused(plugin)
    else:
        assert Hooks.of(plugin).registry[hook][0].is_async


@pytest.mark.parametrize("method", [_generator, _async_generator])
def test_generators_are_refused(method: Any) -> None:
    assert "on_publish yields" in refused(of(on_publish=marker(method)))


def test_an_async_authorize_cannot_be_asked_about_deliveries() -> None:
    plugin = of(authorize=marker(_async), authorize_actions=frozenset(Action))
    assert "authorize of Action.DELIVER cannot be async" in refused(plugin)


def test_a_blocking_authorize_cannot_be_asked_about_deliveries() -> None:
    plugin = of(
        authorize=marker(lambda self: None), authorize_actions=frozenset(Action), blocking=True
    )
    assert "cannot be blocking" in refused(plugin)


def test_a_blocking_plugin_cannot_deliver() -> None:
    plugin = of(on_deliver=marker(lambda self: None), blocking=True)
    assert "on_deliver must be synchronous" in refused(plugin)


def test_authorize_actions_are_actions() -> None:
    plugin = of(authorize=marker(lambda self: None), authorize_actions=frozenset({"publish!"}))
    assert "not an Action" in refused(plugin)


# entries ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hook", "options", "words"),
    [
        ("on_connect", {"on_error": "pass"}, "on_error: 'pass': expected deny"),
        ("on_auth", {"on_error": "pass"}, "on_error: 'pass': expected deny"),
        ("authorize", {"on_error": "pass"}, "on_error: 'pass': expected deny"),
        ("on_subscribe", {"on_error": "pass"}, "on_error: 'pass': expected deny"),
        ("on_will", {"on_error": "pass"}, "on_error: 'pass': expected deny"),
        ("on_publish", {"on_error": "drop"}, "on_error: 'drop': expected deny or pass"),
        ("on_deliver", {"on_error": "deny"}, "on_error: 'deny': expected pass or drop"),
        ("on_published", {"on_error": "pass"}, "not available for this hook"),
        ("on_deliver", {"timeout": 1.0}, "timeout: on_deliver is synchronous"),
        ("provide_store", {"timeout": 1.0}, "timeout: provide_store is synchronous"),
        ("on_publish", {"timeout": 0.0}, "timeout: 0.0 is not above 0"),
        ("on_publish", {"queue": 10}, "queue: only observers have a queue"),
        ("on_published", {"queue": 0}, "queue: 0 is less than 1"),
        ("on_connect", {"filters": ("a",)}, "filters: on_connect has no topic"),
        ("on_publish", {"filters": ("a/#/b",)}, "'a/#/b': '#' is not"),
        ("on_publish", {"filters": ("$share/g/a",)}, "is a shared subscription"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    hook: str, options: Any, words: str, make: Make, instance: MakeInstance
) -> None:
    plugin = make("p", **{hook: lambda self: None})
    message = refused(instance(plugin, hooks={hook: HookOptions(**options)}))
    assert words in message
    assert f"hooks.{hook}" in message


@pytest.mark.parametrize(
    ("hook", "options"),
    [
        ("on_publish", {"on_error": "pass", "timeout": 2.0, "filters": ("a/#", "+")}),
        ("on_publish", {"on_error": "deny"}),
        ("on_deliver", {"on_error": "drop"}),
        ("on_deliver", {"on_error": "pass"}),
        ("on_published", {"queue": 1, "timeout": 2.0, "filters": ("a",)}),
    ],
)
def test_options_that_fit_are_taken(
    hook: str, options: Any, make: Make, instance: MakeInstance
) -> None:
    plugin = make("p", **{hook: lambda self: None})
    assert Hooks([instance(plugin, hooks={hook: HookOptions(**options)})]).plugins


def test_options_of_a_hook_that_there_is_not(make: Make, instance: MakeInstance) -> None:
    plugin = make("p", on_publish=lambda self: None)
    words = refused(instance(plugin, hooks={"on_publishd": HookOptions()}))
    assert "unknown hook 'on_publishd' (did you mean on_publish" in words


def test_options_of_a_hook_that_the_plugin_has_not(make: Make, instance: MakeInstance) -> None:
    plugin = make("p", on_publish=lambda self: None)
    words = refused(instance(plugin, hooks={"on_will": HookOptions()}))
    assert "does not implement on_will" in words
    assert "it implements on_publish" in words


def test_a_bad_filter_of_the_whole_plugin(make: Make, instance: MakeInstance) -> None:
    assert "filters: 'a+'" in refused(instance(make("p"), filters=("ok/#", "a+")))


def test_two_plugins_with_one_id_are_refused(make: Make, instance: MakeInstance) -> None:
    with pytest.raises(ConfigError, match="two plugins have the id 'p'"):
        Hooks([instance(make("p")), instance(make("p"))])


def test_one_object_under_two_ids_is_refused(instance: MakeInstance, make: Make) -> None:
    plugin = make("p")
    second = PluginInstance(PluginEntry(use="p", id="q"), plugin)
    with pytest.raises(PluginError, match="already registered"):
        Hooks([instance(plugin), second])


def test_a_plugin_may_be_a_dataclass() -> None:
    @dataclass(eq=False)
    class Made(Plugin):
        config: Any
        context: Context

        @hookimpl
        def on_publish(self, message: Any) -> Any:
            return None

    assert Hooks.of(Made(None, Context("p"))).registry["on_publish"]


def test_callables_that_are_no_functions_are_not_hooks() -> None:
    # pluggy looks for functions; one hidden inside something else would never be called.
    assert "not marked" in refused(of(on_publish=partial(print)))
