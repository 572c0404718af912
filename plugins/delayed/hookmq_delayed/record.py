"""How a delayed message is stored."""

import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from hashlib import sha256

from hookmq.mqtt_api import EMPTY, In, Properties, decode_section, encode_section


@dataclass(frozen=True, slots=True)
class Record:
    """A message to publish later. `id` was chosen by the client, or is empty. `due` is in epoch seconds."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties
    client_id: str
    id: str
    due: float

    def encode(self) -> bytes:
        """Return the record as bytes: a line of JSON, then the payload."""
        section = b""
        if self.properties is not EMPTY:
            section = encode_section(self.properties, In.WILL)
        header = {
            "topic": self.topic,
            "qos": self.qos,
            "retain": self.retain,
            "properties": b64encode(section).decode(),
            "client_id": self.client_id,
            "id": self.id,
            "due": self.due,
        }
        return json.dumps(header).encode() + b"\n" + self.payload

    @classmethod
    def decode(cls, data: bytes) -> "Record":
        """Parse a record that `encode` wrote. Raises ValueError for anything else."""
        line, _, payload = data.partition(b"\n")
        try:
            header = json.loads(line)
            section = b64decode(header["properties"])
            properties = decode_section(section, In.WILL) if section else EMPTY
            return cls(
                header["topic"], payload, header["qos"], header["retain"], properties,
                header["client_id"], header["id"], header["due"],
            )  # fmt: skip
        except Exception as error:
            raise ValueError(f"not a delayed message: {error!r}") from error


def owner_key(client_id: str, user: str) -> str:
    """Return the key prefix for a client's messages. It differs for every client id, and for different users of the
    same client id.
    """
    return sha256(json.dumps([client_id, user]).encode()).hexdigest()


def id_key(id: str) -> str:
    """Return the second part of the key for a message with this client-chosen id."""
    return f"id-{sha256(id.encode()).hexdigest()}"
