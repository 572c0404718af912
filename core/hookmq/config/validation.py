"""Check that the values of a configuration fit together. Record each mistake with its location.

The checks read the document, not the bound `Config`. They therefore run even if the document has other mistakes, and one
run shows all of them. Values of the wrong type are skipped, since the binder reports them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from hookmq.config.binding import found as described
from hookmq.config.diagnostics import ConfigProblems, KeyPath, nearest
from hookmq.config.yaml_document import YamlNode
from hookmq.hooks.specs import SPECS
from hookmq.mqtt.errors import HookMQError
from hookmq.mqtt.topics import parse_share, validate_filter, validate_topic
from hookmq.server.addresses import EVERY, parse_address, parse_bind
from hookmq.server.settings import TYPES, ListenerSettings, takes

_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_DEFAULT: Final = ListenerSettings()


def check(root: YamlNode, problems: ConfigProblems) -> None:
    """Record every conflict in the document `root`."""
    _Checker(root, problems).check()


def unknown_type(kind: str, known: Sequence[str], node: YamlNode | None = None) -> tuple[str, str]:
    """Return the error message and hint for a listener whose type is not in `known`. `node` is the value's node."""
    if node is not None and node.secret:
        return f"expected one of {', '.join(known)}, found {described(node)}", ""
    hint = nearest(kind, list(known))
    message = f"expected one of {', '.join(known)}, found the text {kind!r}"
    return message, hint if hint.startswith("did") else ""


def _text(node: YamlNode, key: str, default: str | None = None) -> str | None:
    """Return the text at `key`: `default` if the key is missing, or None if its value is not text."""
    child = node.value.get(key)
    if child is None:
        return default
    value = child.value if child.text is None else child.text
    return value if isinstance(value, str) else None


def _quoted(node: YamlNode, text: str) -> str:
    """Return `text`, the value of `node`, in quotes for a message. A secret is only described."""
    return f"({described(node)})" if node.secret else repr(text)


def _overlap(one: str, other: str) -> bool:
    """Return whether sockets bound to the two hosts on the same port would conflict."""
    if one == other or EVERY in (one, other):
        return True
    left = parse_address("127.0.0.1" if one == "localhost" else one)
    right = parse_address("127.0.0.1" if other == "localhost" else other)
    if left is None or right is None or left.version != right.version:
        return False
    return left == right or left.is_unspecified or right.is_unspecified


class _Checker:
    def __init__(self, root: YamlNode, problems: ConfigProblems) -> None:
        self._root = root
        self._add = problems.add
        self._listeners: dict[str, YamlNode] = {}
        self._plugins: dict[str, YamlNode] = {}
        self._binds: list[tuple[str, str, int, YamlNode]] = []

    def check(self) -> None:
        found = self._root.value.get("listeners")
        if found is not None and found.value in ([], None):
            hint = 'such as {name: tcp, bind: "127.0.0.1:1883"}'
            self._add(found.place, ("listeners",), "expected at least one listener", hint)
        for item, path in self._items("listeners"):
            self._listener(item, path)
        for item, path in self._items("plugins"):
            self._plugin(item, path)
        broker = self._root.value.get("broker")
        if broker is not None and isinstance(broker.value, dict):
            key = "response_information"
            if any(character in (_text(broker, key) or "") for character in "+#\0"):
                message = "expected the start of a topic, without + and #"
                self._add(broker.value[key].place, ("broker", key), message)

    def _items(self, key: str) -> Iterator[tuple[YamlNode, KeyPath]]:
        found = self._root.value.get(key)
        if found is not None and isinstance(found.value, list):
            for index, item in enumerate(found.value):
                if isinstance(item.value, dict):
                    yield item, (key, index)

    def _unique(
        self, item: YamlNode, path: KeyPath, key: str, name: str, seen: dict[str, YamlNode]
    ) -> None:
        node = item.at((key,))
        what = "plugin" if seen is self._plugins else "listener"
        if not _NAME.fullmatch(name):
            shown = _quoted(node, name)
            message = f"the name {shown} of a {what} may contain only letters, digits and _ . -"
            self._add(node.place, (*path, key), message)
        if name in seen:
            hint = f"the first is at {seen[name].place.brief}"
            message = f"two {what}s have the name {_quoted(node, name)}"
            self._add(node.place, (*path, key), message, hint)
        else:
            seen[name] = node

    def _listener(self, item: YamlNode, path: KeyPath) -> None:
        name = _text(item, "name", _DEFAULT.name)
        if name is not None:
            self._unique(item, path, "name", name, self._listeners)
        kind = _text(item, "type", _DEFAULT.type)
        bind = _text(item, "bind", _DEFAULT.bind)
        if kind is not None and bind is not None and kind in TYPES:
            self._bind(item, path, kind, bind)
        if kind is not None:
            self._type(item, path, kind)
        mount = _text(item, "mount_point", "")
        if mount:
            self._mount_point(item.value["mount_point"], (*path, "mount_point"), mount)

    def _bind(self, item: YamlNode, path: KeyPath, kind: str, bind: str) -> None:
        node = item.at(("bind",))
        family, host, port = "unix", bind, 1
        if kind != "unix":
            try:
                family, (host, port) = "tcp", parse_bind(bind)
            except ValueError:
                return  # ListenerSettings reports it
        for other_family, other_host, other_port, other in self._binds:
            if (family, port) == (other_family, other_port) and port and _overlap(host, other_host):
                hint = f"the other is at {other.place.brief}"
                shown = _quoted(node, bind) if node.secret or other.secret else bind
                self._add(node.place, (*path, "bind"), f"another listener uses {shown}", hint)
                return
        self._binds.append((family, host, port, node))

    def _type(self, item: YamlNode, path: KeyPath, kind: str) -> None:
        """Record an unknown type, and sections that belong to other types."""
        if kind not in TYPES:
            # a plugin may add the type; if there are plugins, leave the check to `check_types`
            if next(self._items("plugins"), None) is None:
                node = item.at(("type",))
                message, hint = unknown_type(kind, TYPES, node)
                self._add(node.place, (*path, "type"), message, hint)
            return
        secure = kind in ("tls", "wss", "https")
        for key, what, hint in (
            ("websocket", "does not use WebSocket", "type: wss" if secure else "type: ws"),
            ("http", "does not serve HTTP", "type: https" if secure else "type: http"),
            ("settings", "is not a plugin's", ""),
        ):
            if key in item.value and not takes(kind, key):
                place = item.keys.get(key, item.place)
                self._add(place, (*path, key), f"a listener of type {kind} {what}", hint)

    def _mount_point(self, node: YamlNode, path: KeyPath, mount: str) -> None:
        hint = ""
        try:
            validate_topic(mount)
        except HookMQError as error:
            message = getattr(error, "detail", str(error))
        else:
            if mount.endswith("/"):
                return
            # Without the slash, clients mounted at `a` could reach topics below another mount point, `ab/`.
            message = f"expected a mount point that ends with '/', found {_quoted(node, mount)}"
            hint = "" if node.secret else f"did you mean {mount + '/'!r}?"
        self._add(node.place, path, message, hint)

    def _plugin(self, item: YamlNode, path: KeyPath) -> None:
        use = _text(item, "use", "")
        if use == "":
            hint = "`hookmq plugins --installed` lists all plugins"
            self._add(item.place, (*path, "use"), "this key is missing", hint)
            return
        identifier = _text(item, "id", "") or use
        if identifier is not None:
            key = "id" if "id" in item.value else "use"
            self._unique(item, path, key, identifier, self._plugins)
        names = item.value.get("listeners")
        if names is not None and isinstance(names.value, list):
            for position, name in enumerate(names.value):
                if isinstance(name.value, str) and name.value not in self._listeners:
                    hint = "" if name.secret else nearest(name.value, self._known())
                    message = f"there is no listener {_quoted(name, name.value)}"
                    self._add(name.place, (*path, "listeners", position), message, hint)
        self._filters(item, path)
        hooks = item.value.get("hooks")
        if hooks is not None and isinstance(hooks.value, dict):
            for hook, options in hooks.value.items():
                at = (*path, "hooks", hook)
                if hook not in SPECS:
                    place = hooks.keys.get(hook, hooks.place)
                    self._add(place, at, "there is no such hook", nearest(hook, list(SPECS)))
                elif isinstance(options.value, Mapping):
                    self._filters(options, at)

    def _known(self) -> list[str]:
        return [name for name, node in self._listeners.items() if not node.secret]

    def _filters(self, item: YamlNode, path: KeyPath) -> None:
        filters = item.value.get("filters")
        if filters is None or not isinstance(filters.value, list):
            return
        for position, filter in enumerate(filters.value):
            if not isinstance(filter.value, str):
                continue
            try:
                validate_filter(filter.value)
                shared = parse_share(filter.value)[0] is not None
                message = "$share is not allowed in the filters of a plugin" if shared else ""
            except HookMQError as error:
                message = getattr(error, "detail", str(error))
            if message:
                self._add(filter.place, (*path, "filters", position), message)
