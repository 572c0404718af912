"""Publish to a HookMQ broker's queues, consume from them, and run workers, with asyncio."""

from hookmq_queues_client.client import Client, Queue
from hookmq_queues_client.consumer import Consumer
from hookmq_queues_client.errors import (
    AlreadySettled,
    BrokerUnavailable,
    ConnectionLost,
    ConnectionRefused,
    NotAuthorized,
    NotAvailable,
    QueueClientError,
    QueueFull,
    Refused,
    UnknownQueue,
)
from hookmq_queues_client.message import DeadLetter, Message
from hookmq_queues_client.options import Backoff
from hookmq_queues_client.worker import Reject, Retry, Worker

__all__ = [
    "AlreadySettled",
    "Backoff",
    "BrokerUnavailable",
    "Client",
    "ConnectionLost",
    "ConnectionRefused",
    "Consumer",
    "DeadLetter",
    "Message",
    "NotAuthorized",
    "NotAvailable",
    "Queue",
    "QueueClientError",
    "QueueFull",
    "Refused",
    "Reject",
    "Retry",
    "UnknownQueue",
    "Worker",
]
