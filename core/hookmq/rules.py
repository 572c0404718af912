"""Access rules: which of many decides whether a topic may be published to, subscribed to or delivered.

A `Rule` allows or denies actions on a topic filter; `Rules` finds the first in order that applies. What comes of it where
none applies is the caller's affair (every plugin of ours denies).

**PUBLISH, WILL, DELIVER.** A rule applies if its filter matches the topic, the message's QoS is not above `Rule.qos` and
its RETAIN flag is `Rule.retain`, where they are given.

**SUBSCRIBE** asks for every message that the filter could bring, retained or not, up to a QoS.

- An *allow* applies if its filter **contains** the one subscribed to: ``home/+`` never allows ``home/#``. With a `qos` it
  applies to a subscription for more as well, and lowers it: the caller answers ``Allow(max_qos=rule.qos)``. With a
  `retain` condition it never applies, for no subscription keeps to it.
- A *deny* applies if the two **overlap**, whatever its `qos` and `retain`: where ``home/secret`` is denied first,
  ``home/#`` is refused as a whole, since it would bring what is denied.

**Variables** are whole levels of a rule's filter: ``%u`` the user, ``%c`` the client id, ``${NAME}`` a claim. A value is
compared as one level and never read as a filter. A value that is missing or empty, holds ``+``, ``#``, ``/`` or U+0000,
or begins with ``$`` where it would be the first level, is unusable: then an allow does not apply at all, and a deny
applies as if the variable stood for any level. Either way less is allowed, never more.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from hookmq.errors import ConfigError, ProtocolError
from hookmq.topics import SHARE_PREFIX, parse_share, validate_filter
from hookmq.types import Action, ClientInfo

USER: Final = "%u"
CLIENT_ID: Final = "%c"
MAX_LISTED: Final = 1000
"""How many rules `rules_from_lists` takes from one claim or answer, unless told otherwise."""

_LEVEL: Final = re.compile(r"(?:\$\{[^}]{0,256}\}|[^/])*+")
"""One level as written; a claim's name may hold a slash. Bounded and possessive: linear in the filter's length."""
_CLAIM: Final = re.compile(r"\$\{[^{}+#\0]+\}")
_usable: Final = re.compile(r"[^+#/\0]+").fullmatch


@dataclass(frozen=True, slots=True)
class Rule:
    """Allow or deny `actions` on `filter`, a topic filter without ``$share/`` whose levels may be variables.

    `qos` is the highest QoS that the rule speaks of, None for every; `retain` the RETAIN flag, None for either. Of
    several rules the one with the lowest `order` decides, of equals the one given first. `source` says where the rule
    stands and is what is reported: ``acl.yaml:12``, ``claim acl.publish[0]``.
    """

    allow: bool
    filter: str
    actions: frozenset[Action]
    qos: int | None = None
    retain: bool | None = None
    order: int = 0
    source: str = ""


class _Node:
    """One level of the rules' filters. `here` holds the rules that end at this node, `rest` those that end with ``#``
    below it, by rank. `least` is the lowest rank here and below, so that a walk passes by what comes too late anyway.
    `ordered` are the children, the earliest first."""

    __slots__ = ("children", "here", "least", "ordered", "plus", "rest", "variables")

    def __init__(self, least: int) -> None:
        self.children: dict[str, _Node] | None = None
        self.plus: _Node | None = None
        self.variables: dict[str, _Node] | None = None
        self.here: list[_Entry] | None = None
        self.rest: list[_Entry] | None = None
        self.least = least
        self.ordered: list[tuple[int, str, _Node]] | None = None


class _Entry:
    """A rule at its node: when it applies and its rank."""

    __slots__ = ("allow", "qos", "rank", "retain")

    def __init__(self, rank: int, allow: bool, qos: int, retain: bool | None) -> None:
        self.rank = rank
        self.allow = allow
        self.qos = qos
        self.retain = retain


_NOTHING: Final = _Node(1 << 62)
"""The trie of no rules; many small `Rules` share it."""


class Rules:
    """Rules compiled for `decide`: a level of a topic costs a few lookups, however many rules there are.

    Raises ConfigError, with the rule's source, for a filter that MQTT does not know, one behind ``$share/``, a variable
    that is not a whole level, and a QoS other than 0, 1, 2. Immutable: a change of rules is a new object.
    """

    __slots__ = (
        "_allowed",
        "_count",
        "_deliver",
        "_denied",
        "_publish",
        "_will",
        "rules",
        "variables",
    )

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules: tuple[Rule, ...] = tuple(sorted(rules, key=_order))
        """The rules in the order in which they decide."""
        self._count = len(self.rules)
        split = [_split(rule) for rule in self.rules]
        names = {level for levels in split for level in levels if _is_variable(level)}
        self.variables = frozenset(names)
        """The variables that the rules speak of, as they are written: ``%u``, ``${site}``."""
        self._publish = self._messages(Action.PUBLISH, split, ())
        self._will = self._messages(Action.WILL, split, ((Action.PUBLISH, self._publish),))
        self._deliver = self._messages(
            Action.DELIVER, split, ((Action.PUBLISH, self._publish), (Action.WILL, self._will))
        )
        asked = [n for n, rule in enumerate(self.rules) if Action.SUBSCRIBE in rule.actions]
        allowed = [n for n in asked if self.rules[n].allow and self.rules[n].retain is None]
        denied = [n for n in asked if not self.rules[n].allow]
        self._allowed = self._compile(allowed, split, False)
        self._denied = self._compile(denied, split, False)
        _sort(self._denied)

    def __len__(self) -> int:
        return self._count

    def decide(
        self, action: Action, topic: str, qos: int, retain: bool, values: Mapping[str, str]
    ) -> Rule | None:
        """The first rule in order that applies, None where none does.

        `topic` is a valid topic or, for SUBSCRIBE, a valid filter, behind ``$share/NAME/`` or not. `values` are the
        variables' values by what stands in the filter (``%u``, ``%c``, ``${site}``), as `rule_values` makes them. For
        SUBSCRIBE `qos` and `retain` are not looked at. An allow is to be answered with ``Allow(max_qos=rule.qos)``.
        """
        if action is Action.SUBSCRIBE:
            levels = parse_share(topic)[1].split("/")
            open_end = levels[-1] == "#"
            rank = _walk(self._allowed, *_opened(levels), 0, False, values, self._count)
            rank = _overlap(self._denied, levels, open_end, values, rank)
        else:
            levels = topic.split("/")
            root = self._publish
            if action is Action.DELIVER:
                root = self._deliver
            elif action is Action.WILL:
                root = self._will
            rank = _walk(root, levels, False, qos, retain, values, self._count)
        return self.rules[rank] if rank < self._count else None

    def _messages(
        self,
        action: Action,
        split: list[list[str]],
        made: tuple[tuple[Action, _Node], ...],
    ) -> _Node:
        """The trie of an action on messages; most rules say the same of several, and then they share it."""
        for other, root in made:
            if all((action in rule.actions) == (other in rule.actions) for rule in self.rules):
                return root
        ranks = [n for n, rule in enumerate(self.rules) if action in rule.actions]
        return self._compile(ranks, split, True)

    def _compile(self, ranks: list[int], split: list[list[str]], conditions: bool) -> _Node:
        if not ranks:
            return _NOTHING
        root = _Node(self._count)
        for rank in ranks:
            rule = self.rules[rank]
            qos = 2 if rule.qos is None or not conditions else rule.qos
            entry = _Entry(rank, rule.allow, qos, rule.retain if conditions else None)
            _plant(root, split[rank], entry)
        return root


def _order(rule: Rule) -> int:
    return rule.order


# -- compiling


def check_rule(rule: Rule) -> None:
    """Return if `rule` is one that `Rules` takes; otherwise raise its ConfigError."""
    _split(rule)


def _split(rule: Rule) -> list[str]:
    """A rule's levels, after its filter was found good."""
    filter = rule.filter
    if filter.startswith(SHARE_PREFIX):
        raise _wrong(rule, "a rule speaks of the filter behind $share/NAME/, which bears none")
    if rule.qos is not None and rule.qos not in (0, 1, 2):
        raise _wrong(rule, f"qos is {rule.qos!r}: 0, 1 or 2")
    levels = _levels(filter)
    plain = filter
    if "%" in filter or "${" in filter:
        plain = "/".join("v" if _is_variable(level) else level for level in levels)
        if "%u" in plain or "%c" in plain or "${" in plain:
            raise _wrong(rule, "a variable (%u, %c, ${claim}) is a whole level")
    try:
        validate_filter(plain)
    except ProtocolError as error:
        raise _wrong(rule, error.detail) from None
    return levels


def _levels(filter: str) -> list[str]:
    if "${" not in filter:
        return filter.split("/")
    levels: list[str] = []
    end = -1
    while end < len(filter):
        found = _LEVEL.match(filter, end + 1)
        assert found is not None  # it matches the empty string
        levels.append(found.group())
        end = found.end()
    return levels


def _is_variable(level: str) -> bool:
    if level in (USER, CLIENT_ID):
        return True
    return level.startswith("${") and _CLAIM.fullmatch(level) is not None


def _wrong(rule: Rule, message: str) -> ConfigError:
    return ConfigError(f"topic filter {rule.filter[:200]!r}: {message}", source=rule.source)


def _plant(root: _Node, levels: list[str], entry: _Entry) -> None:
    """Put an entry where its filter ends. Entries come in the order of their ranks."""
    node = root
    rest = levels[-1] == "#"
    variable = False
    rank = entry.rank
    node.least = min(node.least, rank)
    for level in levels[:-1] if rest else levels:
        if level == "+":
            if node.plus is None:
                node.plus = _Node(rank)
            node = node.plus
        elif _is_variable(level):
            variable = True
            if node.variables is None:
                node.variables = {}
            node = node.variables.setdefault(level, _Node(rank))
        else:
            if node.children is None:
                node.children = {}
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Node(rank)
            node = child
    leaf = node.rest if rest else node.here
    if leaf is None:
        leaf = []
        if rest:
            node.rest = leaf
        else:
            node.here = leaf
    for other in leaf:
        # What comes after a rule without conditions never decides, but for a deny behind a variable: that allow does
        # not apply where the variable has no usable value.
        whole = other.qos == 2 and other.retain is None
        if whole and (not other.allow or entry.allow or not variable):
            return
    leaf.append(entry)


def _sort(root: _Node) -> None:
    """Fill in `ordered`, for every node."""
    nodes = [root]
    while nodes:
        node = nodes.pop()
        if node.children is not None:
            node.ordered = sorted(
                (child.least, name, child) for name, child in node.children.items()
            )
            nodes.extend(node.children.values())
        if node.plus is not None:
            nodes.append(node.plus)
        if node.variables is not None:
            nodes.extend(node.variables.values())


# -- deciding


def _opened(levels: list[str]) -> tuple[list[str], bool]:
    """A filter's levels as containment sees them, and whether it goes on below them (see `hookmq.topics.contains`)."""
    if levels[-1] != "#":
        return levels, False
    have = levels[:-1]
    if not have or have == [""]:
        have.append("+")
    return have, True


def _pick(leaf: list[_Entry], qos: int, retain: bool, deny_only: bool, best: int) -> int:
    for entry in leaf:
        if entry.rank >= best:
            return best
        if (
            qos <= entry.qos
            and (entry.retain is None or entry.retain == retain)
            and not (deny_only and entry.allow)
        ):
            return entry.rank
    return best


def _walk(
    root: _Node,
    levels: list[str],
    open_end: bool,
    qos: int,
    retain: bool,
    values: Mapping[str, str],
    best: int,
) -> int:
    """The lowest rank below `best` of an entry whose filter contains `levels` (a topic: matches it), else `best`."""
    dollar = levels[0].startswith("$")
    last = len(levels)
    nodes: list[tuple[_Node, bool]] = [(root, False)]
    depth = 0
    while nodes:
        below: list[tuple[_Node, bool]] = []
        wild = depth > 0 or not dollar  # [MQTT-4.7.2-1]: no leading wildcard matches "$..."
        for node, deny_only in nodes:
            if node.least >= best:
                continue
            if node.rest is not None and wild:
                best = _pick(node.rest, qos, retain, deny_only, best)
            if depth == last:
                if node.here is not None and not open_end:
                    best = _pick(node.here, qos, retain, deny_only, best)
                continue
            level = levels[depth]
            if node.children is not None:
                child = node.children.get(level)
                if child is not None:
                    below.append((child, deny_only))
            if node.plus is not None and wild:
                below.append((node.plus, deny_only))
            if node.variables is not None:
                for name, child in node.variables.items():
                    value = _value(values, name, depth)
                    if value is None:
                        below.append((child, True))
                    elif value == level:
                        below.append((child, deny_only))
        nodes = below
        depth += 1
    return best


def _value(values: Mapping[str, str], name: str, depth: int) -> str | None:
    """A variable's value, None if it has none that can be one level here."""
    value = values.get(name)
    if value is None or _usable(value) is None or (not depth and value.startswith("$")):
        return None
    return value


def _overlap(
    root: _Node, levels: list[str], open_end: bool, values: Mapping[str, str], best: int
) -> int:
    """The lowest rank below `best` of an entry whose filter overlaps `levels`, else `best`. Entries bear no conditions:
    the first of a leaf decides."""
    dollar = levels[0].startswith("$")
    last = len(levels) - 1 if open_end else len(levels)
    nodes = [root]
    depth = 0
    while nodes:
        below: list[_Node] = []
        wild = depth > 0 or not dollar
        for node in nodes:
            if node.least >= best:
                continue
            if node.rest is not None and wild:
                best = min(best, node.rest[0].rank)
            if depth == last:
                if open_end:
                    best = _least(node, not depth, best)
                elif node.here is not None:
                    best = min(best, node.here[0].rank)
                continue
            level = levels[depth]
            if level == "+":
                for least, name, child in node.ordered or ():
                    if least >= best:
                        break
                    if depth or not name.startswith("$"):
                        below.append(child)
            elif node.children is not None:
                found = node.children.get(level)
                if found is not None:
                    below.append(found)
            if node.plus is not None and wild:
                below.append(node.plus)
            if node.variables is not None:
                for name, child in node.variables.items():
                    if level == "+":
                        below.append(child)
                        continue
                    value = _value(values, name, depth)
                    if value is None or value == level:
                        below.append(child)
        nodes = below
        depth += 1
    return best


def _least(node: _Node, root: bool, best: int) -> int:
    """The lowest rank at and below a node that a filter's ``#`` stands at."""
    if not root:
        return min(best, node.least)
    for least, name, _ in node.ordered or ():
        if not name.startswith("$"):  # [MQTT-4.7.2-1]
            best = min(best, least)
            break
    if node.plus is not None:
        best = min(best, node.plus.least)
    for child in (node.variables or {}).values():
        best = min(best, child.least)
    return best


# -- values


def rule_values(client: ClientInfo, variables: Iterable[str]) -> dict[str, str]:
    """The values of `variables` (`Rules.variables`) for a client; one without a value is left out.

    ``%u`` is who the client was found to be (`ClientInfo.identity`), or the user name that it gave where nobody found
    out. ``${NAME}`` is the claim of that name; where there is none, the dots of ``${a.b}`` lead into nested claims.
    Strings and integers are values, nothing else is.
    """
    values: dict[str, str] = {}
    for name in variables:
        value: Any
        if name == USER:
            value = client.username if client.identity is None else client.identity
        elif name == CLIENT_ID:
            value = client.client_id
        else:
            value = claim(client.claims, name[2:-1])
        if type(value) is int:
            value = str(value)
        if isinstance(value, str):
            values[name] = value
    return values


def claim(claims: Mapping[str, Any], name: str) -> Any:
    """The claim `name`, or the one that its dots lead to (``realm_access.roles``); None where there is none."""
    found: Any = claims.get(name)
    if found is not None or "." not in name:
        return found
    found = claims
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


# -- rules as tokens and answers carry them

_PUBLISH: Final = frozenset({Action.PUBLISH, Action.WILL})
_SUBSCRIBE: Final = frozenset({Action.SUBSCRIBE, Action.DELIVER})
_ALL: Final = _PUBLISH | _SUBSCRIBE
_LISTS: Final[Mapping[str, frozenset[Action]]] = {
    "publish": _PUBLISH, "pub": _PUBLISH, "subscribe": _SUBSCRIBE, "sub": _SUBSCRIBE, "all": _ALL, "pubsub": _ALL,
}  # fmt: skip


def rules_from_lists(lists: Any, source: str, limit: int = MAX_LISTED) -> list[Rule]:
    """The rules in a token's claim or a service's answer, ready for `Rules`; `source` names it in what is reported.

    Either a mapping of lists of filters, in which ``deny`` comes before all others::

        {"publish": ["a/%u/#", {"topic": "b", "qos": 1, "retain": false}], "subscribe": [...], "all": [...],
         "deny": ["a/secret"]}

    with ``pub``, ``sub`` and ``pubsub`` as other names; ``deny`` may itself be such a mapping. Or a list of rules that
    decide in their order::

        [{"permission": "deny", "action": "publish", "topic": "a/#", "qos": 1, "retain": true}, ...]

    ``publish`` is for wills too, ``subscribe`` for deliveries too. A filter alone may stand for a list of one. Raises
    ConfigError for anything else, an unknown key included, and for more than `limit` rules: who cannot read all of it
    must not act on the rest.
    """
    made: list[Rule] = []

    def add(rule: Rule) -> None:
        if len(made) >= limit:
            raise ConfigError(f"more than {limit} rules", source=source)
        _split(rule)
        made.append(replace(rule, order=len(made)))

    if isinstance(lists, list | tuple):
        for index, item in enumerate(lists):
            add(_listed_rule(item, f"{source}[{index}]"))
        return made
    if not isinstance(lists, Mapping):
        raise ConfigError("neither a mapping of lists nor a list of rules", source=source)
    denied = lists.get("deny")
    if isinstance(denied, Mapping):
        _from_mapping(denied, False, f"{source}.deny", add)
    elif denied is not None:
        _from_list(denied, False, _ALL, f"{source}.deny", add)
    _from_mapping({k: v for k, v in lists.items() if k != "deny"}, True, source, add)
    return made


_Add = Callable[[Rule], None]


def _from_mapping(lists: Mapping[Any, Any], allow: bool, source: str, add: _Add) -> None:
    for key, listed in lists.items():
        actions = _LISTS.get(key) if isinstance(key, str) else None
        if actions is None:
            raise ConfigError(f"unknown key {key!r}", source=source, hint=_KNOWN_LISTS)
        if listed is not None:
            _from_list(listed, allow, actions, f"{source}.{key}", add)


def _from_list(
    listed: Any, allow: bool, actions: frozenset[Action], source: str, add: _Add
) -> None:
    if isinstance(listed, str):
        add(Rule(allow, listed, actions, source=source))
        return
    if not isinstance(listed, list | tuple):
        raise ConfigError("not a list of topic filters", source=source)
    for index, item in enumerate(listed):
        where = f"{source}[{index}]"
        if isinstance(item, str):
            add(Rule(allow, item, actions, source=where))
            continue
        if not isinstance(item, Mapping):
            raise ConfigError("neither a topic filter nor a mapping", source=where)
        add(_conditions(item, allow, actions, where, frozenset({"topic", "qos", "retain"})))


def _listed_rule(item: Any, source: str) -> Rule:
    if not isinstance(item, Mapping):
        raise ConfigError("not a mapping", source=source)
    permission = item.get("permission")
    if permission != "allow" and permission != "deny":
        raise ConfigError(f"permission is {permission!r}: allow or deny", source=source)
    action = item.get("action", "all")
    actions = _LISTS.get(action) if isinstance(action, str) else None
    if actions is None:
        raise ConfigError(f"action is {action!r}", source=source, hint=_KNOWN_LISTS)
    known = frozenset({"permission", "action", "topic", "qos", "retain"})
    return _conditions(item, permission == "allow", actions, source, known)


def _conditions(
    item: Mapping[Any, Any],
    allow: bool,
    actions: frozenset[Action],
    source: str,
    known: frozenset[str],
) -> Rule:
    for key in item:
        if key not in known:
            raise ConfigError(f"unknown key {key!r}", source=source)
    filter, qos, retain = item.get("topic"), item.get("qos"), item.get("retain")
    if not isinstance(filter, str):
        raise ConfigError(f"topic is {filter!r}: a topic filter", source=source)
    if qos is not None and (type(qos) is not int or qos not in (0, 1, 2)):
        raise ConfigError(f"qos is {qos!r}: 0, 1 or 2", source=source)
    if retain is not None and type(retain) is not bool:
        raise ConfigError(f"retain is {retain!r}: true or false", source=source)
    return Rule(allow, filter, actions, qos, retain, source=source)


_KNOWN_LISTS: Final = "known: publish, subscribe, all, deny"

__all__ = ["Rule", "Rules", "check_rule", "claim", "rule_values", "rules_from_lists"]
