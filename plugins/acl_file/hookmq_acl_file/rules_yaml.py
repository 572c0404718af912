"""Read rules in the YAML format. The first rule that applies decides.

    groups:
      operators: [ann, bob]
    rules:
      - allow: [publish, subscribe]
        who: {group: operators}
        topic: [plant/#, status/+]
      - allow: publish
        qos: 1
        retain: false
        topic: devices/%c/#

``topic`` must be the last key of a rule and ``rules`` the last key of the file. A truncated file is often valid YAML.
With this order, it never allows more than the complete file.
"""

from collections.abc import Callable
from difflib import get_close_matches
from ipaddress import ip_network
from typing import Final

from hookmq.plugin import Action, ConfigError
from hookmq_toolkit.rules import ACTIONS, Rule, check_rule, condition_problem
from hookmq_toolkit.yaml_places import Node, parse

from hookmq_acl_file.index import Entry, Index
from hookmq_acl_file.problems import Problems
from hookmq_acl_file.who import CERTIFICATE_FIELDS, EVERYBODY, Network, Who

_MAX_NODES: Final = 8_000_000
"""Maximum number of YAML nodes, more than a rule file of `file.MAX_BYTES` can need."""
_RULE_KEYS: Final = ("allow", "deny", "who", "qos", "retain", "topic")
_WHO_KEYS: Final = (
    "user",
    "client",
    "group",
    "claim",
    "certificate",
    "ip",
    "listener",
    "anonymous",
)


def read(text: str, source: str, name: str) -> Index:
    """Return the rules in `text`.

    `source` is the file name to use in errors, and `name` the file name in rule sources such as ``acl.yaml:12``. Raises
    FileError with all mistakes.
    """
    root = parse(text, source, max_nodes=_MAX_NODES)
    if root is None:
        raise ConfigError("the file has no rules", source=source, line=1, column=1)
    return _Reader(source, name).read(root)


class _Reader:
    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name
        self.problems = Problems()
        self.groups: dict[str, list[str]] = {}
        self.entries: list[Entry] = []
        self.delivers = False
        self.people: dict[Who, Who] = {}

    def read(self, root: Node) -> Index:
        try:
            self._file(root)
        except ConfigError as error:
            self.problems.add(error)
        self.problems.check()
        return Index(self.entries, self.groups, self.delivers)

    def _file(self, root: Node) -> None:
        top = self._mapping(root, "the file", ("groups", "rules"))
        if list(top) == ["rules", "groups"]:
            raise self._wrong("groups must come before rules", top["groups"].key or root)
        if "rules" not in top:
            raise self._wrong("the key rules is missing", root, "to allow nothing: rules: []")
        if "groups" in top:
            self._each_group(top["groups"])
        rules = top["rules"]
        if rules.items is None:
            raise self._wrong("rules must be a list", rules)
        rules.items.reverse()
        # Remove the nodes one by one. Freeing 100,000 nodes at once would block the interpreter for a third of a second.
        while rules.items:
            try:
                self._rule(rules.items.pop())
            except ConfigError as error:
                self.problems.add(error)

    def _each_group(self, node: Node) -> None:
        if node.mapping is None:
            raise self._wrong("groups must be a mapping of names to lists of users", node)
        for group, users in node.mapping.items():
            if users.items is None:
                raise self._wrong(f"group {group!r} must be a list of users", users)
            self.groups[group] = [self._text(user, "a user") for user in users.items]

    def _rule(self, node: Node) -> None:
        rule = self._mapping(node, "a rule", _RULE_KEYS)
        if ("allow" in rule) == ("deny" in rule):
            raise self._wrong("a rule must have either allow or deny", node)
        allow = "allow" in rule
        words, actions = self._actions(rule["allow" if allow else "deny"])
        who = self._who(rule["who"]) if "who" in rule else EVERYBODY
        qos = self._qos(rule["qos"]) if "qos" in rule else None
        retain = self._flag(rule["retain"], "retain") if "retain" in rule else None
        problem = condition_problem(allow, actions, qos, retain)
        if problem is not None:
            key, why, hint = problem
            raise self._wrong(why, rule[key].key or node, hint)
        if "topic" not in rule:
            raise self._wrong("the key topic is missing", node, 'for every topic: topic: "#"')
        if next(reversed(rule)) != "topic":
            raise self._wrong("topic must be the last key of a rule", rule["topic"].key or node)
        source = f"{self.name}:{node.line}"
        for filter, place in self._listed(rule["topic"], "a topic filter"):
            made = Rule(allow, filter, actions, qos, retain, len(self.entries), source)
            try:
                check_rule(made)
            except ConfigError as error:
                raise self._wrong(error.message, place) from None
            self.entries.append(Entry(made, who))
        self.delivers = self.delivers or "deliver" in words

    def _actions(self, node: Node) -> tuple[set[str], frozenset[Action]]:
        words = set()
        actions: frozenset[Action] = frozenset()
        for word, place in self._listed(node, "an action"):
            if word not in ACTIONS:
                raise self._unknown("action", word, tuple(ACTIONS), place)
            words.add(word)
            actions |= ACTIONS[word]
        return words, actions

    # -- who

    def _who(self, node: Node) -> Who:
        given = self._mapping(node, "who", _WHO_KEYS)
        if not given:
            raise self._wrong("who has no condition", node, "remove who to apply to all clients")
        groups = None
        if "group" in given:
            names = self._listed(given["group"], "a group")
            for name, place in names:
                if name not in self.groups:
                    raise self._unknown("group", name, tuple(self.groups), place)
            groups = frozenset(name for name, _ in names)
        who = Who(
            users=self._names(given, "user"),
            anonymous=self._flag(given["anonymous"], "anonymous") if "anonymous" in given else None,
            clients=self._names(given, "client"),
            groups=groups,
            claims=self._pairs(given["claim"], None) if "claim" in given else (),
            certificate=self._pairs(given["certificate"], CERTIFICATE_FIELDS)
            if "certificate" in given
            else (),
            networks=tuple(self._network(*one) for one in self._listed(given["ip"], "a network"))
            if "ip" in given
            else None,
            listeners=self._names(given, "listener"),
        )
        return self.people.setdefault(who, who)

    def _names(self, given: dict[str, Node], key: str) -> frozenset[str] | None:
        if key not in given:
            return None
        names = self._listed(given[key], f"a {key}")
        for name, place in names:
            if "*" in name:
                # Taken literally, the name would match no client, and a rule that denies would not apply.
                hint = f"remove {key} to apply to all"
                raise self._wrong(f"{name[:100]!r}: * is not a wildcard in {key}", place, hint)
        return frozenset(name for name, _ in names)

    def _pairs(
        self, node: Node, known: tuple[str, ...] | None
    ) -> tuple[tuple[str, frozenset[str]], ...]:
        what = "a claim" if known is None else "a certificate field"
        if known is not None:
            given = self._mapping(node, "certificate", known)
        elif node.mapping is not None:
            given = node.mapping
        else:
            raise self._wrong("claim must be a mapping of names to values", node)
        if not given:
            raise self._wrong(f"{what} is missing", node)
        pairs = []
        for name, listed in given.items():
            values = frozenset(text for text, _ in self._listed(listed, "a value"))
            if name == "fingerprint" and known is not None:
                values = frozenset(value.replace(":", "").lower() for value in values)
                if any(len(v) != 64 or set(v) - set("0123456789abcdef") for v in values):
                    raise self._wrong("fingerprint must be SHA-256 in hex: 64 digits", listed)
            pairs.append((name, values))
        return tuple(sorted(pairs))

    def _network(self, text: str, place: Node) -> Network:
        try:
            return ip_network(text)
        except ValueError:
            pass
        try:
            meant = ip_network(text, strict=False)
        except ValueError:
            raise self._wrong(f"{text!r} is not an IP address or network", place) from None
        hint = f"did you mean {meant}?"
        raise self._wrong(f"{text!r} has bits set after its prefix", place, hint) from None

    # -- values

    def _mapping(self, node: Node, what: str, known: tuple[str, ...]) -> dict[str, Node]:
        if node.mapping is None:
            raise self._wrong(f"{what} must be a mapping with the keys {', '.join(known)}", node)
        for key, value in node.mapping.items():
            if key not in known:
                raise self._unknown("key", key, known, value.key or node)
        return node.mapping

    def _listed(self, node: Node, what: str) -> list[tuple[str, Node]]:
        """Return the strings in a list or a single scalar, each with its node."""
        if node.text is not None:
            return [(self._text(node, what), node)]
        if not node.items:
            raise self._wrong(f"{what} is missing", node)
        return [(self._text(one, what), one) for one in node.items]

    def _text(self, node: Node, what: str) -> str:
        if node.text is None:
            raise self._wrong(f"{what} must be text", node)
        if node.plain and node.text in ("", "~", "null", "Null", "NULL"):
            raise self._wrong(f"{what} is missing", node)
        return node.text

    def _qos(self, node: Node) -> int:
        return int(self._word(node, "qos", ("0", "1", "2").__contains__, "0, 1 or 2"))

    def _flag(self, node: Node, what: str) -> bool:
        known = ("true", "false", "True", "False", "TRUE", "FALSE").__contains__
        return self._word(node, what, known, "true or false").lower() == "true"

    def _word(self, node: Node, what: str, known: Callable[[str], bool], wanted: str) -> str:
        if node.text is None or not node.plain or not known(node.text):
            shown = f"{node.text[:50]!r}" if node.text is not None else "not a scalar"
            raise self._wrong(f"{what} is {shown}; expected {wanted}", node)
        return node.text

    def _unknown(self, what: str, word: str, known: tuple[str, ...], place: Node) -> ConfigError:
        close = get_close_matches(word, known, 1, 0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known[:20])}"
        return self._wrong(f"unknown {what} {word[:100]!r}", place, hint)

    def _wrong(self, message: str, place: Node, hint: str = "") -> ConfigError:
        return place.error(message, self.source, hint)
