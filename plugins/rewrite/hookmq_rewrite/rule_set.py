"""Apply a set of rewrite rules until none applies. Sets that could loop are refused."""

from collections.abc import Callable, Mapping, Sequence

from hookmq.plugin import ConfigError
from hookmq_toolkit.topic_template import overlap

from hookmq_rewrite.rule import CompiledRule, Rule, RuleAction

Values = Callable[[Sequence[str]], Mapping[str, str]]
"""Return the values of a rule's variables for the current client."""


class RuleSet:
    """The compiled rules. Raises ConfigError if a rule is invalid, or if rules could rewrite their own results
    forever.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        compiled = [CompiledRule(rule, f"rules[{at}]") for at, rule in enumerate(rules)]
        self._by_action: dict[RuleAction, tuple[CompiledRule, ...]] = {}
        actions: tuple[RuleAction, ...] = ("publish", "subscribe", "will", "deliver")
        for action in actions:
            chosen = tuple(rule for rule in compiled if action in rule.actions)
            _refuse_loops(chosen, action)
            self._by_action[action] = chosen

    def handles(self, action: RuleAction) -> bool:
        """Return whether any rule has this action."""
        return bool(self._by_action[action])

    def rewrite(self, action: RuleAction, topic: str, values: Values) -> str:
        """Return the topic or topic filter after all rewrites.

        The first rule that applies rewrites the topic. All rules are then tried again on the result. If no rule
        applies, `topic` itself is returned. Raises ValueError if a rule applies but a value is missing.
        """
        rules = self._by_action[action]
        again = True
        while again:
            again = False
            for rule in rules:
                made = rule.apply(topic, values(rule.variables))
                if made is not None:
                    topic, again = made, True
                    break
        return topic


def _refuse_loops(rules: Sequence[CompiledRule], action: str) -> None:
    follows = {
        rule: [other for other in rules if overlap(rule.result, other.filter)] for rule in rules
    }
    finished: set[CompiledRule] = set()
    path: list[CompiledRule] = []

    def visit(rule: CompiledRule) -> None:
        if rule in path:
            way = " -> ".join(one.place for one in [*path[path.index(rule) :], rule])
            raise ConfigError(
                f"{way}: these rules could rewrite {action} topics in a loop",
                hint=f"{rule.place} makes {rule.result!r}, and its filter {rule.filter!r} may apply again",
            )
        if rule in finished:
            return
        path.append(rule)
        for other in follows[rule]:
            visit(other)
        path.pop()
        finished.add(rule)

    for rule in rules:
        visit(rule)
