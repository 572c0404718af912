"""The plugin: what the configuration's ``use: acl_file`` makes."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

from hookmq.files import FileStamp, FileWatch
from hookmq.plugin import (
    Action,
    Allow,
    BrokerHandle,
    ClientInfo,
    ConfigError,
    Context,
    Deny,
    Message,
    Plugin,
    Rule,
    Seconds,
    Settings,
    Subscription,
    hookimpl,
    setting,
)
from hookmq.runtime import Runtime
from hookmq.topics import SHARE_PREFIX

from hookmq_acl_file.file import LARGE, Format, Loaded, load
from hookmq_acl_file.index import Chosen, Index

_ALLOWED: dict[int | None, Allow] = {qos: Allow(max_qos=qos) for qos in (None, 0, 1, 2)}
_ASKED = frozenset({Action.PUBLISH, Action.SUBSCRIBE, Action.WILL})


@dataclass(frozen=True)
class AclFileConfig:
    """Which file, and how it is read."""

    path: Path = field(metadata={"help": "the file of rules"})
    format: Format = setting("yaml", "yaml, or mosquitto for mosquitto's acl_file")
    reload_interval: Seconds = setting(
        2.0,
        "how often the file is looked at; a change is taken when it stood still for as long; 0: on SIGHUP only",
    )
    no_match: Literal["deny", "abstain"] = setting(
        "deny",
        "what is said where no rule applies; abstain leaves it to other plugins and authz.default",
    )
    explain: bool = setting(True, "whether MQTT 5 clients are told the rule that refused them")

    def __post_init__(self) -> None:
        """For whoever embeds it; a configuration's file is checked before."""
        object.__setattr__(self, "path", Path(self.path))
        if self.format not in get_args(Format):
            raise ConfigError(f"format: {self.format!r} is not yaml or mosquitto")
        if self.no_match not in ("deny", "abstain"):
            raise ConfigError(f"no_match: {self.no_match!r} is not deny or abstain")
        if not self.reload_interval >= 0:
            raise ConfigError(f"reload_interval: {self.reload_interval!r} is not 0 or more seconds")


class AclFilePlugin(Plugin):
    """Access rules for HookMQ in one file, in YAML or in mosquitto's acl_file format."""

    Config = AclFileConfig
    config: AclFileConfig

    def __init__(self, config: AclFileConfig, context: Context) -> None:
        """Reads the file: what is wrong with it keeps the broker from starting."""
        super().__init__(config, context)
        loaded = load(config.path, config.format)
        self.rules: Index = loaded.rules
        self.allowed = 0
        self.denied = 0
        self.unmatched = 0
        self.taken = 0
        """Changes of the file taken."""
        self.failed = 0
        """Reasons told why the file could not be used."""
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
        """Deliveries are asked about only where a rule speaks of them."""
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
        """What the first rule of the file that applies says."""
        qos, retain = 0, False
        if message is not None:
            qos, retain = message.qos, message.retain
            if subscription is not None:  # what is delivered is of the lower of the two
                qos = min(qos, subscription.qos)
        rule = self.decide(client, action, topic, qos, retain)
        if rule is None:
            self.unmatched += 1
            return self._unmatched
        if rule.allow:
            self.allowed += 1
            return _ALLOWED[rule.qos]
        self.denied += 1
        return Deny(
            reason=f"denied by {rule.source}" if self.config.explain else None, rule=rule.source
        )

    def decide(
        self, client: ClientInfo, action: Action, topic: str, qos: int, retain: bool
    ) -> Rule | None:
        """The rule that decides, None where none does."""
        if action is Action.SUBSCRIBE and topic.startswith(SHARE_PREFIX):
            # The broker asks about what is behind the first $share/NAME/: this is a second, which no rule speaks of.
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
        """Begins to watch the file."""
        self._broker = broker
        self.watch.start(broker.runtime)

    @hookimpl
    def on_reload(self, old: Settings, new: Settings) -> None:
        """Looks at the file now: who asks for a reload has finished writing."""
        self.watch.look()

    @hookimpl
    def on_shutdown(self, broker: BrokerHandle, deadline: float) -> None:
        """Stops watching."""
        self.watch.stop()

    @property
    def stale(self) -> bool:
        """Whether the file cannot be used and the rules of before hold."""
        return bool(self.watch.failing)

    def _load(self) -> tuple[FileStamp, Loaded]:
        """Read the file, in a thread."""
        loaded = load(self.config.path, self.config.format)
        return loaded.stamp, loaded

    def _took(self, loaded: Loaded) -> None:
        if self._told:
            self._told = False
            self._tell("info", "acl.file_good")
        if loaded.digest != self._digest:  # touched only: nobody's rights changed
            self._digest = loaded.digest
            self.taken += 1
            self._changed(loaded.rules)

    def _failed(self, why: str) -> None:
        self.failed += 1
        self._told = True
        self._tell("error", "acl.file_bad", error=why, kept="the rules of before")

    def _tell(self, level: str, event: str, **fields: object) -> None:
        if self._broker is not None:
            self._broker.log(level, event, file=str(self.config.path), **fields)

    def _changed(self, rules: Index) -> None:
        """Go by other rules from now on, all at once, and have every right asked about again."""
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
    def register_metrics(self, registry: Any) -> None:
        """Adds what there is to count."""
        registry.gauge("acl_rules", "Rules in force.", lambda: self.rules.rules)
        registry.gauge(
            "acl_stale",
            "1 while the file cannot be used and the rules are those of before.",
            lambda: int(self.stale),
        )
        registry.counter("acl_reloads_total", "Changes of the file taken.", lambda: self.taken)
        registry.counter(
            "acl_reload_failures_total",
            "Changes of the file that could not be taken.",
            lambda: self.failed,
        )
        registry.counter(
            "acl_decisions_total",
            "Decisions made, not counting those remembered by the broker.",
            lambda: [
                ({"decision": "allow"}, self.allowed),
                ({"decision": "deny"}, self.denied),
                ({"decision": "no_match"}, self.unmatched),
            ],
        )

    @staticmethod
    @hookimpl
    def register_cli(group: Any) -> None:
        """Adds ``hookmq acl``."""
        from hookmq_acl_file.cli import register

        register(group)
