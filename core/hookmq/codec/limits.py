"""What a peer may make us hold."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one incoming packet.

    `max_packet_size` counts the whole packet in bytes, fixed header included, as Maximum Packet Size does; beyond it the
    error is 0x95. `max_user_properties` (per packet, the Will's included) and `max_filters` (per SUBSCRIBE or
    UNSUBSCRIBE) bound what few bytes can make many objects of; beyond them the error is 0x97.
    """

    max_packet_size: int = 268_435_460
    max_user_properties: int = 64
    max_filters: int = 1024


DEFAULT_LIMITS: Final = Limits()
"""The largest packet that MQTT can express, and counts that no honest client reaches."""
