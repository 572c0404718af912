"""JSON schemas of responses, for the OpenAPI document. Properties are required unless stated otherwise."""

from typing import Any, Final

from hookmq_admin.latency import LATENCIES

Schema = dict[str, Any]
TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
TIME: Final[Schema] = {"type": "number", "description": "epoch seconds"}
SECONDS: Final[Schema] = {"type": "number", "description": "seconds"}


def maybe(schema: Schema) -> Schema:
    """Return a schema that also allows null."""
    if "$ref" in schema:
        return {"oneOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def listed(schema: Schema) -> Schema:
    """Return the schema of an array."""
    return {"type": "array", "items": schema}


def mapped(schema: Schema) -> Schema:
    """Return the schema of an object with any keys."""
    return {"type": "object", "additionalProperties": schema}


def record(optional: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    """Return the schema of an object."""
    required = [name for name in properties if name not in optional]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def ref(name: str) -> Schema:
    """Return a reference to a schema in `COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def paged(name: str) -> Schema:
    """Return the schema of a page."""
    cursor = {"type": "string", "description": "for the next page; empty after the last page"}
    return record(items=listed(ref(name)), cursor=cursor)


_MESSAGE: Final[Schema] = {
    "topic": TEXT, "qos": WHOLE, "retain": FLAG, "bytes": WHOLE, "sender": maybe(TEXT), "origin": TEXT,
    "received_at": TIME, "expires_at": maybe(TIME), "payload": ref("Payload"), "properties": ref("Properties"),
}  # fmt: skip
_CONTENT: Final = ("payload", "properties")
_OLDEST: Final[Schema] = {
    "type": ["number", "null"], "description": "age of the oldest message in seconds; null if not known yet",
}  # fmt: skip
_QUEUE: Final[Schema] = {
    "name": TEXT, "type": TEXT, "made_by": {"type": "string", "enum": ["configuration", "operator", "first_use"]},
    "messages": {"type": "integer", "description": "unsettled messages of the slowest group"},
    "delayed": {"type": "integer", "description": "messages that are not due yet"}, "bytes": WHOLE,
    "max_messages": WHOLE, "max_bytes": WHOLE, "on_full": TEXT, "full": FLAG, "paused": FLAG,
    "end": {"type": "integer", "description": "the offset of the next message"}, "oldest": _OLDEST, "dead_letter": TEXT,
    "counts": mapped(WHOLE),
}  # fmt: skip
_QUEUE_GROUP: Final[Schema] = {
    "name": TEXT, "unsettled": WHOLE, "unacknowledged": WHOLE, "delayed": WHOLE, "next": WHOLE, "oldest": _OLDEST,
    "paused": FLAG, "stalled": {"type": "integer", "description": "consumers that do not settle their messages in time"},
    "consumer_count": WHOLE,
}  # fmt: skip
_SESSION: Final[Schema] = {
    "client_id": TEXT, "username": maybe(TEXT), "identity": maybe(TEXT), "listener": TEXT, "address": TEXT,
    "port": WHOLE, "transport": TEXT, "version": WHOLE, "connected": FLAG, "connected_at": TIME,
    "ended_at": maybe(TIME), "clean_start": FLAG, "keep_alive": {"type": "integer", "description": "seconds"},
    "expiry": {"type": ["number", "null"], "description": "seconds; null if it never expires"}, "durable": FLAG,
    "subscriptions": WHOLE, "inflight": WHOLE, "queued": WHOLE, "queued_bytes": WHOLE, "will": maybe(TEXT),
    "receive_maximum": WHOLE,
}  # fmt: skip
_SUBSCRIPTION: Final[Schema] = {
    "client_id": TEXT, "filter": TEXT, "topic_filter": TEXT, "share": maybe(TEXT), "qos": WHOLE, "no_local": FLAG,
    "retain_as_published": FLAG, "retain_handling": WHOLE, "identifier": maybe(WHOLE),
}  # fmt: skip
_ACCOUNT: Final[Schema] = {"name": TEXT, "note": TEXT}

_COUNTED: Final[Schema] = {
    "messages": WHOLE, "bytes": WHOLE,
    "error": {"type": "integer", "description": "by how many messages the count may be too high"},
}  # fmt: skip

_LATENCY: Final[Schema] = {
    "type": ["number", "null"],
    "description": "seconds, between the last two samples; null if nothing was measured",
}

COMPONENTS: Final[dict[str, Schema]] = {
    "Problem": record(
        ("field",), type=TEXT, title=TEXT, status=WHOLE, detail=TEXT,
        field={"type": "string", "description": "the invalid field"},
    ),
    "Payload": record(("text", "base64"), text=TEXT, base64=TEXT, truncated=FLAG),
    "Properties": record(
        ("content_type", "response_topic", "payload_format_indicator", "message_expiry_interval", "correlation_data",
         "user_properties"),
        content_type=TEXT, response_topic=TEXT, payload_format_indicator=WHOLE, message_expiry_interval=WHOLE,
        correlation_data={"type": "string", "description": "base64"}, user_properties=listed(listed(TEXT)),
    ),
    "Message": record(_CONTENT, **_MESSAGE),
    "QueuedMessage": record(_CONTENT, **_MESSAGE, filter=TEXT),
    "InflightMessage": record(
        packet_id=WHOLE, qos=WHOLE, released=FLAG, filter=TEXT, message=maybe(ref("Message"))
    ),
    "Session": record(**_SESSION),
    "Client": record(
        **_SESSION, claims={"type": "object"}, credential_expires_at=maybe(TIME), vouched_by=maybe(TEXT),
        certificate=maybe(TEXT),
    ),
    "Subscription": record(**_SUBSCRIPTION),
    "Subscriber": record(**_SUBSCRIPTION, connected=FLAG, why=TEXT, denied_by=maybe(TEXT)),
    "SharedGroup": record(
        filter=TEXT, share=TEXT, topic_filter=TEXT, strategy=TEXT, members=WHOLE, online=WHOLE, queued=WHOLE,
        queued_bytes=WHOLE,
    ),
    "Listener": record(
        name=TEXT, type=TEXT, address=TEXT, connections=WHOLE, max_connections=WHOLE
    ),
    "Hook": record(
        name=TEXT, outcomes=mapped(WHOLE), timed=WHOLE, seconds=SECONDS, queue=WHOLE, dropped=WHOLE, last_error=TEXT
    ),
    "Plugin": record(
        id=TEXT, use=TEXT, version=TEXT, listeners=maybe(listed(TEXT)), filters=maybe(listed(TEXT)), disabled=TEXT,
        circuit_open=FLAG, hooks=listed(ref("Hook")),
    ),
    "QueueSummary": record(**_QUEUE, groups=listed(record(**_QUEUE_GROUP))),
    "Queue": record(
        **_QUEUE, settings={"type": "object", "description": "the settings, as in the configuration of the plugin"},
        groups=listed(record(**_QUEUE_GROUP, consumers=listed(record(
            client_id=TEXT, filter=TEXT, unacknowledged=WHOLE,
            timed_out={
                "type": "integer", "description": "messages that timed out since the consumer last settled one",
            },
            stalled=FLAG,
            active={
                "type": "boolean", "description": "false while it waits for the active consumer of its group to leave",
            },
        )))),
    ),
    "PeekedMessage": record(
        _CONTENT, offset=WHOLE, deliveries=WHOLE, client_id=maybe(TEXT), due=maybe(TIME), **_MESSAGE,
        state={"type": "string", "enum": ["waiting", "delayed", "unacknowledged"]},
    ),
    "Redrive": record(
        state={"type": "string", "enum": ["idle", "running", "done", "stopped", "failed"]}, examined=WHOLE, total=WHOLE,
        moved=WHOLE, skipped=WHOLE, note={"type": "string", "description": "why the last message was skipped"},
        waiting_for={"type": "string", "description": "the full queue for which the redrive waits, or empty"},
        started_at=maybe(TIME), ended_at=maybe(TIME),
    ),
    "Cluster": record(
        name=TEXT, node={"type": "string", "description": "the node that answers"},
        state={"type": "string", "enum": [
            "joining", "ready", "isolated", "draining", "drained", "returning", "leaving",
        ]},
        problem={"type": "string", "description": "why the last drain did not succeed, or empty"},
        lease={"type": "number", "description": "seconds after which a silent node counts as dead"},
        lease_age={"type": ["number", "null"], "description": "seconds since the lease of the node was last renewed"},
        members=listed(record(node=TEXT, address=TEXT)),
        lanes=listed(record(
            name=TEXT, owner={"type": "string", "description": "the node that owns the lane, or empty"},
            live={"type": "boolean", "description": "whether the owner is alive"},
            sessions={"type": ["integer", "null"], "description": "durable sessions; null if another node has the lane"},
            bytes={"type": ["integer", "null"], "description": "size of the state; null if another node has the lane"},
        )),
    ),
    "Sink": record(
        name=TEXT, driver=TEXT, topics=listed(TEXT),
        state={"type": "string", "enum": ["starting", "active", "retrying", "failed", "paused", "disabled"]},
        reason={"type": "string", "description": "why the sink is retrying, failed or disabled, or empty"},
        exactly_once=FLAG, cursor=WHOLE, end=WHOLE,
        lag={"type": "integer", "description": "messages that are not done"},
        lag_seconds={"type": ["number", "null"], "description": "age of the oldest message that is not done"},
        bytes=WHOLE, max_bytes=WHOLE, on_full=TEXT, full=FLAG, dead_letters=WHOLE,
        counts=mapped({"type": "number"}), driver_counts=mapped({"type": "number"}),
        lanes=listed(record(
            state=TEXT, reason=TEXT,
            waiting={"type": "integer", "description": "messages in memory that are not done"},
            oldest={"type": ["number", "null"], "description": "age of the first of them in seconds"},
        )),
        last_error={"type": "string", "description": "the last reason since the broker started, or empty"},
        last_error_at=maybe(TIME),
    ),
    "SinkDeadLetter": record(
        ("payload",), number=WHOLE, id=TEXT, offset=WHOLE, topic=TEXT, bytes=WHOLE, payload={"type": "object"},
        client_id=maybe(TEXT), key=maybe(TEXT), reason=TEXT, at=TIME,
        event={"type": "string", "description": "type of the event, if the sink sends events, or empty"},
    ),
    "SinkDelivery": record(
        id=TEXT, event=TEXT, at=TIME, seconds={"type": "number"}, attempt=WHOLE,
        result={"type": "string", "enum": ["arrived", "again", "refused", "gone"]},
        reason={"type": "string", "description": "why the event did not arrive, or empty"},
    ),
    "Source": record(
        name=TEXT, driver=TEXT, identity=TEXT,
        state={"type": "string", "enum": ["starting", "active", "retrying", "failed", "paused"]},
        reason={"type": "string", "description": "why the source is retrying or failed, or empty"},
        dead_letters=WHOLE, counts=mapped({"type": "number"}), process_counts=mapped({"type": "number"}),
        origin_counts=mapped({"type": "number"}),
    ),
    "Stream": record(
        plugin=TEXT, name=TEXT, kind={"type": "string", "enum": ["log", "queue"]}, messages=WHOLE, bytes=WHOLE,
        oldest={"type": ["number", "null"], "description": "approximate age of the oldest message in seconds"},
        consumers=listed(record(
            name=TEXT, lag={"type": "integer", "description": "messages that it has not committed"},
            committed_at=maybe(TIME),
            lag_seconds={
                "type": ["number", "null"], "description": "age of the oldest message that it has not committed",
            },
            declared={"type": ["boolean", "null"], "description": "whether messages are kept for it"},
            dead_letters={
                "type": ["integer", "null"], "description": "messages that it could not process, as it has reported",
            },
        )),
        error={"type": "string", "description": "why the consumers are unknown; otherwise empty"},
        max_bytes={"type": ["integer", "null"], "description": "the size at which the stream is full"},
        full={"type": "boolean", "description": "whether messages are refused, or were within the last minute"},
        refused={"type": "integer", "description": "messages refused because it was full, since the broker started"},
        dropped={"type": "integer", "description": "messages removed before a consumer had committed them"},
        partitions=listed({"type": "integer", "description": "messages in a partition"}),
    ),
    "Overview": record(
        version=TEXT, time=TIME, started_at=TIME, uptime=SECONDS, connections=WHOLE, sessions=WHOLE,
        subscriptions=WHOLE, retained_messages=WHOLE,
        queue_bytes={"type": "integer", "description": "bytes of queued messages"},
        rates=mapped({"type": "number", "description": "per second, between the last two samples"}),
        dropped=mapped({"type": "number", "description": "messages since the broker started"}),
        loop_lag={"type": "number", "description": "by how many seconds the event loop was late at the last sample"},
        latency=record(**dict.fromkeys(LATENCIES, _LATENCY)),
    ),
    "SlowClients": record(
        items=listed(record(
            client_id=TEXT, connected=FLAG, listener=TEXT, address=TEXT, queued=WHOLE, queued_bytes=WHOLE,
            inflight=WHOLE, receive_maximum=WHOLE,
            oldest={"type": ["number", "null"], "description": "age in seconds of the oldest message that waits"},
        )),
        cursor={"type": "string", "description": "for the next sessions; empty after the last ones"},
        examined=WHOLE,
    ),
    "HotTopics": record(
        running=FLAG, filter=TEXT, levels=WHOLE, started_at=TIME, seconds=SECONDS,
        listened={"type": "number", "description": "seconds during which messages were counted"}, messages=WHOLE,
        topics=listed(record(topic=TEXT, **_COUNTED, rate={"type": "number", "description": "messages per second"})),
    ),
    "Drops": record(
        running=FLAG, started_at=TIME, reasons=mapped(WHOLE), recorded=WHOLE,
        clients=listed(record(client_id=TEXT, **_COUNTED)), topics=listed(record(topic=TEXT, **_COUNTED)),
        samples=listed(record(
            time=TIME, reason=TEXT, direction=TEXT, client_id=maybe(TEXT), listener=TEXT, topic=TEXT, qos=WHOLE,
            bytes=WHOLE, sender=maybe(TEXT), detail=TEXT,
        )),
    ),
    "History": record(
        interval={"type": "number", "description": "seconds between two samples"}, times=listed(TIME),
        series=mapped(listed({
            "type": ["number", "null"],
            "description": "counters are totals since the start; loop_lag and latencies are in seconds, and a latency "
                           "is null in a sample without values",
        })),
    ),
    "Change": record(path=TEXT, old=TEXT, new=TEXT),
    "Backup": record(
        state={"type": "string", "enum": ["none", "running", "done", "failed"]}, target=maybe(TEXT),
        started_at=maybe(TIME), ended_at=maybe(TIME),
        progress={"type": "number", "description": "the copied part, from 0 to 1"}, bytes=WHOLE, error=TEXT,
    ),
    "Drain": record(
        draining=FLAG, waiting={"type": "integer", "description": "clients that are not disconnected yet"},
        connections={"type": "integer", "description": "open connections of the MQTT listeners"},
    ),
    "LogLevel": record(
        level={"type": "string", "description": "the level in force"},
        configured={"type": "string", "description": "the level after the next reload or restart"},
    ),
    "ConfigCheck": record(
        valid=FLAG,
        mistakes=listed(record(message=TEXT, line=WHOLE, column=WHOLE, hint=TEXT)),
        changes=maybe(ref("Reload")),
    ),
    "Reload": record(applied=listed(ref("Change")), needs_restart=listed(ref("Change"))),
    "Rule": record(
        ("allow", "deny", "qos", "retain"), id=WHOLE, allow=listed(TEXT), deny=listed(TEXT), topic=listed(TEXT),
        qos=WHOLE, retain=FLAG,
    ),
    "User": record(
        **_ACCOUNT, rules=listed(ref("Rule")), created_at=TIME, changed_at=TIME, revision=WHOLE, enabled=FLAG,
        groups=listed(TEXT), has_password=FLAG,
    ),
    "Group": record(
        **_ACCOUNT, rules=listed(ref("Rule")), created_at=TIME, changed_at=TIME, revision=WHOLE
    ),
    "ExportedRule": record(
        ("allow", "deny", "qos", "retain"), allow=listed(TEXT), deny=listed(TEXT), topic=listed(TEXT), qos=WHOLE,
        retain=FLAG,
    ),
    "ExportedUser": record(
        ("hash",), **_ACCOUNT, rules=listed(ref("ExportedRule")), enabled=FLAG, groups=listed(TEXT), hash=TEXT
    ),
    "ExportedGroup": record(**_ACCOUNT, rules=listed(ref("ExportedRule"))),
    "Accounts": record(
        version=WHOLE, groups=listed(ref("ExportedGroup")), users=listed(ref("ExportedUser"))
    ),
    "PluginDecision": record(
        plugin={"type": "string", "description": "the plugin id; empty for a default"}, rule=TEXT, reason=TEXT,
        verdict={"type": "string", "enum": ["accept", "allow", "deny", "undecided", "abstain"]}, code=maybe(WHOLE),
        max_qos=maybe(WHOLE), identity=maybe(TEXT), claims={"type": "object"},
    ),
    "Access": record(
        allowed=FLAG, decided=FLAG, plugin=TEXT, rule=TEXT, why=TEXT, plugins=listed(ref("PluginDecision")),
        client=record(
            client_id=TEXT, identity=maybe(TEXT), vouched_by=maybe(TEXT), listener=TEXT, online=FLAG
        ),
    ),
    "Credentials": record(
        accepted=FLAG, decided=FLAG, identity=maybe(TEXT), plugin=TEXT, rule=TEXT, why=TEXT,
        plugins=listed(ref("PluginDecision")),
    ),
    "Token": record(
        id=TEXT, name=TEXT, role=TEXT, identity=TEXT, created_at=TIME, created_by=TEXT, expires_at=maybe(TIME)
    ),
    "NewToken": record(
        id=TEXT, name=TEXT, role=TEXT, identity=TEXT, created_at=TIME, created_by=TEXT, expires_at=maybe(TIME),
        token={"type": "string", "description": "the token itself, shown only once"},
    ),
    "AuditEntry": record(
        number=WHOLE, time=TIME, token=TEXT, name=TEXT, role=TEXT, address=TEXT, action=TEXT,
        arguments={"type": "object"}, status=WHOLE, result=TEXT,
    ),
}  # fmt: skip
"""The schemas that routes refer to, by name."""
