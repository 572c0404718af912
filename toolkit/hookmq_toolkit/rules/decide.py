"""Find the rule that decides."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from hookmq.mqtt_api import parse_share
from hookmq.plugin import Action

from hookmq_toolkit.rules.overlaps import Overlaps
from hookmq_toolkit.rules.rule import Rule, is_variable, levels_of
from hookmq_toolkit.rules.trie import NOTHING, Entry, Node, opened_end, plant, walk

_STEP: Final = 64
"""The number of objects that `Rules.take_apart` frees in one step."""


class Rules:
    """Rules compiled for `decide`. Each topic level costs a few lookups, no matter how many rules there are.

    The object is immutable: to change rules, create a new object. Raises ConfigError, with the rule's source, for an
    invalid filter, a filter that starts with ``$share/``, a variable that is not a whole level, or a QoS other than 0,
    1 or 2.
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
        split = [levels_of(rule) for rule in self.rules]
        names = {level for levels in split for level in levels if is_variable(level)}
        self.variables = frozenset(names)
        """The variables in the rules, as written: ``%u``, ``${site}``."""
        self._publish = self._messages(Action.PUBLISH, split, ())
        self._will = self._messages(Action.WILL, split, ((Action.PUBLISH, self._publish),))
        self._deliver = self._messages(
            Action.DELIVER, split, ((Action.PUBLISH, self._publish), (Action.WILL, self._will))
        )
        asked = [n for n, rule in enumerate(self.rules) if Action.SUBSCRIBE in rule.actions]
        allowed = [n for n in asked if self.rules[n].allow and self.rules[n].retain is None]
        denied = [n for n in asked if not self.rules[n].allow]
        self._allowed = self._compile(allowed, split, False)
        self._denied = Overlaps(self._compile(denied, split, False), len(denied))

    def __len__(self) -> int:
        return self._count

    def decide(
        self, action: Action, topic: str, qos: int, retain: bool, values: Mapping[str, str]
    ) -> Rule | None:
        """Return the first rule that applies, or None.

        `topic` is a valid topic or, for SUBSCRIBE, a valid filter, with or without ``$share/NAME/``. `values` maps
        variables, as written in the filter (``%u``, ``%c``, ``${site}``), to their values; `rule_values` returns such a
        mapping. For SUBSCRIBE, `qos` and `retain` are ignored. If the rule allows the action, return
        ``Allow(max_qos=rule.qos)``.
        """
        if action is Action.SUBSCRIBE:
            levels = parse_share(topic)[1].split("/")
            open_end = levels[-1] == "#"
            rank = walk(self._allowed, *opened_end(levels), 0, False, values, self._count)
            rank = self._denied.first(levels, open_end, values, rank)
        else:
            levels = topic.split("/")
            root = self._publish
            if action is Action.DELIVER:
                root = self._deliver
            elif action is Action.WILL:
                root = self._will
            rank = walk(root, levels, False, qos, retain, values, self._count)
        return self.rules[rank] if rank < self._count else None

    def take_apart(self) -> Iterator[None]:
        """Free large rules in small steps. From the first step on, no rule applies.

        Freeing 100,000 rules at once blocks the event loop for half a second.
        """
        self._count = 0
        self._denied.forget()
        nodes = [self._publish, self._will, self._deliver, self._allowed, self._denied.root]
        self._publish = self._will = self._deliver = self._allowed = self._denied.root = NOTHING
        steps = 0
        while nodes:
            node = nodes.pop()
            for below in (node.children, node.variables):
                if below is not None:
                    nodes.extend(below.values())
            if node.plus is not None:
                nodes.append(node.plus)
            node.children = node.variables = node.plus = None
            steps += 1
            if steps % _STEP == 0:
                yield
        rules = list(self.rules)
        self.rules = ()
        while rules:
            del rules[-_STEP:]
            yield

    def _messages(
        self,
        action: Action,
        split: list[list[str]],
        made: tuple[tuple[Action, Node], ...],
    ) -> Node:
        """Return the trie for a message action. Actions with the same rules share a trie."""
        for other, root in made:
            if all((action in rule.actions) == (other in rule.actions) for rule in self.rules):
                return root
        ranks = [n for n, rule in enumerate(self.rules) if action in rule.actions]
        return self._compile(ranks, split, True)

    def _compile(self, ranks: list[int], split: list[list[str]], conditions: bool) -> Node:
        if not ranks:
            return NOTHING
        root = Node(self._count, [])
        for rank in ranks:
            rule = self.rules[rank]
            qos = 2 if rule.qos is None or not conditions else rule.qos
            entry = Entry(rank, rule.allow, qos, rule.retain if conditions else None)
            plant(root, split[rank], entry)
        return root


def _order(rule: Rule) -> int:
    return rule.order
