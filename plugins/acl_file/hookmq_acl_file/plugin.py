"""Implement the `acl_file` plugin, which authorizes clients by the rules in a file."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Literal, get_args

from hookmq.mqtt_api import SHARE_PREFIX
from hookmq.plugin import (
    Action,
    Allow,
    BrokerHandle,
    ClientInfo,
    ConfigError,
    Context,
    Deny,
    Message,
    MetricRegistry,
    Plugin,
    Runtime,
    Seconds,
    Settings,
    Subscription,
    hookimpl,
    setting,
)
from hookmq_toolkit.files import FileStamp, FileWatch
from hookmq_toolkit.rules import Rule

from hookmq_acl_file.file import LARGE, Format, Loaded, load
from hookmq_acl_file.index import Chosen, Index

_ASKED = frozenset({Action.PUBLISH, Action.SUBSCRIBE, Action.WILL})


@dataclass(frozen=True)
class AclFileConfig:
    """Settings of `use: acl_file`."""

    path: Path = field(metadata={"help": "the rule file"})
    format: Format = setting("yaml", "yaml, or mosquitto for mosquitto's acl_file")
    reload_interval: Seconds = setting(
        2.0,
        "how often the file is checked; a change is loaded after one interval without another change; 0: on SIGHUP only",
    )
    no_match: Literal["deny", "abstain"] = setting(
        "deny",
        "the decision if no rule applies; abstain leaves it to other plugins and authz.default",
    )
    explain: bool = setting(
        True, "send the rule that refused them to MQTT 5 clients, as reason string"
    )

    def __post_init__(self) -> None:
        """Check values that were passed in code. Values from a configuration file have already been checked."""
        object.__setattr__(self, "path", Path(self.path))
        if self.format not in get_args(Format):
            raise ConfigError(f"format: {self.format!r} is not yaml or mosquitto")
        if self.no_match not in ("deny", "abstain"):
            raise ConfigError(f"no_match: {self.no_match!r} is not deny or abstain")
        if not self.reload_interval >= 0:
            raise ConfigError(f"reload_interval: {self.reload_interval!r} is not 0 or more seconds")


class AclFilePlugin(Plugin):
    """A plugin that authorizes clients by rules in one file, in YAML or in mosquitto's acl_file format."""

    Config = AclFileConfig
    config: AclFileConfig

    def __init__(self, config: AclFileConfig, context: Context) -> None:
        """Read the file. Raises ConfigError for a mistake in the file, which prevents the broker from starting."""
        super().__init__(config, context)
        loaded = load(config.path, config.format)
        self.rules: Index = loaded.rules
        self.allowed = 0
        self.denied = 0
        self.unmatched = 0
        self.taken = 0
        """Number of changes to the file that were loaded."""
        self.failed = 0
        """Number of reported failures to load the file."""
        self._digest = loaded.digest
        self._told = False
        self.watch = FileWatch(
            config.path, config.reload_interval, loaded.stamp, self._load, self._took, self._failed
        )
        self._broker: BrokerHandle | None = None
        self._unmatched: Deny | None = None
        if config.no_match == "deny":
            self._unmatched = Deny(
                reason="no rule allows it" if config.explain else None, rule="no rule"
            )

    @property
    def authorize_actions(self) -> frozenset[Action]:  # type: ignore[override]
        """The actions that the plugin decides on. They include deliveries only if a rule names them."""
        return _ASKED | {Action.DELIVER} if self.rules.delivers else _ASKED

    # --- deciding ----------------------------------------------------------------------------------------------------

    @hookimpl
    def authorize(
        self,
        client: ClientInfo,
        action: Action,
        topic: str,
        message: Message | None,
        subscription: Subscription | None,
    ) -> Allow | Deny | None:
        """Decide by the first rule in the file that applies."""
        qos, retain = 0, False
        if message is not None:
            qos, retain = message.qos, message.retain
            if (
                subscription is not None
            ):  # a message is delivered at the lower of the two QoS levels
                qos = min(qos, subscription.qos)
        rule = self.decide(client, action, topic, qos, retain)
        if rule is None:
            self.unmatched += 1
            return self._unmatched
        if rule.allow:
            self.allowed += 1
            return Allow(max_qos=rule.qos, rule=rule.source)
        self.denied += 1
        return Deny(
            reason=f"denied by {rule.source}" if self.config.explain else None, rule=rule.source
        )

    def decide(
        self, client: ClientInfo, action: Action, topic: str, qos: int, retain: bool
    ) -> Rule | None:
        """Return the rule that decides on the action, or None if no rule applies."""
        if action is Action.SUBSCRIBE and topic.startswith(SHARE_PREFIX):
            # The broker has already removed one $share/NAME/. No rule can exist for a second one.
            return None
        rules = self.rules
        chosen: Chosen | None = client.state.get(self.context.id)
        if (
            chosen is None
            or chosen.index is not rules
            or chosen.identity is not client.identity
            or chosen.claims is not client.claims
        ):
            chosen = client.state[self.context.id] = rules.choose(client)
        return rules.decide(chosen, action, topic, qos, retain)

    # --- life --------------------------------------------------------------------------------------------------------

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Start watching the file."""
        self._broker = broker
        self.watch.start(broker.runtime)

    @hookimpl
    def on_reload(self, old: Settings, new: Settings) -> None:
        """Check the file at once, because the operator has finished writing it."""
        self.watch.look()

    @hookimpl
    def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """Stop watching the file."""
        self.watch.stop()

    @property
    def stale(self) -> bool:
        """True if the file cannot be used and the previous rules are still in force."""
        return bool(self.watch.failing)

    def _load(self) -> tuple[FileStamp, Loaded]:
        """Load the file. This call blocks, and runs in a thread."""
        loaded = load(self.config.path, self.config.format)
        return loaded.stamp, loaded

    def _took(self, loaded: Loaded) -> None:
        if self._told:
            self._told = False
            self._tell("info", "acl.file_good")
        if loaded.digest != self._digest:  # otherwise the text is unchanged
            self._digest = loaded.digest
            self.taken += 1
            self._changed(loaded.rules)

    def _failed(self, why: str) -> None:
        self.failed += 1
        self._told = True
        self._tell("error", "acl.file_bad", error=why, kept="the previous rules")

    def _tell(self, level: str, event: str, **fields: object) -> None:
        if self._broker is not None:
            self._broker.log(level, event, file=str(self.config.path), **fields)

    def _changed(self, rules: Index) -> None:
        """Replace the rules, and make the broker recheck all permissions."""
        broker = self._broker
        assert broker is not None
        old, self.rules = self.rules, rules
        broker.log("info", "acl.loaded", file=str(self.config.path), rules=rules.rules)
        broker.invalidate_authz()
        if old.rules > LARGE:
            self._let_go(old.take_apart(), broker.runtime)

    def _let_go(self, steps: Iterator[None], runtime: Runtime) -> None:
        for _ in islice(steps, 8):
            pass
        if next(steps, self) is not self:
            runtime.call_later(0.002, partial(self._let_go, steps, runtime))

    # --- registering -------------------------------------------------------------------------------------------------

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the ``hookmq_acl_*`` metrics."""
        registry.gauge("acl_rules", "Rules in force.", lambda: self.rules.rules)
        registry.gauge(
            "acl_stale",
            "1 while the file cannot be used and the previous rules are in force.",
            lambda: int(self.stale),
        )
        registry.counter(
            "acl_reloads_total", "Changes of the file that were loaded.", lambda: self.taken
        )
        registry.counter(
            "acl_reload_failures_total",
            "Changes of the file that could not be loaded.",
            lambda: self.failed,
        )
        registry.counter(
            "acl_decisions_total",
            "Decisions, without those that the broker had cached.",
            lambda: [
                ({"decision": "allow"}, self.allowed),
                ({"decision": "deny"}, self.denied),
                ({"decision": "no_match"}, self.unmatched),
            ],
        )
