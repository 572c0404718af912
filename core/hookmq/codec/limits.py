"""What a peer may make us hold."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one incoming packet.

    `max_packet_size` counts the whole packet in bytes, fixed header included, as Maximum Packet Size does; beyond it the
    error is 0x95. `max_user_properties` (per packet, the Will's included) and `max_filters` (per SUBSCRIBE or
    UNSUBSCRIBE) bound what few bytes can make many objects of; beyond them the error is 0x97. `strict_text` refuses
    control characters and non-characters in strings with 0x81.
    """

    max_packet_size: int = 268_435_460
    max_user_properties: int = 64
    max_filters: int = 1024
    strict_text: bool = False


DEFAULT_LIMITS: Final = Limits()
"""The largest packet that MQTT can express, and counts that no honest client reaches."""
