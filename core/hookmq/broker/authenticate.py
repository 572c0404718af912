"""Enhanced authentication on an open connection, and the AUTH packets of both kinds [MQTT-4.12.0-2, 4.12.1-1]."""

from dataclasses import replace

from hookmq.broker.attach import identify, tell_failed, voucher, watch_credential
from hookmq.broker.channel import Phase
from hookmq.broker.link import Link
from hookmq.broker.revoke import revoke
from hookmq.broker.sessions import record
from hookmq.codec import Auth, Connect, Packet, encode
from hookmq.errors import ProtocolError
from hookmq.hooks.run import NOTES, run_auth
from hookmq.hooks.verdicts import Accept, Challenge, Deny
from hookmq.properties import Properties
from hookmq.reason import ReasonCode


def check_method(connection: Link, packet: Auth) -> None:
    connect = connection.connect
    assert isinstance(connect, Connect)
    method = connect.properties.authentication_method
    if method is None:  # [MQTT-4.12.0-7]
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, "AUTH without a method in CONNECT")
    if packet.properties.authentication_method != method:  # [MQTT-4.12.0-5, 4.12.1-1]
        raise ProtocolError(
            ReasonCode.PROTOCOL_ERROR, "another authentication method than in CONNECT"
        )


def send_auth(connection: Link, code: ReasonCode, data: bytes = b"") -> None:
    """Send AUTH of ours [MQTT-4.12.0-2, 4.12.0-5]. It never carries a Reason String or User Properties that might make it
    too large [MQTT-3.15.2-2, 3.15.2-3]; where it is too large without them, the exchange cannot go on."""
    connect = connection.connect
    assert isinstance(connect, Connect)
    properties = Properties(
        authentication_method=connect.properties.authentication_method,
        authentication_data=data or None,
    )
    packet = encode(Auth(code, properties), 5)
    if len(packet) > connection.max_packet_size:  # [MQTT-3.1.2-24]
        connection.disconnect(ReasonCode.PACKET_TOO_LARGE, "AUTH is above the client's maximum")
        return
    connection.send(packet)


def on_re_auth(connection: Link, packet: Packet) -> None:
    """AUTH on an open connection: re-authentication, while other traffic goes on [MQTT-4.12.1-1]."""
    assert isinstance(packet, Auth)
    check_method(connection, packet)
    begun = connection.re_authenticating
    expected = ReasonCode.CONTINUE_AUTHENTICATION if begun else ReasonCode.RE_AUTHENTICATE
    if packet.code != expected or connection.re_authentication is not None:
        # Also one step at a time: the client answers when it was asked.
        raise ProtocolError(ReasonCode.PROTOCOL_ERROR, f"AUTH 0x{packet.code:02X} out of turn")
    connection.re_authenticating = True
    assert connection.client is not None
    client_id = connection.client.client_id

    def answered(verdict: Challenge | Accept | Deny | None, by: str) -> None:
        connection.re_authentication = None
        if connection.phase is not Phase.OPEN:
            return
        if isinstance(verdict, Challenge):
            send_auth(connection, ReasonCode.CONTINUE_AUTHENTICATION, verdict.data)
        elif isinstance(verdict, Accept):
            connection.re_authenticating = False
            _renew(connection, verdict, by)
            send_auth(connection, ReasonCode.SUCCESS, verdict.data or b"")
            # It may be somebody else now, or somebody with other rights.
            revoke(connection.core, client_id, None)
        else:  # [MQTT-4.12.1-2]
            denied = verdict or Deny(ReasonCode.BAD_AUTHENTICATION_METHOD)
            tell_failed(connection, denied, by)
            connection.disconnect(denied.code, denied.reason or "")

    step = run_auth(
        connection.core.runtime,
        connection.chains.on_auth,
        (connection.client, packet),
        answered,
    )
    if step is not None:
        connection.re_authentication = step


def _renew(connection: Link, accept: Accept, by: str) -> None:
    client = connection.client
    session = connection.session
    assert client is not None
    assert session is not None
    if accept.claims is not None:
        # What others noted when the client connected still holds: they were not asked.
        noted = {k: v for k, v in client.claims.items() if k.startswith(NOTES) and k != NOTES + by}
        if noted:
            accept = replace(accept, claims={**accept.claims, **noted})
    if accept.identity is not None and accept.identity != client.identity:
        client.vouched_by = voucher(client, by)
    identify(client, accept)
    if session.recorded:
        # After a restart the session must belong to the client as it is known now.
        connection.core.committer.add(record(session))
        connection.core.schedule()
    connection.forget_decisions()
    watch_credential(connection)
