"""The state machine of a connection: (phase, packet type) -> handler. A pair that is not here is a protocol error.

NEW knows only CONNECT [MQTT-3.1.0-1]. While DECIDING every packet is held. CHALLENGED takes AUTH and DISCONNECT alone
[MQTT-3.1.2-30]. OPEN takes all that a client may send but CONNECT [MQTT-3.1.0-2].
"""

from typing import Final

from hookmq.broker import authenticate, handshake, inbound, subscribe
from hookmq.broker.channel import Phase
from hookmq.broker.link import Link, Table
from hookmq.codec import Disconnect, Packet
from hookmq.reason import PacketType, ReasonCode
from hookmq.types import DisconnectReason, EndedBy


def _gave_up(connection: Link, packet: Packet) -> None:
    assert isinstance(packet, Disconnect)
    connection.end(DisconnectReason(ReasonCode(packet.code), EndedBy.CLIENT))


TABLE: Final[Table] = {
    (Phase.NEW, PacketType.CONNECT): handshake.on_connect,
    (Phase.CHALLENGED, PacketType.AUTH): handshake.on_auth,
    (Phase.CHALLENGED, PacketType.DISCONNECT): _gave_up,
    (Phase.OPEN, PacketType.PUBLISH): inbound.on_publish,
    (Phase.OPEN, PacketType.PUBACK): inbound.on_puback,
    (Phase.OPEN, PacketType.PUBREC): inbound.on_pubrec,
    (Phase.OPEN, PacketType.PUBREL): inbound.on_pubrel,
    (Phase.OPEN, PacketType.PUBCOMP): inbound.on_pubcomp,
    (Phase.OPEN, PacketType.SUBSCRIBE): subscribe.on_subscribe,
    (Phase.OPEN, PacketType.UNSUBSCRIBE): subscribe.on_unsubscribe,
    (Phase.OPEN, PacketType.PINGREQ): inbound.on_pingreq,
    (Phase.OPEN, PacketType.DISCONNECT): inbound.on_disconnect,
    (Phase.OPEN, PacketType.AUTH): authenticate.on_re_auth,
}
"""All transitions. In the OPEN phase the first three kinds and PUBREL also have a fast path in `Link`."""
