"""Implement the `schema` plugin: refuse, drop or tag messages with invalid payloads."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hookmq.plugin import (
    BrokerHandle,
    ClientInfo,
    ConfigError,
    Context,
    Deny,
    Drop,
    Message,
    MetricRegistry,
    Plugin,
    ReasonCode,
    Settings,
    hookimpl,
)
from hookmq_toolkit.files import FileStamp, FileWatch, file_stamp

from hookmq_schema.config import Rule, SchemaConfig

if TYPE_CHECKING:
    from hookmq_schema.checks import Check


class CheckedRule:
    """A rule with its compiled check and the counts of its results."""

    __slots__ = ("check", "invalid", "rule", "stamp", "valid")

    def __init__(self, rule: Rule) -> None:
        # Each hookmq command imports this module, but only a configured plugin needs the schema libraries.
        from hookmq_schema import checks

        self.rule = rule
        self.valid = 0
        self.invalid = 0
        self.stamp: FileStamp | None = None
        self.check: Check
        if rule.file is None:
            self.check = checks.check_utf8 if rule.format == "utf8" else checks.check_json
        else:
            self.stamp, self.check = load(rule, rule.file)


def load(rule: Rule, path: Path) -> tuple[FileStamp, "Check"]:
    """Read and compile a rule's schema file. This call blocks. Raises ConfigError for any mistake in the file."""
    from hookmq_schema import checks

    try:
        before = file_stamp(path)
        content = path.read_bytes()
        if file_stamp(path) != before:
            raise ConfigError("the file changed during the read", source=str(path))
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=str(path)) from error
    try:
        if rule.format == "json_schema":
            return before, checks.json_schema(content)
        if rule.format == "avro":
            return before, checks.avro(content)
        return before, checks.protobuf(content, rule.message, rule.unknown_fields)
    except ConfigError as error:
        raise ConfigError(str(error), source=str(path)) from error


class SchemaPlugin(Plugin):
    """A plugin that checks the payloads of messages and wills by topic.

    An empty retained message always passes, because it only deletes its topic's retained message.
    """

    Config = SchemaConfig
    config: SchemaConfig

    def __init__(self, config: SchemaConfig, context: Context) -> None:
        """Read the schema files. Raises ConfigError for a mistake in a file, so the broker does not start."""
        super().__init__(config, context)
        self.rules = [CheckedRule(rule) for rule in config.rules]
        self._broker: BrokerHandle | None = None
        self._watches: list[FileWatch[Check]] = []
        for checked in self.rules:
            file = checked.rule.file
            if file is not None:
                self._watches.append(
                    FileWatch(
                        file,
                        config.reload_interval,
                        checked.stamp,
                        partial(load, checked.rule, file),
                        partial(self._took, checked),
                        partial(self._failed, file),
                    )
                )

    @hookimpl
    def on_startup(self, broker: BrokerHandle) -> None:
        """Start watching the schema files."""
        self._broker = broker
        for watch in self._watches:
            watch.start(broker.runtime)

    @hookimpl
    def on_reload(self, old: Settings, new: Settings) -> None:
        """Check the schema files immediately. An operator who reloads has finished writing them."""
        for watch in self._watches:
            watch.look()

    @hookimpl
    def on_shutdown(self) -> None:
        """Stop watching the schema files."""
        for watch in self._watches:
            watch.stop()

    def _took(self, checked: CheckedRule, check: "Check") -> None:
        checked.check = check
        if self._broker is not None:
            self._broker.log("info", "schema.loaded", file=str(checked.rule.file))

    def _failed(self, file: Path, why: str) -> None:
        if self._broker is not None:
            kept = "the previous schema"
            self._broker.log("error", "schema.file_bad", file=str(file), error=why, kept=kept)

    @hookimpl
    def on_publish(self, message: Message) -> Message | Deny | Drop | None:
        """Check a published message."""
        return self._decide(message)

    @hookimpl
    def on_will(self, client: ClientInfo, message: Message) -> Message | Deny | Drop | None:
        """Check a will that is about to be published."""
        return self._decide(message)

    def _decide(self, message: Message) -> Message | Deny | Drop | None:
        for checked in self.rules:
            if self.matches(checked.rule.filter, message.topic):
                break
        else:
            return None
        payload = message.payload
        if message.retain and not payload:
            return None
        if len(payload) > self.config.max_size:
            reason = f"more than {self.config.max_size} bytes"
        else:
            reason = checked.check(payload)
        invalid = checked.rule.invalid
        if not reason:
            checked.valid += 1
            return self._tagged(message, "") if invalid == "tag" else None
        checked.invalid += 1
        if invalid == "refuse":
            return Deny(ReasonCode.PAYLOAD_FORMAT_INVALID, reason)
        return Drop() if invalid == "drop" else self._tagged(message, reason)

    def _tagged(self, message: Message, reason: str) -> Message | None:
        """Return the message with the plugin's tag if there is a `reason`, and without tags set by the client. Return
        None if nothing changes.
        """
        tag = self.config.tag
        kept = tuple(pair for pair in message.user_property if pair[0] != tag)
        pairs = (*kept, (tag, reason)) if reason else kept
        if pairs == message.user_property:
            return None
        return message.replace(properties=message.properties.replace(user_property=pairs or None))

    @hookimpl
    def register_metrics(self, registry: MetricRegistry) -> None:
        """Add the metric that counts checked messages."""
        registry.counter(
            "schema_checked_total",
            "Checked messages, by rule and result.",
            lambda: [
                ({"filter": one.rule.filter, "rule": str(at), "result": result}, count)
                for at, one in enumerate(self.rules)
                for result, count in (("valid", one.valid), ("invalid", one.invalid))
            ],
        )
