"""Compare the API for authors of plugins, stores and tests with ``public_api.txt``, so that no change goes unnoticed.

After a change, run ``python core/tests/test_public_api.py`` to rewrite the file, and mention the change in
CHANGELOG.md.
"""

import dataclasses
import enum
import importlib
import inspect
import pathlib
from collections.abc import Callable, Iterator
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import hookmq
import pytest
from hookmq.hooks.specs import Specs

needs_the_source = pytest.mark.skipif(
    hookmq.BUILD.kind != "pure", reason="compiled code has no signatures and docstrings"
)
GOLDEN = pathlib.Path(__file__).with_name("public_api.txt")
CORE = (
    "hookmq.plugin",
    "hookmq.mqtt_api",
    "hookmq.storage_api",
    "hookmq.cluster_api",
    "hookmq.server_api",
    "hookmq.config_api",
    "hookmq.cli_api",
    "hookmq.build",
)
"""The modules of the core that plugins may import."""
MODULES = {
    **dict.fromkeys(CORE),
    "hookmq_testing": None,
    "hookmq_testing.contracts": None,
    "hookmq.hooks.specs": ("Specs",),
    "hookmq_toolkit.durable_files": None,
    "hookmq_toolkit.state_folder": None,
    "hookmq_toolkit.claims": ("MAX_DOTS", "MISSING", "claim_text", "find_claim"),
    "hookmq_toolkit.templates": (
        "JsonTemplate", "Template", "at_path", "check_names", "fill_header", "fill_url", "text_of",
    ),
    "hookmq_toolkit.http_client": (
        "AnswerTooLarge", "HttpAnswer", "HttpCounts", "HttpLimits", "HttpRequest", "HttpService", "RequestFailed",
        "Unavailable", "open_session", "read_body", "register_service_metrics", "send",
    ),
    "hookmq_toolkit.service_url": ("check_service_url", "clear_text_host"),
    "hookmq_toolkit.conditions": ("Condition",),
    "hookmq_toolkit.network_errors": ("WORDS", "network_reason", "reason_word"),
    "hookmq_toolkit.tls_client": ("TlsConfig", "check_tls", "client_context"),
    "hookmq_toolkit.threads": ("in_thread",),
    "hookmq_toolkit.topic_template": ("TopicTemplate", "overlap"),
    "hookmq_toolkit.ttl_cache": ("KeyDigest", "TtlCache"),
    "hookmq_toolkit.message_record": ("decode_block", "encode_block", "size_of"),
    "hookmq_toolkit.yaml_places": ("MAX_DEPTH", "MAX_NODES", "Node", "parse"),
    "hookmq_toolkit.rules": None,
    "hookmq_toolkit.breaker": ("Ask", "Breaker"),
    "hookmq_toolkit.files": (
        "FileStamp", "FileWatch", "check_regular", "file_stamp", "open_private", "open_regular", "shown_path",
        "write_secret",
    ),
    "hookmq.model.errors": ("PluginNotFound",),
}  # fmt: skip
"""The modules and their public names. None stands for the names in ``__all__``."""


def rendered() -> str:
    seen: dict[int, str] = {}
    return "\n".join(line for module in MODULES for line in _module(module, seen)) + "\n"


def _module(name: str, seen: dict[int, str]) -> Iterator[str]:
    module = importlib.import_module(name)
    yield f"# {name}"
    for public in sorted(MODULES[name] or module.__all__):
        value = getattr(module, public)
        if isinstance(value, type) and seen.setdefault(id(value), name) != name:
            yield f"{public}: as in {seen[id(value)]}"
        else:
            yield from _value(public, value)
    yield ""


def _value(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type) and issubclass(value, enum.Enum):
        yield f"enum {name}: {', '.join(value.__members__)}"
    elif isinstance(value, type):
        bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
        yield f"class {name}({bases})"
        yield from _members(value)
    elif callable(value) and not get_args(value):
        yield f"def {name}{_signature(value)}"
    elif isinstance(value, UnionType):
        yield f"{name}: UnionType"  # its class is called Union from Python 3.14 on
    else:
        yield f"{name}: {type(value).__name__}"


def _members(cls: type) -> Iterator[str]:
    if dataclasses.is_dataclass(cls):
        for field in dataclasses.fields(cls):
            given = (
                field.default is not dataclasses.MISSING
                or field.default_factory is not dataclasses.MISSING
            )
            yield f"    {field.name}{' = ...' if given else ''}"
    elif issubclass(cls, tuple):
        yield from (f"    {field}" for field in getattr(cls, "_fields", ()))
    else:
        annotations = inspect.get_annotations(cls)
        yield from (f"    {name}" for name in sorted(annotations) if not name.startswith("_"))
    for name, member in sorted(vars(cls).items()):
        if name.startswith("_") and name not in {"__init__", "__await__"}:
            continue
        if isinstance(member, property):
            yield f"    property {name}"
        elif isinstance(member, staticmethod | classmethod):
            yield f"    {type(member).__name__} {name}{_signature(member.__func__)}"
        elif inspect.isfunction(member) and not (
            name == "__init__" and dataclasses.is_dataclass(cls)
        ):
            yield f"    {'async ' if inspect.iscoroutinefunction(member) else ''}def {name}{_signature(member)}"


def _signature(function: Any) -> str:
    """Return the parts of a signature that callers rely on: parameter names and kinds, and which parameters have
    defaults. These do not depend on the Python version.
    """
    parts = []
    star = False
    for parameter in inspect.signature(function).parameters.values():
        text = parameter.name
        if parameter.kind is parameter.VAR_POSITIONAL:
            text, star = "*" + text, True
        elif parameter.kind is parameter.VAR_KEYWORD:
            text = "**" + text
        elif parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
            star = True
        if parameter.default is not parameter.empty:
            text += "=..."
        parts.append(text)
    return f"({', '.join(parts)})"


@needs_the_source
def test_the_public_api_is_what_it_was() -> None:
    now, before = rendered().splitlines(), GOLDEN.read_text().splitlines()
    gone = [line for line in before if line not in now]
    new = [line for line in now if line not in before]
    assert (gone, new) == ([], []), "the public API changed: see the text of this module"
    assert now == before


@needs_the_source
def test_every_public_name_has_a_docstring() -> None:
    bare = []
    for name, public in MODULES.items():
        module = importlib.import_module(name)
        for each in public or module.__all__:
            value = getattr(module, each)
            if (isinstance(value, type) or inspect.isfunction(value)) and not inspect.getdoc(value):
                bare.append(f"{name}.{each}")
    assert not bare


@needs_the_source
def test_every_type_in_a_public_signature_is_public() -> None:
    """Plugin authors can annotate every argument, result and attribute without importing private modules."""
    values = {f"{module}.{name}": value for module, name, value in _public()}
    values["hookmq.hooks.specs.Specs"] = Specs
    known = {id(value) for value in values.values()}
    behind = {
        f"{place}: {used.__module__}.{used.__qualname__}"
        for name, value in values.items()
        for place, hint in _hints(name, value)
        for used in _classes(hint, set())
        if used.__module__.split(".")[0].startswith("hookmq") and id(used) not in known
    }
    assert sorted(behind) == []


def test_the_check_of_signatures_sees_a_private_type() -> None:
    class Hidden:
        pass

    class Shown:
        one: "dict[str, tuple[Hidden, ...]] | None"

        def two(self, call: "Callable[[Hidden], None]") -> None: ...

    for cls in (Shown,):
        cls.__annotations__["one"] = dict[str, tuple[Hidden, ...]] | None
        cls.two.__annotations__["call"] = Callable[[Hidden], None]
        found = [place for place, hint in _hints("Shown", cls) if Hidden in _classes(hint, set())]
        assert sorted(found) == ["Shown", "Shown.two"]


def _public() -> Iterator[tuple[str, str, Any]]:
    """Yield the (module, name, value) of each public name in the core and the toolkit."""
    for module, names in MODULES.items():
        if module in CORE or module.startswith("hookmq_toolkit."):
            found = importlib.import_module(module)
            yield from ((module, name, getattr(found, name)) for name in names or found.__all__)


def _hints(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (place, type) for each annotation of a public class, function or alias."""
    names = {public: one for _, public, one in _public()}
    if inspect.isfunction(value):
        yield from ((name, hint) for hint in get_type_hints(value, localns=names).values())
    elif isinstance(value, type):
        hints = get_type_hints(value, localns=names)
        yield from ((name, hint) for field, hint in hints.items() if not field.startswith("_"))
        for one, member in vars(value).items():
            function = member.fget if isinstance(member, property) else member
            function = getattr(function, "__func__", function)
            if inspect.isfunction(function) and (not one.startswith("_") or one == "__init__"):
                found = get_type_hints(function, localns=names)
                yield from ((f"{name}.{one}", hint) for hint in found.values())
    elif get_args(value):
        yield name, value


def _classes(hint: Any, seen: set[int]) -> set[type]:
    """Yield every class that a type refers to, including those within aliases, bounds and forward references."""
    if id(hint) in seen:
        return set()
    seen.add(id(hint))
    if isinstance(hint, list | tuple):
        parts: tuple[Any, ...] = tuple(hint)
    elif isinstance(hint, TypeVar):
        parts = (hint.__bound__, *hint.__constraints__)
    else:
        parts = (get_origin(hint), *get_args(hint))
    found = {hint} if isinstance(hint, type) and not get_args(hint) else set()
    return found.union(*(_classes(part, seen) for part in parts if part is not None))


if __name__ == "__main__":
    GOLDEN.write_text(rendered())
    print(f"wrote {GOLDEN.name}, {len(rendered().splitlines())} lines")
