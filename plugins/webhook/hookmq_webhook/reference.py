"""Generate the JSON Schemas and the reference page for events. Run as ``python -m hookmq_webhook.reference``."""

import json
from pathlib import Path
from typing import Any, Final

from hookmq_webhook.catalog import CATALOG, OTHER, PAYLOAD, Field, Kind
from hookmq_webhook.envelope import Envelope, encode
from hookmq_webhook.queues import Numbered
from hookmq_webhook.samples import sample

FOLDER: Final = Path(__file__).with_name("schemas")
PAGE: Final = Path("docs/reference/webhook-events.md")
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

HEAD: Final = """\
# Webhook events

This page lists the events that the plugin `webhook` sends. `python -m hookmq_webhook.reference` writes it from the
plugin's table. The distribution has a JSON Schema of each event's `data`. `hookmq webhook schema message.published`
prints one.

In a CloudEvent the type has the prefix `hookmq.`: `hookmq.message.published`. In the plain envelope it has no prefix.
Optional fields are marked "may be left out". `filters.fields` leaves out others; the schemas describe whole events.
New versions may add fields. Existing fields keep their names and meanings.

## The envelope

| attribute | plain | |
|---|---|---|
| `specversion` | | `1.0` |
| `id` | `id` | `EPOCH-SEQUENCE`: the same at every attempt and after a restart; no other event has it |
| `source` | `source` | the key `source` of the plugin |
| `type` | `type` | as below |
| `subject` | | the topic, else the client id, of events that are about one |
| `time` | `time` | when it happened: RFC 3339, UTC, microseconds |
| `sequence` | `sequence` | counts the events of an epoch from 0; twenty digits, in the plain envelope a number |
| `epoch` | `epoch` | of what the sequence counts: the outbox, or (`best_effort`) one start of the broker |
| `traceparent` | `traceparent` | the publisher's user property of that name, if it is one of W3C Trace Context |
| `datacontenttype` | | `application/json`, unless `content: payload` says otherwise |
| `data`, `data_base64` | `data` | the fields below |

The sequence has no gaps, but events of different keys may overtake each other. A receiver therefore sees gaps that
close later. If a gap stays, the event was given up or dropped, or the plugin is still trying to send it.

## Payloads

Events of messages also have these fields:

{payload}
With `payload: auto`, a payload is JSON if its content type says so. Without a content type, an object or array is
JSON. `json` tries all payloads. Some JSON is not readable for every receiver: a number beyond a double, half a
surrogate pair, or more than 64 levels. Such a payload, or one that is not JSON, is text. A payload that is not UTF-8
is base64. `text` and `base64` always use that form; `none` leaves payloads out.
"""


def schema(kind: Kind) -> dict[str, Any]:
    """Return the JSON Schema of an event type's data."""
    extra = PAYLOAD if kind.payload else ()
    fields = (*kind.fields, *extra)
    made: dict[str, Any] = {
        "$schema": _DIALECT,
        "$id": f"urn:hookmq:event:{kind.name}",
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
    """Return the text of all schemas by file name."""
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
        f"{OTHER.help} Name it in `events`; a name with a dot is accepted if no event above has its prefix.\n"
    )
    parts.append(_table(OTHER.fields))
    parts.append("The data also has all fields that the plugin sends.\n")
    return "\n".join(parts)


def _section(kind: Kind) -> str:
    hooks = ", ".join(f"`{hook}`" for hook in kind.hook.split(", "))
    lines = [f"### {kind.name}\n", f"{kind.help} Source: {hooks}.\n", _table(kind.fields)]
    if kind.payload:
        lines.append("It also has the fields of [payloads](#payloads).\n")
    shown = Envelope("urn:hookmq:webhook", "3f2a", "structured", max_event=4096)
    _, body = encode(shown, [Numbered(41, sample(kind.name), 0)])
    text = json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    lines.append(f"```json\n{text}\n```\n")
    return "\n".join(lines)


def _table(fields: tuple[Field, ...]) -> str:
    lines = ["| field | is | |", "|---|---|---|"]
    for field in fields:
        left_out = "" if field.always else "; may be left out"
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
