"""Limits on the memory that a single packet can use."""

from dataclasses import dataclass
from typing import Final

LARGEST_PACKET: Final = 268_435_460
"""The size in bytes of the largest packet that MQTT allows."""


@dataclass(frozen=True, slots=True)
class PacketLimits:
    """Limits on one incoming packet.

    - `max_packet_size`: bytes including the fixed header, as in Maximum Packet Size. Larger packets fail with 0x95.
    - `max_user_properties`: user properties in one packet, including the will's. More fail with 0x97.
    - `max_filters`: filters in one SUBSCRIBE or UNSUBSCRIBE. More fail with 0x97.
    - `strict_text`: whether control characters and non-characters in strings fail with 0x81.
    """

    max_packet_size: int = LARGEST_PACKET
    max_user_properties: int = 64
    max_filters: int = 1024
    strict_text: bool = False


DEFAULT_LIMITS: Final = PacketLimits()
"""The largest packet size that MQTT allows, and generous limits on counts."""
