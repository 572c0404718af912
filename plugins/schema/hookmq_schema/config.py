"""Settings of the `schema` plugin."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hookmq.plugin import ConfigError, Seconds, Size, setting

Format = Literal["utf8", "json", "json_schema", "avro", "protobuf"]
Invalid = Literal["refuse", "drop", "tag"]
_FILES = ("json_schema", "avro", "protobuf")


@dataclass(frozen=True)
class Rule:
    """One entry of `rules`."""

    filter: str = field(metadata={"help": "topic filter; the rule checks the topics it matches"})
    format: Format = field(
        metadata={"help": "utf8, json, json_schema, avro or protobuf: what a payload must be"}
    )
    file: Path | None = setting(
        None,
        "the schema: a JSON Schema, an Avro schema, or a Protobuf descriptor set",
        path=True,
    )
    message: str = setting("", "protobuf only: full name of the message type")
    unknown_fields: bool = setting(
        True, "protobuf only: whether a payload may have fields that the type lacks"
    )
    invalid: Invalid = setting(
        "refuse", "what happens to an invalid message: refuse, drop or tag it"
    )

    def __post_init__(self) -> None:
        needs = self.format in _FILES
        if needs and self.file is None:
            raise ConfigError(f"file: format {self.format} needs a schema file")
        if not needs and self.file is not None:
            raise ConfigError(f"file: format {self.format} uses no schema file")
        if (self.format == "protobuf") != bool(self.message):
            need = (
                "needs the name of a message type" if not self.message else "is for protobuf only"
            )
            raise ConfigError(f"message: {need}")


@dataclass(frozen=True)
class SchemaConfig:
    """Settings of `use: schema`."""

    rules: tuple[Rule, ...] = field(
        metadata={
            "help": "rules; the first one whose filter matches checks a message",
            "nonempty": True,
        }
    )
    max_size: Size = setting(
        32 * 1024, "payloads above this size are invalid, since a check takes time", minimum=1
    )
    tag: str = setting(
        "schema-error", "user property that tells the reason if a message is tagged", nonempty=True
    )
    reload_interval: Seconds = setting(
        5.0, "how often to look for changed schema files; 0 never", minimum=0, maximum=86400
    )

    def __post_init__(self) -> None:
        if not self.tag:
            raise ConfigError("tag: expected the name of a user property")
