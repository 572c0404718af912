"""What must hold between the values of a configuration, each found fault at its place.

The checks read the document and not the bound `Config`, so that they also run where something else is wrong: one run
shows all mistakes. A value of the wrong type is skipped here, the binder told it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from hookmq.config.document import Node
from hookmq.config.problems import Path, Problems, nearest
from hookmq.errors import HookMQError
from hookmq.hooks.specs import SPECS
from hookmq.server.addresses import EVERY, parse_address, parse_bind
from hookmq.server.settings import TYPES, ListenerSettings, takes
from hookmq.topics import parse_share, validate_filter, validate_topic

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_DEFAULT: Final = ListenerSettings()


def check(root: Node, problems: Problems) -> None:
    """Note every conflict in the document `root`."""
    names = _listeners(root, problems)
    _plugins(root, names, problems)
    response = _text(root, ("broker", "response_information"))
    if response is not None and any(character in response for character in "+#\0"):
        path = ("broker", "response_information")
        problems.add(root.at(path).place, path, "expected a topic's beginning, without + and #")


def _items(root: Node, key: str) -> Iterator[tuple[int, Node]]:
    found = root.value.get(key)
    if found is not None and isinstance(found.value, list):
        for index, item in enumerate(found.value):
            if isinstance(item.value, dict):
                yield index, item


def _text(node: Node, path: Path, default: str | None = None) -> str | None:
    """The text at `path`; `default` where there is none, None where something else stands."""
    for part in path:
        if not isinstance(node.value, dict):
            return None
        child = node.value.get(part)
        if child is None:
            return default
        node = child
    value = node.text if node.text is not None else node.value
    return value if isinstance(value, str) else None


def _listeners(root: Node, problems: Problems) -> list[str]:
    found = root.value.get("listeners")
    if found is not None and found.value in ([], None):
        message = "expected at least one listener"
        problems.add(
            found.place, ("listeners",), message, 'such as {name: tcp, bind: "127.0.0.1:1883"}'
        )
    seen: dict[str, Node] = {}
    binds: list[tuple[str, str, int, Node]] = []
    for index, item in _items(root, "listeners"):
        path: Path = ("listeners", index)
        name = _text(item, ("name",), _DEFAULT.name)
        if name is not None:
            _unique(item, (*path, "name"), name, seen, "listener", problems)
        kind = _text(item, ("type",), _DEFAULT.type)
        bind = _text(item, ("bind",), _DEFAULT.bind)
        if kind is not None and bind is not None and kind in TYPES:
            _bind(item, path, kind, bind, binds, problems)
        _type(item, path, kind, _items_given(root, "plugins"), problems)
        _topics(item, path, problems)
    return list(seen)


def _list(node: Node | None) -> list[Node]:
    return node.value if node is not None and isinstance(node.value, list) else []


def _unique(
    item: Node, path: Path, name: str, seen: dict[str, Node], what: str, problems: Problems
) -> None:
    node = item.at((path[-1],))
    if not _NAME.fullmatch(name):
        message = f"the name {name!r} of a {what} may hold letters, digits and _ . -"
        problems.add(node.place, path, message)
    if name in seen:
        hint = f"first in {seen[name].place.brief}"
        problems.add(node.place, path, f"a second {what} is called {name!r}", hint)
    else:
        seen[name] = node


def _bind(
    item: Node,
    path: Path,
    kind: str,
    bind: str,
    binds: list[tuple[str, str, int, Node]],
    problems: Problems,
) -> None:
    node = item.at(("bind",))
    path = (*path, "bind")
    if kind == "unix":
        family, host, port = "unix", bind, 1
    else:
        try:
            host, port = parse_bind(bind)
        except ValueError:
            return  # told where it is bound
        family = "tcp"
    for other_family, other_host, other_port, other in binds:
        if family == other_family and port and port == other_port and _overlap(host, other_host):
            hint = f"the other is in {other.place.brief}"
            problems.add(node.place, path, f"{bind} is already another listener's", hint)
            return
    binds.append((family, host, port, node))


def _overlap(one: str, other: str) -> bool:
    """Whether sockets bound to both hosts at one port would meet."""
    if one == other or EVERY in (one, other):
        return True
    left = parse_address("127.0.0.1" if one == "localhost" else one)
    right = parse_address("127.0.0.1" if other == "localhost" else other)
    if left is None or right is None or left.version != right.version:
        return False
    return left == right or left.is_unspecified or right.is_unspecified


def _type(item: Node, path: Path, kind: str | None, plugins: bool, problems: Problems) -> None:
    """A type that nobody can know, and sections that are for other types."""
    if kind is None:
        return
    if kind not in TYPES:
        if not plugins:
            message, hint = unknown_type(kind, TYPES)
            problems.add(item.at(("type",)).place, (*path, "type"), message, hint)
        return  # perhaps a plugin's; told when the plugins are loaded
    secure = kind in ("tls", "wss", "https")
    for key, what, better in (
        ("websocket", "is no WebSocket", "type: wss" if secure else "type: ws"),
        ("http", "does not serve HTTP", "type: https" if secure else "type: http"),
        ("settings", "is not a plugin's", ""),
    ):
        if key in item.value and not takes(kind, key):
            place = item.keys.get(key, item.place)
            message = f"a listener of type {kind} {what}"
            problems.add(place, (*path, key), message, better)


def unknown_type(kind: str, known: Sequence[str]) -> tuple[str, str]:
    """What is said of a listener of a type that is not among `known`, and a hint."""
    hint = nearest(kind, list(known))
    message = f"expected one of {', '.join(known)}, found the text {kind!r}"
    return message, hint if hint.startswith("did") else ""


def _items_given(root: Node, key: str) -> bool:
    return next(_items(root, key), None) is not None


def _topics(item: Node, path: Path, problems: Problems) -> None:
    mount = _text(item, ("mount_point",), "")
    if mount:
        try:
            validate_topic(mount)
        except HookMQError as error:
            why = getattr(error, "detail", str(error))
            problems.add(item.at(("mount_point",)).place, (*path, "mount_point"), why)
            return
        if not mount.endswith("/"):
            # Without it the clients of `a` could read and write the topics of another mount point, `ab/`.
            why = f"expected a mount point that ends with '/', found {mount!r}"
            place = item.at(("mount_point",)).place
            problems.add(place, (*path, "mount_point"), why, f"did you mean {mount + '/'!r}?")


def _plugins(root: Node, listeners: list[str], problems: Problems) -> None:
    seen: dict[str, Node] = {}
    for index, item in _items(root, "plugins"):
        path: Path = ("plugins", index)
        use = _text(item, ("use",), "")
        if use == "":
            hint = "`hookmq plugins --installed` lists what there is"
            problems.add(item.place, (*path, "use"), "this key is missing", hint)
            continue
        identifier = _text(item, ("id",), "") or use
        if identifier is not None:
            key = "id" if "id" in item.value else "use"
            _unique(item, (*path, key), identifier, seen, "plugin", problems)
        _scope(item, path, listeners, problems)
        hooks = item.value.get("hooks")
        if hooks is not None and isinstance(hooks.value, dict):
            _hooks(hooks, (*path, "hooks"), problems)


def _scope(item: Node, path: Path, listeners: list[str], problems: Problems) -> None:
    for position, name in enumerate(_list(item.value.get("listeners"))):
        if isinstance(name.value, str) and name.value not in listeners:
            at = (*path, "listeners", position)
            problems.add(
                name.place,
                at,
                f"there is no listener {name.value!r}",
                nearest(name.value, listeners),
            )
    _filters(item.value.get("filters"), (*path, "filters"), problems)


def _filters(node: Node | None, path: Path, problems: Problems) -> None:
    for position, filter in enumerate(_list(node)):
        if isinstance(filter.value, str):
            try:
                validate_filter(filter.value)
                if parse_share(filter.value)[0] is not None:
                    problems.add(
                        filter.place, (*path, position), "a plugin is not narrowed by $share"
                    )
            except HookMQError as error:
                problems.add(filter.place, (*path, position), getattr(error, "detail", str(error)))


def _hooks(hooks: Node, path: Path, problems: Problems) -> None:
    for name, options in hooks.value.items():
        place = hooks.keys.get(name, hooks.place)
        if name not in SPECS:
            problems.add(place, (*path, name), "there is no such hook", nearest(name, list(SPECS)))
        elif isinstance(options.value, Mapping):
            values: Mapping[str, Any] = options.value
            _filters(values.get("filters"), (*path, name, "filters"), problems)
