"""Generate the JSON Schemas and the reference page for events. Run as ``python -m hookmq_webhook.reference``."""

import json
from pathlib import Path
from typing import Any, Final

from hookmq_webhook.catalog import CATALOG, OTHER, PAYLOAD, SCHEMAS, Kind
from hookmq_webhook.envelope import Envelope, encode
from hookmq_webhook.fields import Field
from hookmq_webhook.queues import Numbered
from hookmq_webhook.samples import sample

FOLDER: Final = Path(__file__).with_name("schemas")
PAGE: Final = Path("docs/reference/webhook-events.md")
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

HEAD: Final = """\
# Webhook events

This page lists the events that the plugin `webhook` sends. `python -m hookmq_webhook.reference` generates it from the
plugin's catalog. The distribution includes a JSON Schema for each event's `data`. The command
`hookmq webhook schema message.published` prints one of them.

In a CloudEvent, the type has the prefix `hookmq.`, as in `hookmq.message.published`. In the plain envelope, the type
has no prefix. Optional fields are marked "optional". The setting `filters.fields` can remove further fields; the
schemas describe complete events. New versions may add fields. Existing fields keep their names and meanings.

## The envelope

| attribute | plain | |
|---|---|---|
| `specversion` | | `1.0` |
| `id` | `id` | `EPOCH-SEQUENCE`: unique to the event, and the same for every attempt and after a restart |
| `source` | `source` | value of the plugin's setting `source` |
| `type` | `type` | event type from this page |
| `subject` | | topic of the event, or its client id if it has no topic; absent if it has neither |
| `time` | `time` | time of the event, in RFC 3339 format, in UTC, with microseconds |
| `sequence` | `sequence` | number of the event in its epoch, from 0; in a CloudEvent, a string of twenty digits |
| `epoch` | `epoch` | id of the epoch: each outbox has its own or, with `best_effort`, each run of the broker |
| `traceparent` | `traceparent` | the publisher's user property of that name, if it is valid W3C Trace Context |
| `partitionkey` | | scope of the order: client id, topic or `source`; absent with `key: none` |
| `dataschema` | | `urn:hookmq:event:TYPE`, or the setting `dataschema`; absent with `filters.fields` |
| `datacontenttype` | | `application/json`; with `content: payload`, the content type of the payload |
| `data`, `data_base64` | `data` | fields of the event |

Sequence numbers have no gaps, but events with different keys may arrive out of order. A receiver may therefore see
gaps that close later. If a gap remains, the event was dropped, or the plugin is still trying to send it.

## Payloads

Events about messages also have these fields:

{payload}
With `payload: auto`, a payload is sent as JSON if its content type is JSON. A payload without a content type is sent
as JSON if it is an object or an array. With `payload: json`, the plugin tries to parse every payload as JSON.

Some receivers cannot read numbers outside the range of a double, unpaired surrogates, or more than 64 levels of
nesting. The plugin sends such payloads, and payloads that are not JSON, as text. Payloads that are not UTF-8 are sent
in base64. The values `text` and `base64` always select that form; `none` omits payloads.
"""


def schema(kind: Kind) -> dict[str, Any]:
    """Return the JSON Schema of an event type's data."""
    extra = PAYLOAD if kind.payload else ()
    fields = (*kind.fields, *extra)
    made: dict[str, Any] = {
        "$schema": _DIALECT,
        "$id": f"{SCHEMAS}{kind.name}",
        "title": kind.name,
        "description": kind.help,
        "type": "object",
        "properties": {field.name: {"description": field.help, **field.schema} for field in fields},
        "required": [field.name for field in fields if field.always],
    }
    if kind.payload:
        made["allOf"] = [
            _if(("json",), "payload"),
            _if(("text",), "payload", {"type": "string"}),
            _if(("base64",), "payload_base64"),
        ]
    return made


def _if(formats: tuple[str, ...], member: str, of: Any = None) -> dict[str, Any]:
    then: dict[str, Any] = {"required": [member]}
    if of is not None:
        then["properties"] = {member: of}
    condition = {
        "properties": {"payload_format": {"enum": list(formats)}},
        "required": ["payload_format"],
    }
    return {"if": condition, "then": then}


def schemas() -> dict[str, str]:
    """Return the text of all schemas, keyed by file name."""
    return {
        f"{kind.name}.json": json.dumps(schema(kind), indent=2, ensure_ascii=False) + "\n"
        for kind in CATALOG.values()
    }


def page() -> str:
    """Return the text of the reference page."""
    parts = [HEAD.replace("{payload}", _table(PAYLOAD))]
    family = ""
    for kind in CATALOG.values():
        if kind.name.partition(".")[0] != family:
            family = kind.name.partition(".")[0]
            parts.append(f"## {family.capitalize()}\n")
        parts.append(_section(kind))
    parts.append("## Other plugins\n")
    parts.append(
        f"{OTHER.help} List its name in `events`; a name with a dot is accepted if no event above has the same prefix.\n"
    )
    parts.append(_table(OTHER.fields))
    parts.append("The data also contains all fields that the plugin sends.\n")
    return "\n".join(parts)


def _section(kind: Kind) -> str:
    hooks = ", ".join(f"`{hook}`" for hook in kind.hook.split(", "))
    lines = [f"### {kind.name}\n", f"{kind.help} Source: {hooks}.\n", _table(kind.fields)]
    if kind.payload:
        lines.append("The event also has the fields listed under [payloads](#payloads).\n")
    shown = Envelope("urn:hookmq:webhook", "3f2a", "structured", max_event=4096)
    _, body = encode(shown, [Numbered(41, sample(kind.name), 0)])
    text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    lines.append(f"```json\n{text}\n```\n")
    return "\n".join(lines)


def _table(fields: tuple[Field, ...]) -> str:
    lines = ["| field | type | description |", "|---|---|---|"]
    for field in fields:
        left_out = "" if field.always else "; optional"
        lines.append(f"| `{field.name}` | {_type(field)} | {field.help}{left_out} |")
    return "\n".join(lines) + "\n"


def _type(field: Field) -> str:
    of = field.schema
    if "enum" in of:
        return ", ".join(f"`{value}`" for value in of["enum"])
    if of.get("format") == "date-time":
        return "time"
    if of.get("contentEncoding"):
        return "base64"
    if of.get("type") == "array":
        return "list"
    return str(of.get("type", "any"))


def write(root: Path) -> None:
    """Write the schemas to the package, and the reference page to the checkout at `root`."""
    FOLDER.mkdir(exist_ok=True)
    made = schemas()
    for path in FOLDER.glob("*.json"):
        if path.name not in made:
            path.unlink()
    for name, text in made.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    (root / PAGE).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(Path.cwd())
