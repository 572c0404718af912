"""Hypothesis strategies for messages and records of every kind."""

from typing import Any

from hookmq.plugin import (
    EMPTY,
    Certificate,
    ClientRecord,
    Message,
    Peer,
    Properties,
    ReasonCode,
    Subscription,
    Will,
)
from hookmq.storage_api import (
    Dequeue,
    DropPublisher,
    DropReceived,
    DropRetained,
    DropSession,
    DropState,
    DropSubscription,
    Enqueue,
    PutMessage,
    PutPublisher,
    PutReceived,
    PutRetained,
    PutSession,
    PutState,
    PutSubscription,
    SessionRecord,
    SetPacket,
)
from hypothesis import strategies as st

TEXT = st.text(max_size=8)
NAMES = st.text(min_size=1, max_size=8)
ODD_TEXT = st.text(st.characters(categories=None), max_size=8)
"""Text that may have lone surrogates, as plugins can produce it."""
TIMES = st.floats(0, 1e12)
IDS = st.integers(0, (1 << 63) - 1)
PACKET_IDS = st.integers(0, 65535)
MQTT_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
OWNERS = st.builds(lambda kind, name: kind + name, st.sampled_from(["c/", "g/"]), TEXT)
PROPERTIES = st.one_of(
    st.just(EMPTY),
    st.fixed_dictionaries(
        {},
        optional={
            "payload_format_indicator": st.integers(0, 1),
            "message_expiry_interval": st.integers(0, 0xFFFFFFFF),
            "content_type": MQTT_TEXT,
            "response_topic": MQTT_TEXT,
            "correlation_data": st.binary(max_size=8),
            "user_property": st.lists(st.tuples(MQTT_TEXT, MQTT_TEXT), min_size=1, max_size=3),
            "subscription_identifier": st.lists(st.integers(1, 268435455), min_size=1, max_size=3),
        },
    ).map(lambda given: Properties(**given)),
)
MESSAGES = st.builds(
    Message, NAMES, st.binary(max_size=20), st.integers(0, 2), st.booleans(), PROPERTIES, st.none() | ODD_TEXT,
    TEXT, TIMES, st.none() | TIMES,
)  # fmt: skip
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ODD_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT, inner, max_size=3),
    max_leaves=5,
)
CERTIFICATES = st.builds(
    Certificate, ODD_TEXT, ODD_TEXT, st.lists(ODD_TEXT, max_size=2).map(tuple), ODD_TEXT
)
PEERS = st.builds(Peer, ODD_TEXT, PACKET_IDS, TEXT, st.none() | CERTIFICATES)
CLIENTS = st.builds(
    ClientRecord, TEXT, st.integers(0, 5), st.none() | ODD_TEXT, st.none() | ODD_TEXT,
    st.dictionaries(ODD_TEXT, JSON, max_size=3), st.none() | ODD_TEXT, PEERS, TEXT, TEXT, st.booleans(), PACKET_IDS,
    TIMES, st.none() | TIMES, st.sampled_from(ReasonCode),
)  # fmt: skip
SESSIONS = st.builds(
    SessionRecord, CLIENTS, st.floats(0, allow_nan=False), st.dictionaries(TEXT, st.integers(), max_size=2),
    st.none() | TIMES, st.none() | st.builds(Will, MESSAGES, st.integers(0, 0xFFFFFFFF)), st.none() | TIMES,
    st.lists(TEXT, max_size=2).map(tuple),
)  # fmt: skip
SUBSCRIPTIONS = st.builds(
    Subscription, NAMES, NAMES, st.integers(0, 2), st.booleans(), st.booleans(), st.integers(0, 2),
    st.none() | st.integers(1, 268435455), st.none() | TEXT,
)  # fmt: skip
SEQS = st.integers(-(1 << 62), 1 << 62)
ENTRIES = st.builds(
    Enqueue, OWNERS, SEQS, IDS, st.integers(0, 2), IDS, st.booleans(),
    st.lists(st.integers(1, 268435455), max_size=2).map(tuple), TEXT, PACKET_IDS, st.booleans(), TEXT,
)  # fmt: skip
RECORDS = st.one_of(
    st.builds(PutSession, SESSIONS),
    st.builds(DropSession, TEXT),
    st.builds(PutSubscription, TEXT, SUBSCRIPTIONS),
    st.builds(DropSubscription, TEXT, TEXT),
    st.builds(PutMessage, IDS, MESSAGES),
    ENTRIES,
    st.builds(SetPacket, OWNERS, SEQS, PACKET_IDS, st.booleans()),
    st.builds(Dequeue, OWNERS, SEQS),
    st.builds(PutReceived, TEXT, PACKET_IDS),
    st.builds(DropReceived, TEXT, PACKET_IDS),
    st.builds(PutPublisher, IDS, CLIENTS),
    st.builds(DropPublisher, IDS),
    st.builds(PutRetained, MESSAGES, IDS),
    st.builds(DropRetained, TEXT),
    st.builds(PutState, TEXT, ODD_TEXT, st.binary(max_size=8), st.none() | TIMES),
    st.builds(DropState, TEXT, ODD_TEXT),
)
