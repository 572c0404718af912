"""The state machine of a connection: (phase, packet type) -> handler. Any other pair is a protocol error.

NEW allows only CONNECT [MQTT-3.1.0-1]. In DECIDING every packet is held. CHALLENGED allows AUTH and DISCONNECT
[MQTT-3.1.2-30]. OPEN allows every packet that a client may send except CONNECT [MQTT-3.1.0-2].
"""

from typing import Final

from hookmq.broker.connection import Table
from hookmq.broker.connection_state import Phase
from hookmq.broker.handlers import acks, auth, connect, publish, subscribe
from hookmq.mqtt.reason_codes import PacketType

DISPATCH: Final[Table] = {
    (Phase.NEW, PacketType.CONNECT): connect.on_connect,
    (Phase.CHALLENGED, PacketType.AUTH): connect.on_auth,
    (Phase.CHALLENGED, PacketType.DISCONNECT): connect.on_early_disconnect,
    (Phase.OPEN, PacketType.PUBLISH): publish.on_publish,
    (Phase.OPEN, PacketType.PUBACK): acks.on_puback,
    (Phase.OPEN, PacketType.PUBREC): acks.on_pubrec,
    (Phase.OPEN, PacketType.PUBREL): acks.on_pubrel,
    (Phase.OPEN, PacketType.PUBCOMP): acks.on_pubcomp,
    (Phase.OPEN, PacketType.SUBSCRIBE): subscribe.on_subscribe,
    (Phase.OPEN, PacketType.UNSUBSCRIBE): subscribe.on_unsubscribe,
    (Phase.OPEN, PacketType.PINGREQ): acks.on_pingreq,
    (Phase.OPEN, PacketType.DISCONNECT): acks.on_disconnect,
    (Phase.OPEN, PacketType.AUTH): auth.on_re_auth,
}
"""All transitions. In the OPEN phase, PUBLISH and acknowledgements also have a fast path in `PacketReader`."""
