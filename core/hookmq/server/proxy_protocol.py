"""PROXY protocol v1 and v2, which pass on a client's address (source: haproxy's proxy-protocol.txt).

The header precedes everything else, even TLS. The parser does no I/O. It returns how many bytes belong to the header, so
that its caller can leave the rest in the socket.
"""

from ipaddress import IPv4Address, IPv6Address
from typing import Final, Literal, NamedTuple

from hookmq.model.client import Certificate, Peer

Versions = Literal["v1", "v2", "any"]
SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
PREFIX: Final = b"PROXY "
V1_LIMIT: Final = 107
"""The length of the longest v1 header, including CR LF."""
V2_LIMIT: Final = 4096
"""The length of the longest v2 header we accept. The format allows 65551 bytes; real headers have a few hundred."""
_TLV_SSL: Final = 0x20
_TLV_SSL_CN: Final = 0x22
_CLIENT_CERTIFICATE: Final = 0x06
"""PP2_CLIENT_CERT_CONN and PP2_CLIENT_CERT_SESS."""


class ProxyError(ValueError):
    """Raised for bytes that are not a PROXY header of an accepted version."""


class ProxyHeader(NamedTuple):
    """A parsed header. For LOCAL and UNKNOWN, as in health checks, `source` is None: use the socket's address.

    The transport of `source` is empty. If the proxy verified a client certificate, `source` contains the certificate's
    common name.
    """

    source: Peer | None


class ProxyParser:
    """Parses bytes until `header` is complete.

    >>> parser = ProxyParser("any")
    >>> parser.feed(b"PROXY TCP4 192.0.2.1 192.0.2.9 5000 1883\\r\\n\\x10...")
    42
    >>> parser.header.source.host
    '192.0.2.1'
    """

    __slots__ = ("_data", "_starts", "header")

    def __init__(self, versions: Versions) -> None:
        self._starts = {"v1": (PREFIX,), "v2": (SIGNATURE,), "any": (PREFIX, SIGNATURE)}[versions]
        self._data = b""
        self.header: ProxyHeader | None = None

    def feed(self, data: bytes) -> int:
        """Parse `data` and return how many of its bytes belong to the header: all of them until it is complete.

        Do not feed those bytes again. Raises ProxyError as soon as the bytes cannot be a valid header.
        """
        if self.header is not None:
            return 0
        had = len(self._data)
        seen = self._data + data[:V2_LIMIT]
        start = next((s for s in self._starts if seen.startswith(s) or s.startswith(seen)), None)
        if start is None:
            raise ProxyError("not a PROXY header")
        end = _v1_end(seen) if start is PREFIX else _v2_end(seen)
        if not end:
            self._data = seen
            return len(data)
        self._data = b""
        self.header = _parse_v1(seen[:end]) if start is PREFIX else _parse_v2(seen[:end])
        return end - had


def _v1_end(seen: bytes) -> int:
    end = seen.find(b"\n", 0, V1_LIMIT) + 1
    if not end and len(seen) >= V1_LIMIT:
        raise ProxyError(f"PROXY v1 header longer than {V1_LIMIT} bytes")
    return end


def _parse_v1(line: bytes) -> ProxyHeader:
    words = line[:-2].split(b" ")
    if not line.endswith(b"\r\n"):
        raise ProxyError("malformed PROXY v1 header")
    if words[1] == b"UNKNOWN":
        # section 2.1: ignore everything between UNKNOWN and CR LF
        return ProxyHeader(None)
    valid = len(words) == 6 and words[1] in (b"TCP4", b"TCP6")
    if not valid or b"" in words or b"%" in line:
        raise ProxyError("malformed PROXY v1 header")
    make = IPv4Address if words[1] == b"TCP4" else IPv6Address
    try:
        host, _ = (str(make(word.decode("ascii"))) for word in words[2:4])
        port, _ = (_port(word) for word in words[4:6])
    except ValueError as error:
        raise ProxyError("bad address in PROXY v1 header") from error
    return ProxyHeader(Peer(host, port, ""))


def _port(digits: bytes) -> int:
    if not digits.isdigit() or len(digits) > 5 or int(digits) > 65535:
        raise ValueError(digits)
    return int(digits)


def _v2_end(seen: bytes) -> int:
    if len(seen) < 16:
        return 0
    end = 16 + int.from_bytes(seen[14:16], "big")
    if end > V2_LIMIT:
        raise ProxyError(f"PROXY v2 header of {end} bytes, more than {V2_LIMIT}")
    return end if len(seen) >= end else 0


def _parse_v2(data: bytes) -> ProxyHeader:
    version, command = divmod(data[12], 16)
    family, protocol = divmod(data[13], 16)
    if version != 2 or command > 1:
        raise ProxyError(f"PROXY v2 header with version and command 0x{data[12]:02X}")
    if family > 3 or protocol > 2:
        raise ProxyError(f"PROXY v2 header with family and protocol 0x{data[13]:02X}")
    if command == 0 or family in (0, 3) or protocol != 1:
        # For LOCAL, or PROXY with an unknown address family, the specification says to use the socket's address.
        return ProxyHeader(None)
    size = 4 if family == 1 else 16
    ports = 16 + 2 * size
    if len(data) < ports + 4:
        raise ProxyError("PROXY v2 header too short for its addresses")
    address = data[16 : 16 + size]
    host = str(IPv4Address(address) if family == 1 else IPv6Address(address))
    port = int.from_bytes(data[ports : ports + 2], "big")
    return ProxyHeader(Peer(host, port, "", _certificate(data[ports + 4 :])))


def _tlvs(data: bytes) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    at = 0
    while at < len(data):
        end = at + 3 + int.from_bytes(data[at + 1 : at + 3], "big")
        if at + 3 > len(data) or end > len(data):
            raise ProxyError("PROXY v2 header with a truncated TLV")
        found[data[at]] = data[at + 3 : end]
        at = end
    return found


def _certificate(tlvs: bytes) -> Certificate | None:
    """Return the client certificate that the proxy verified, containing only the common name. Return None if there is
    none.
    """
    secure = _tlvs(tlvs).get(_TLV_SSL)
    if secure is None:
        return None
    if len(secure) < 5:
        raise ProxyError("PROXY v2 header with a truncated TLV")
    name = _tlvs(secure[5:]).get(_TLV_SSL_CN)
    verified = secure[0] & _CLIENT_CERTIFICATE and secure[1:5] == bytes(4)
    if not verified or not name:
        return None
    try:
        return Certificate(common_name=name.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ProxyError("PROXY v2 header with a common name that is not UTF-8") from error
