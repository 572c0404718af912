"""Routes for subscriptions, retained messages, shared subscriptions, and publishing."""

from base64 import b64decode
from dataclasses import replace
from typing import Any, Final

from hookmq.mqtt_api import parse_share, validate_filter
from hookmq.plugin import (
    EMPTY,
    Action,
    ClientInfo,
    Deny,
    PluginError,
    Properties,
    Subscription,
)

from hookmq_admin import shown
from hookmq_admin.errors import ApiError
from hookmq_admin.fields import FILTER, MESSAGES, PAGED, QOS, TOPIC, Field
from hookmq_admin.schemas import WHOLE, paged, record, ref
from hookmq_admin.services import Call, Route
from hookmq_admin.tail import tail
from hookmq_admin.tokens import Role

MAX_PAYLOAD: Final = 1 << 20
"""Maximum number of payload bytes that `getRetained` shows."""


def _optional_filter(text: str) -> None:
    if text:
        validate_filter(text)


def _base64(text: str) -> None:
    b64decode(text, validate=True)


def _no_share(text: str) -> None:
    validate_filter(text)
    if parse_share(text)[0] is not None:
        raise ValueError("expected a filter without $share")


# fmt: off
PLUGGED: Final = replace(FILTER, check=_no_share)
PUBLISHED: Final = {
    "topic": TOPIC,
    "payload": Field("string", "the payload as text", default="", maximum=1 << 24),
    "payload_base64": Field("string", "the payload as base64, in place of `payload`", check=_base64, maximum=1 << 24),
    "qos": QOS,
    "retain": Field("boolean", "whether to retain the message", default=False),
    "content_type": Field("string", "the content type"),
    "response_topic": replace(TOPIC, required=False, help="the response topic"),
    "message_expiry_interval": Field("integer", "seconds after which it expires", minimum=0, maximum=0xFFFFFFFF),
    "user_properties": Field("map", "the user properties"),
}
SUBSCRIBED: Final = {
    **PAGED,
    "client_id": Field("string", "only subscriptions of this client", default=""),
    "filter": Field("string", "only subscriptions that overlap this filter", default="", check=_optional_filter),
}
# fmt: on


async def subscriptions(call: Call) -> Any:
    """Return a page of subscriptions."""
    given = call.arguments
    page = call.broker.subscriptions(
        *call.paging(), client_id=given["client_id"], filter=given["filter"]
    )
    return shown.page(page, [shown.subscription(one) for one in page.items])


async def subscribers(call: Call) -> Any:
    """Return a page of the subscriptions that match a topic, and explain why each one matches."""
    page = call.broker.subscriptions(*call.paging(), filter=call.arguments["topic"])
    found = []
    for one in page.items:
        session = call.broker.session(one.client_id)
        share = one.subscription.share
        why = "its subscription matches the topic"
        if share is not None:
            why = f"it is a member of the shared subscription {one.subscription.filter}; one member gets the message"
        connected = session is not None and session.connected
        client = call.broker.client(one.client_id)
        denied = None if client is None else await _denied(call, client, one.subscription)
        found.append(
            {**shown.subscription(one), "connected": connected, "why": why, "denied_by": denied}
        )
    return shown.page(page, found)


async def _denied(call: Call, client: ClientInfo, subscription: Subscription) -> str | None:
    """Return the plugin and rule that would deny a QoS 0 message to an online client. Return None if nothing would."""
    topic = call.arguments["topic"]
    decisions = await call.broker.explain(client, Action.DELIVER, topic, subscription=subscription)
    for one in decisions:
        if isinstance(one.verdict, Deny):
            return f"{one.plugin}: {one.verdict.rule}" if one.verdict.rule else one.plugin
    return None


async def retained(call: Call) -> Any:
    """Return a page of retained messages."""
    page = call.broker.retained(call.arguments["filter"], *call.paging())
    return shown.page(page, [shown.message(one, payloads=call.payloads) for one in page.items])


async def retained_one(call: Call) -> Any:
    """Return the retained message for a topic."""
    page = call.broker.retained(call.arguments["topic"], limit=1)
    if not page.items:
        raise ApiError(404, "the topic has no retained message", "topic")
    return shown.message(page.items[0], payloads=call.payloads, most=MAX_PAYLOAD)


async def clear(call: Call) -> Any:
    """Clear retained messages."""
    return {"cleared": await call.broker.clear_retained(call.arguments["filter"])}


async def shared(call: Call) -> Any:
    """Return a page of shared subscriptions."""
    page = call.broker.shared_groups(*call.paging())
    return shown.page(page, [shown.group(one) for one in page.items])


async def publish(call: Call) -> Any:
    """Publish a message under the token's identity, and wait for the commit."""
    given = call.arguments
    payload: bytes = given["payload"].encode()
    if given["payload_base64"] is not None:
        if payload:
            raise ApiError(400, "give either payload or payload_base64", "payload_base64")
        payload = b64decode(given["payload_base64"])
    result = call.broker.publish_and_wait(
        given["topic"], payload, given["qos"], given["retain"], _properties(call), as_client=call.as_client()
    )  # fmt: skip
    try:
        return {"matched": await result}
    except PluginError as error:
        raise ApiError(403, f"the message was {error.message}") from None


def _properties(call: Call) -> Properties:
    names = ("content_type", "response_topic", "message_expiry_interval")
    found = {name: call.arguments[name] for name in names if call.arguments[name] is not None}
    user = call.arguments["user_properties"]
    if user:
        found["user_property"] = tuple(user.items())
    return Properties(**found) if found else EMPTY


_V, _O = Role.VIEWER, Role.OPERATOR
# fmt: off
ROUTES: Final = (
    Route("GET", "/subscriptions", "listSubscriptions", _V, "List subscriptions of all clients", subscriptions,
          paged("Subscription"), query=SUBSCRIBED, errors=(410,)),
    Route("GET", "/subscribers", "listSubscribers", _V, "List who gets the messages of a topic, and why", subscribers,
          paged("Subscriber"), query={"topic": TOPIC, **PAGED}, errors=(410,)),
    Route("GET", "/shared-subscriptions", "listSharedSubscriptions", _V, "List shared subscriptions", shared,
          paged("SharedGroup"), query=PAGED, errors=(410,)),
    Route("GET", "/retained", "listRetained", _V, "List retained messages", retained, paged("Message"),
          query={"filter": replace(PLUGGED, required=False, default="#"), **MESSAGES}, errors=(410,)),
    Route("GET", "/retained/message", "getRetained", _V, "Get the retained message of a topic", retained_one,
          ref("Message"), query={"topic": TOPIC}, errors=(404,)),
    Route("DELETE", "/retained", "clearRetained", _O, "Clear the retained messages that a filter matches", clear,
          record(cleared=WHOLE), query={"filter": PLUGGED}, change=True),
    Route("POST", "/publish", "publish", _O, "Publish a message in the name of the token", publish,
          record(matched=WHOLE), body=PUBLISHED, change=True, hidden=("payload", "payload_base64", "user_properties")),
    Route("GET", "/tail", "tail", _O, "Follow the messages of a filter, as server-sent events", tail,
          {"type": "string", "description": "the events `message` (a Message), `skipped` (how many) and `end`"},
          query={"filter": PLUGGED,  # a member of a shared subscription would take messages from the others
                 "retained": Field("boolean", "whether to begin with the retained messages", default=False),
                 "rate": Field("integer", "most messages per second", default=50, minimum=1, maximum=1000)},
          errors=(503,), streams=True),
)
# fmt: on
