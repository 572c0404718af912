"""Index rules by client and then by topic, so that the cost of a decision does not grow with the file.

Rules with the same conditions on the client form a section, which is compiled to a trie. A client's sections are looked
up once and stored with the client. A decision searches all of these sections and uses the earliest rule that applies.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hookmq.plugin import Action, ClientInfo
from hookmq_toolkit.rules import Rule, Rules, rule_values

from hookmq_acl_file.who import Key, Who, keys_of

EAGER: Final = 64
"""Sections with more rules than this are compiled when the file is loaded.

Smaller sections are compiled when the first client needs them. If a file has a section for each of 100,000 users, only
connected users then need memory for compiled rules.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A rule, and the clients to which it applies. `rule.order` is the rule's unique position in the file."""

    rule: Rule
    who: Who


class Section:
    """All rules with the same `Who`."""

    __slots__ = ("_compiled", "_listed", "conditions")

    def __init__(self, who: Who, listed: list[Rule]) -> None:
        self.conditions: list[frozenset[Key]] = [frozenset(keys) for keys in who.alternatives()]
        self._listed: list[Rule] = listed
        self._compiled: Rules | None = None

    def rules(self) -> Rules:
        """Return the compiled rules, compiling them on the first call."""
        compiled = self._compiled
        if compiled is None:
            compiled = self._compiled = Rules(self._listed)
            self._listed = []
        return compiled

    def take_apart(self) -> Iterator[None]:
        """Free the rules in small steps."""
        self._listed = []
        if self._compiled is not None:
            yield from self._compiled.take_apart()

    def about(self, keys: set[Key]) -> bool:
        """Return whether a client with the facts `keys` meets all of the section's conditions."""
        return not any(condition.isdisjoint(keys) for condition in self.conditions)


class Chosen:
    """The rules that apply to a client, and the values of their variables."""

    __slots__ = ("claims", "identity", "index", "rules", "values")

    def __init__(
        self, index: "Index", client: ClientInfo, rules: tuple[Rules, ...], values: dict[str, str]
    ) -> None:
        self.index = index
        self.identity = client.identity
        self.claims = client.claims
        self.rules = rules
        self.values = values


class Index:
    """All rules of a file. An index is immutable: a changed file gets a new index."""

    __slots__ = (
        "_claims",
        "_groups",
        "_keyed",
        "_prefixes",
        "delivers",
        "everybody",
        "rules",
        "sections",
    )

    def __init__(
        self,
        entries: Iterable[Entry],
        groups: Mapping[str, Iterable[str]] | None = None,
        delivers: bool = False,
    ) -> None:
        """Index `entries`. Raises ConfigError for an invalid rule.

        `groups` maps each group to its users. `delivers` is True if a rule in the file applies to deliveries.
        """
        by_user: dict[str, list[str]] = {}
        for group, users in (groups or {}).items():
            for user in users:
                by_user.setdefault(user, []).append(group)
        self._groups = {user: tuple(names) for user, names in by_user.items()}
        listed: dict[Who, list[Rule]] = {}
        self.rules = 0
        for entry in entries:
            self.rules += 1
            listed.setdefault(entry.who, []).append(entry.rule)
        self.sections = len(listed)
        self.delivers = delivers
        self.everybody: list[Section] = []
        self._keyed: dict[Key, list[Section]] = {}
        claims: set[str] = set()
        prefixes: set[tuple[int, int]] = set()
        for who, rules in listed.items():
            section = Section(who, rules)
            if len(rules) > EAGER:
                section.rules()
            if not section.conditions:
                self.everybody.append(section)
            else:
                for key in section.conditions[0]:
                    self._keyed.setdefault(key, []).append(section)
            claims.update(name for name, _ in who.claims)
            prefixes.update((one.version, one.prefixlen) for one in who.networks or ())
        self._claims = frozenset(claims)
        self._prefixes = frozenset(prefixes)

    def take_apart(self) -> Iterator[None]:
        """Free the index in small steps once no client uses it; see `Rules.take_apart`."""
        while self._keyed:
            _, sections = self._keyed.popitem()
            self.everybody.extend(sections)
            if len(self.everybody) >= 64:
                yield from self._let_go()
        yield from self._let_go()

    def _let_go(self) -> Iterator[None]:
        while self.everybody:
            yield from self.everybody.pop().take_apart()
        yield

    def choose(self, client: ClientInfo) -> Chosen:
        """Return the rules that apply to `client` with its current identity and claims."""
        keys = keys_of(client, self._groups, self._claims, self._prefixes)
        found = list(self.everybody)
        seen: set[int] = set()
        for key in keys:
            for section in self._keyed.get(key, ()):
                if id(section) not in seen and section.about(keys):
                    seen.add(id(section))
                    found.append(section)
        rules = tuple(section.rules() for section in found)
        variables = frozenset[str]().union(*(one.variables for one in rules))
        return Chosen(self, client, rules, rule_values(client, variables))

    def decide(
        self, chosen: Chosen, action: Action, topic: str, qos: int, retain: bool
    ) -> Rule | None:
        """Return the first rule in the file that applies to the action, or None."""
        best: Rule | None = None
        values = chosen.values
        for rules in chosen.rules:
            found = rules.decide(action, topic, qos, retain, values)
            if found is not None and (best is None or found.order < best.order):
                best = found
        return best
