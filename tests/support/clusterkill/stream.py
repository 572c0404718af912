"""A copy of the cluster's log, to find the cause of a finding."""

import base64
import json
from pathlib import Path
from typing import Final

import nats

STREAM: Final = "HOOKMQ_hookmq"


async def copy_stream(url: str, path: Path) -> None:
    """Write all messages of the log as JSON arrays of the sequence, the subject, the time and the bytes in Base64."""
    client = await nats.connect(url)
    try:
        stream = client.jetstream()
        last = (await stream.stream_info(STREAM)).state.last_seq
        subscription = await stream.subscribe("hmq.>", ordered_consumer=True)
        sequence = 0
        with path.open("w") as file:
            while sequence < last:
                message = await subscription.next_msg(10)
                place = message.metadata
                sequence = place.sequence.stream
                data = base64.b64encode(message.data).decode()
                file.write(
                    json.dumps([sequence, message.subject, str(place.timestamp), data]) + "\n"
                )
    finally:
        await client.close()
