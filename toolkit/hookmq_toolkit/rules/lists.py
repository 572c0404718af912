"""Read rules from token claims and service responses."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from hookmq.plugin import Action, ConfigError

from hookmq_toolkit.rules.rule import Rule, check_rule

MAX_LISTED: Final = 1000
"""Maximum number of rules that `rules_from_lists` accepts by default."""
_PUBLISH: Final = frozenset({Action.PUBLISH, Action.WILL})
_SUBSCRIBE: Final = frozenset({Action.SUBSCRIBE, Action.DELIVER})
_ALL: Final = _PUBLISH | _SUBSCRIBE
_LISTS: Final[Mapping[str, frozenset[Action]]] = {
    "publish": _PUBLISH, "pub": _PUBLISH, "subscribe": _SUBSCRIBE, "sub": _SUBSCRIBE, "all": _ALL, "pubsub": _ALL,
}  # fmt: skip


def rules_from_lists(lists: Any, source: str, limit: int = MAX_LISTED) -> list[Rule]:
    """Return the rules in a token claim or service response. `source` names the origin in errors and in the rules.

    `lists` is either a mapping from actions to filters, with ``deny`` tried first::

        {"publish": ["a/%u/#", {"topic": "b", "qos": 1, "retain": false}], "subscribe": [...], "all": [...],
         "deny": ["a/secret"]}

    ``pub``, ``sub`` and ``pubsub`` are accepted too, and ``deny`` may itself be such a mapping. Or `lists` is a list of
    rules, which are tried in order::

        [{"permission": "deny", "action": "publish", "topic": "a/#", "qos": 1, "retain": true}, ...]

    ``publish`` includes wills, and ``subscribe`` includes deliveries. A single filter need not be in a list. Raises
    ConfigError for anything else, including unknown keys and more than `limit` rules. The caller must then deny,
    because it cannot know what the remaining rules would have denied.
    """
    made: list[Rule] = []

    def add(rule: Rule) -> None:
        if len(made) >= limit:
            raise ConfigError(f"more than {limit} rules", source=source)
        check_rule(rule)
        made.append(replace(rule, order=len(made)))

    if isinstance(lists, list | tuple):
        for index, item in enumerate(lists):
            add(_listed_rule(item, f"{source}[{index}]"))
        return made
    if not isinstance(lists, Mapping):
        raise ConfigError("must be a mapping of lists or a list of rules", source=source)
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
        raise ConfigError("must be a list of topic filters", source=source)
    for index, item in enumerate(listed):
        where = f"{source}[{index}]"
        if isinstance(item, str):
            add(Rule(allow, item, actions, source=where))
            continue
        if not isinstance(item, Mapping):
            raise ConfigError("must be a topic filter or a mapping", source=where)
        add(_conditions(item, allow, actions, where, frozenset({"topic", "qos", "retain"})))


def _listed_rule(item: Any, source: str) -> Rule:
    if not isinstance(item, Mapping):
        raise ConfigError("must be a mapping", source=source)
    permission = item.get("permission")
    if permission != "allow" and permission != "deny":
        raise ConfigError(f"permission is {permission!r}; expected allow or deny", source=source)
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
        raise ConfigError(f"topic is {filter!r}; expected a topic filter", source=source)
    if qos is not None and (type(qos) is not int or qos not in (0, 1, 2)):
        raise ConfigError(f"qos is {qos!r}; expected 0, 1 or 2", source=source)
    if retain is not None and type(retain) is not bool:
        raise ConfigError(f"retain is {retain!r}; expected true or false", source=source)
    return Rule(allow, filter, actions, qos, retain, source=source)


_KNOWN_LISTS: Final = "known: publish, subscribe, all, deny"
