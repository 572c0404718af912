"""Handle AUTH packets [MQTT-4.12.0-2], and re-authenticate clients on open connections [MQTT-4.12.1-1]."""

from dataclasses import replace

from hookmq.broker.connection import ClientConnection
from hookmq.broker.connection_state import Phase
from hookmq.broker.handlers.established import connect_of, session_of
from hookmq.broker.handlers.session_open import identify, report_failed, watch_credential
from hookmq.broker.handlers.session_owner import voucher
from hookmq.broker.sessions.revocation import revoke
from hookmq.broker.sessions.session_record import record
from hookmq.hooks.call import NOTES, run_auth
from hookmq.hooks.verdicts import Accept, Challenge, Deny
from hookmq.mqtt.encoder import encode
from hookmq.mqtt.errors import ProtocolError
from hookmq.mqtt.packets import Auth, Packet
from hookmq.mqtt.properties import Properties
from hookmq.mqtt.reason_codes import ReasonCode
from hookmq.session.session import Session


def check_method(connection: ClientConnection, packet: Auth) -> None:
    """Raise ProtocolError unless AUTH uses the same authentication method as CONNECT."""
    method = connect_of(connection).properties.authentication_method
    if method is None:  # [MQTT-4.12.0-7]
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH without a method in CONNECT")
    if packet.properties.authentication_method != method:  # [MQTT-4.12.0-5, 4.12.1-1]
        raise ProtocolError(
            ReasonCode.PROTOCOL_ERROR, "AUTH with another authentication method than CONNECT"
        )


def send_auth(connection: ClientConnection, code: ReasonCode, data: bytes = b"") -> None:
    """Send AUTH [MQTT-4.12.0-2, 4.12.0-5]. Disconnect the client if the packet is too large: AUTH has no Reason String
    or User Property that could be left out [MQTT-3.15.2-2, 3.15.2-3]."""
    method = connect_of(connection).properties.authentication_method
    properties = Properties(authentication_method=method, authentication_data=data or None)
    packet = encode(Auth(code, properties), 5)
    if len(packet) > connection.max_packet_size:  # [MQTT-3.1.2-24]
        connection.disconnect(ReasonCode.PACKET_TOO_LARGE, "AUTH exceeds Maximum Packet Size")
        return
    connection.send(packet)


def on_re_auth(connection: ClientConnection, packet: Packet) -> None:
    """Handle AUTH on an open connection: re-authenticate the client while its other packets are handled
    [MQTT-4.12.1-1]."""
    assert isinstance(packet, Auth)
    check_method(connection, packet)
    begun = connection.re_authenticating
    expected = ReasonCode.CONTINUE_AUTHENTICATION if begun else ReasonCode.RE_AUTHENTICATE
    if packet.code != expected or connection.re_authentication is not None:
        # The client must also wait for the reply to its last AUTH.
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"unexpected AUTH 0x{packet.code:02X}")
    connection.re_authenticating = True
    session = session_of(connection)
    client = session.client

    def answered(verdict: Challenge | Accept | Deny | None, by: str) -> None:
        connection.re_authentication = None
        if connection.phase is not Phase.OPEN:
            return
        if isinstance(verdict, Challenge):
            send_auth(connection, ReasonCode.CONTINUE_AUTHENTICATION, verdict.data)
        elif isinstance(verdict, Accept):
            connection.re_authenticating = False
            _renew(connection, session, verdict, by)
            send_auth(connection, ReasonCode.SUCCESS, verdict.data or b"")
            # The client may be another user now, or have other permissions.
            revoke(connection.state, client.client_id, None)
        else:  # [MQTT-4.12.1-2]
            denied = verdict or Deny(ReasonCode.BAD_AUTHENTICATION_METHOD)
            report_failed(connection, client, denied, by)
            connection.disconnect(denied.code, denied.reason or "")

    connection.re_authentication = run_auth(
        connection.state.runtime, connection.chains.on_auth, (client, packet), answered
    )


def _renew(connection: ClientConnection, session: Session, accept: Accept, by: str) -> None:
    client = session.client
    if accept.claims is not None:
        # Notes from plugins that were not asked this time remain valid.
        noted = {k: v for k, v in client.claims.items() if k.startswith(NOTES) and k != NOTES + by}
        if noted:
            accept = replace(accept, claims={**accept.claims, **noted})
    if accept.identity is not None and accept.identity != client.identity:
        client.vouched_by = voucher(client, by)
    identify(client, accept)
    if session.recorded:
        # Record the new identity, so that the session also belongs to it after a restart.
        connection.state.committer.add(record(session))
        connection.state.writes.schedule()
    connection.forget_decisions()
    watch_credential(connection, client)
