"""Set the timestamp in a Sparkplug B payload.

Source: Eclipse Sparkplug 3.0.0, chapter 6, message type ``org.eclipse.tahu.protobuf.Payload``. Only its first field is
declared here. Protobuf leaves a payload's other fields unchanged.
"""

from typing import Any, Final

from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass


def _payload_class() -> type[Message]:
    file = FileDescriptorProto(name="hookmq_sparkplug.proto", package="sparkplug", syntax="proto2")
    file.message_type.add(name="Payload").field.add(
        name="timestamp",
        number=1,
        type=FieldDescriptorProto.TYPE_UINT64,
        label=FieldDescriptorProto.LABEL_OPTIONAL,
    )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("sparkplug.Payload"))


_PAYLOAD: Final = _payload_class()


def with_timestamp(payload: bytes, seconds: float) -> bytes | None:
    """Return the payload with a new timestamp in epoch `seconds`, or None if it is not a Protobuf message."""
    found: Any = _PAYLOAD()
    try:
        found.ParseFromString(payload)
    except DecodeError:
        return None
    found.timestamp = int(seconds * 1000)
    changed: bytes = found.SerializeToString()
    return changed
