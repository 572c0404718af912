"""The YAML format: rules that decide in their order.

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

``topic`` ends a rule and ``rules`` ends the file: so a file that was cut short, which is good YAML more often than not,
never says more than the whole one did.
"""

from collections.abc import Callable
from difflib import get_close_matches
from ipaddress import ip_network
from typing import Final

from hookmq.plugin import Action, ConfigError, Rule
from hookmq.rules import check_rule

from hookmq_acl_file.index import Entry, Index
from hookmq_acl_file.problems import Problems
from hookmq_acl_file.tree import Node, Place, parse, wrong
from hookmq_acl_file.who import CERTIFICATE_FIELDS, EVERYBODY, Network, Who

_READ: Final = frozenset({Action.SUBSCRIBE, Action.DELIVER})
_WRITE: Final = frozenset({Action.PUBLISH, Action.WILL})
ACTIONS: Final = {
    "publish": _WRITE,
    "subscribe": _READ,
    "deliver": frozenset({Action.DELIVER}),
    "will": frozenset({Action.WILL}),
    "all": _READ | _WRITE,
}
"""What each word of the file stands for. Who may subscribe may be sent what comes, and who may publish may leave a
will."""
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
    """The rules in `text`. `source` is the file as errors name it, `name` as rules do (``acl.yaml:12``). Raises a
    ConfigError that holds every mistake."""
    return _Reader(source, name).read(parse(text, source))


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
            raise self._wrong("groups come before rules, which end the file", root.keys["groups"])
        if "rules" not in top:
            raise self._wrong(
                "rules are missing", root.place, "a file that allows nothing: rules: []"
            )
        if "groups" in top:
            self._each_group(top["groups"])
        rules = top["rules"]
        if not isinstance(rules.value, list):
            raise self._wrong("rules are a list", rules.place)
        rules.value.reverse()
        while (
            rules.value
        ):  # taken out one by one: to let go of 100,000 at once takes a third of a second
            try:
                self._rule(rules.value.pop())
            except ConfigError as error:
                self.problems.add(error)

    def _each_group(self, node: Node) -> None:
        if not isinstance(node.value, dict):
            raise self._wrong("groups are a mapping of names to lists of users", node.place)
        for group, users in node.value.items():
            if not isinstance(users.value, list):
                raise self._wrong(f"group {group!r} is a list of users", users.place)
            self.groups[group] = [self._text(user, "a user") for user in users.value]

    def _rule(self, node: Node) -> None:
        rule = self._mapping(node, "a rule", _RULE_KEYS)
        if ("allow" in rule) == ("deny" in rule):
            raise self._wrong("a rule has either allow or deny", node.place)
        allow = "allow" in rule
        words = self._listed(rule["allow" if allow else "deny"], "an action")
        actions: frozenset[Action] = frozenset()
        for word, place in words:
            if word not in ACTIONS:
                raise self._unknown("action", word, tuple(ACTIONS), place)
            actions |= ACTIONS[word]
        asks = Action.SUBSCRIBE in actions
        who = self._who(rule["who"]) if "who" in rule else EVERYBODY
        qos = self._qos(rule["qos"]) if "qos" in rule else None
        if qos is not None and asks and not allow:
            raise self._wrong(
                "qos means nothing where subscribe is denied: every subscription brings QoS 0",
                node.keys["qos"],
            )
        retain = self._flag(rule["retain"]) if "retain" in rule else None
        if retain is not None and asks:
            hint = "name publish, will or deliver"
            raise self._wrong("retain means nothing to subscribe", node.keys["retain"], hint)
        if "topic" not in rule:
            raise self._wrong("topic is missing", node.place, 'for every topic: topic: "#"')
        if next(reversed(rule)) != "topic":
            raise self._wrong("topic ends a rule", node.keys["topic"])
        source = f"{self.name}:{node.place[0]}"
        for filter, place in self._listed(rule["topic"], "a topic filter"):
            made = Rule(allow, filter, actions, qos, retain, len(self.entries), source)
            try:
                check_rule(made)
            except ConfigError as error:
                raise self._wrong(error.message, place) from None
            self.entries.append(Entry(made, who))
        self.delivers = self.delivers or any(word == "deliver" for word, _ in words)

    # -- who

    def _who(self, node: Node) -> Who:
        given = self._mapping(node, "who", _WHO_KEYS)
        if not given:
            raise self._wrong("who names nobody", node.place, "leave it out for everybody")
        groups = None
        if "group" in given:
            names = self._listed(given["group"], "a group")
            for name, place in names:
                if name not in self.groups:
                    raise self._unknown("group", name, tuple(self.groups), place)
            groups = frozenset(name for name, _ in names)
        who = Who(
            users=self._names(given, "user"),
            anonymous=self._flag(given["anonymous"]) if "anonymous" in given else None,
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
                # Taken for a name it would be nobody's, and who is to be denied would not be.
                hint = f"without {key} it is everybody"
                raise self._wrong(f"{name[:100]!r}: * stands for nothing in a {key}", place, hint)
        return frozenset(name for name, _ in names)

    def _pairs(
        self, node: Node, known: tuple[str, ...] | None
    ) -> tuple[tuple[str, frozenset[str]], ...]:
        what = "a claim" if known is None else "a certificate's field"
        if known is not None:
            given = self._mapping(node, "certificate", known)
        elif isinstance(node.value, dict):
            given = node.value
        else:
            raise self._wrong("claim is a mapping of names to values", node.place)
        if not given:
            raise self._wrong(f"{what} is missing", node.place)
        pairs = []
        for name, listed in given.items():
            values = frozenset(text for text, _ in self._listed(listed, "a value"))
            if name == "fingerprint" and known is not None:
                values = frozenset(value.replace(":", "").lower() for value in values)
                if any(len(v) != 64 or set(v) - set("0123456789abcdef") for v in values):
                    raise self._wrong("a fingerprint is SHA-256 in hex", listed.place)
            pairs.append((name, values))
        return tuple(sorted(pairs))

    def _network(self, text: str, place: Place) -> Network:
        try:
            return ip_network(text)
        except ValueError:
            pass
        try:
            meant = ip_network(text, strict=False)
        except ValueError:
            raise self._wrong(f"{text!r} is no IP address or network", place) from None
        hint = f"did you mean {meant}?"
        raise self._wrong(f"{text!r} has bits beyond its prefix", place, hint) from None

    # -- values

    def _mapping(self, node: Node, what: str, known: tuple[str, ...]) -> dict[str, Node]:
        if not isinstance(node.value, dict):
            raise self._wrong(f"{what} is a mapping of {', '.join(known)}", node.place)
        for key in node.value:
            if key not in known:
                raise self._unknown("key", key, known, node.keys[key])
        return node.value

    def _listed(self, node: Node, what: str) -> list[tuple[str, Place]]:
        """One text, or a list of some."""
        if isinstance(node.value, str):
            return [(self._text(node, what), node.place)]
        if not isinstance(node.value, list) or not node.value:
            raise self._wrong(f"{what} is missing", node.place)
        return [(self._text(one, what), one.place) for one in node.value]

    def _text(self, node: Node, what: str) -> str:
        if not isinstance(node.value, str):
            raise self._wrong(f"{what} is a text", node.place)
        if node.plain and node.value in ("", "~", "null", "Null", "NULL"):
            raise self._wrong(f"{what} is missing", node.place)
        return node.value

    def _qos(self, node: Node) -> int:
        return int(self._word(node, "qos", ("0", "1", "2").__contains__, "0, 1 or 2"))

    def _flag(self, node: Node) -> bool:
        known = ("true", "false", "True", "False", "TRUE", "FALSE").__contains__
        return self._word(node, "it", known, "true or false").lower() == "true"

    def _word(self, node: Node, what: str, known: Callable[[str], bool], wanted: str) -> str:
        if not isinstance(node.value, str) or not node.plain or not known(node.value):
            shown = f"{node.value[:50]!r}" if isinstance(node.value, str) else "not a word"
            raise self._wrong(f"{what} is {shown}: {wanted}", node.place)
        return node.value

    def _unknown(self, what: str, word: str, known: tuple[str, ...], place: Place) -> ConfigError:
        close = get_close_matches(word, known, 1, 0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known[:20])}"
        return self._wrong(f"unknown {what} {word[:100]!r}", place, hint)

    def _wrong(self, message: str, place: Place, hint: str = "") -> ConfigError:
        return wrong(message, self.source, place, hint)
