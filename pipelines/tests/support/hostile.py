"""Hostile messages: names, payloads, numbers, times and nesting depths that must not end a query."""

import json
import os
import random
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rows import Log, Message, frame

HOSTILE = [
    "",
    "001",
    "1",
    "1.0",
    "1e5",
    "nan",
    "Infinity",
    "2026-11-20",
    "null",
    ".",
    "..",
    "../../etc",
    "a/b",
    "a\\b",
    "a=b",
    "x" * 300,
    "x" * 299 + "y",
    "é" * 200,
    "\u0065\u0301",
    "\u00e9",
    "Device",
    "device",
    "DEVICE",
    " d",
    "d ",
    "\t\n\r",
    "\x01\x7f",
    "\u202e\ufeff",
    "😀" * 80,
    "__HIVE_DEFAULT_PARTITION__",
    "_hidden",
    "%2F",
    "%",
    "'\"`",
    "CON",
    "a:b*c?",
]
"""Names of devices, folders and partitions."""
NUMBERS = [
    "NaN",
    "Infinity",
    "-0",
    "-0.0",
    "1e400",
    "-1e400",
    "1e-400",
    "1e100000000",
    "1.234",
    "9" * 999,
    "9" * 5000,
    "0x1F",
    "9223372036854775808",
    "1e5",
    "00",
    "+1",
    ".5",
    "5.",
    "true",
    "null",
    '"1e999999999"',
    "[1]",
    "{}",
    "1e1e1",
]
TIMES = [
    "0",
    "-1",
    "253402300800000",
    "9223372036854775807",
    '"0000-01-01"',
    '"9999-12-31T23:59:59.999999Z"',
    '"10000-01-01"',
    '"+294247-01-10T04:00:54.775807Z"',
    '"-0044-03-15"',
    '"2026-11-20T12:00:00+99:99"',
    '"2026-02-30"',
    '"now"',
    '""',
    '"2026-11-20T12:00:00[Mars/Phobos]"',
]
OTHERS = [
    b"",
    b"\x00",
    b"\xff\xfe",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b'{"name": "\\ud800"}',
    b'{"name": "\xff"}',
    b"{" * 2000,
    b'{"pos":' * 900 + b"1" + b"}" * 900,
    b'{"all":' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"n":1,"n":"x","n":2}',
    b'{"tags": {"a": 1, "a": "x", "": null}}',
    b'{"pos": {"lat": 1, "lat": [2]}}',
    b'{"\\u0000": 1}',
    b'{"n": 1}\x00',
    b"\xef\xbb\xbf{}",
    b'{"name": {"deep": [1, {"x": "\\u0000"}]}}',
    b'{"all": [1, null, "x"]}',
    b'{"all": [1e39]}',
    b'{"pos": {"far": {"x": 1e27}}}',
    b'{"pos": {"far": {"x": 1e29}}}',
    b'{"pos": []}',
    b"[]",
    b"null",
    b'"',
    b'{"n": 1',
    b'{"__HIVE_DEFAULT_PARTITION__": 1}',
]


def hostile(seed: int) -> list[list[Message]]:
    """Return batches of messages that contain each hostile value at least once, and random combinations of hostile
    values.
    """
    draw, log = random.Random(seed), Log()
    payloads = [b'{"n": %d, "celsius": 1.5}' % n for n in range(3)] + OTHERS
    payloads += [b'{"%s": %s}' % (key, number.encode()) for number in NUMBERS
                 for key in (b"n", b"celsius", b"price")]  # fmt: skip
    payloads += [b'{"%s": %s}' % (key, time.encode()) for time in TIMES
                 for key in (b"at", b"day", b"seen")]  # fmt: skip
    names = [name.replace("\x00", "") for name in HOSTILE]
    payloads += [json.dumps({"name": name, "celsius": n}).encode() for n, name in enumerate(names)]
    messages = []
    for number, payload in enumerate(payloads):
        device = names[number] if number < len(names) else draw.choice(names)
        text = bytearray(payload)
        topic = draw.choice(
            [f"p/{device}/s", f"p/{device}", device or "p", f"spBv1.0/{device}/DDATA/{device}/x"]
        )
        more: dict[str, Any] = {"topic": topic, "client_id": draw.choice(names)}
        if draw.random() < 0.3:
            more["message_id"] = draw.choice(names) + str(number)
        messages.append(log.message(bytes(text), number / 10, **more))
        if text and draw.random() < 0.5:
            text[draw.randrange(len(text))] = draw.randrange(256)
            messages.append(log.message(bytes(text), number / 10, topic=topic))
    third = len(messages) // 3
    return [messages[:third], messages[third : 2 * third], messages[2 * third :]]


def land(spark: SparkSession, folder: Path, *batches: list[Message]) -> None:
    """Write one file for each batch, in order."""
    (folder / "in").mkdir(exist_ok=True)
    for messages in batches:
        number = len(list((folder / "in").iterdir()))
        part = folder / f"part-{number}"
        frame(spark, messages).coalesce(1).write.parquet(str(part))
        [file] = part.glob("*.parquet")
        target = folder / "in" / f"{number}.parquet"
        file.rename(target)
        os.utime(target, (1_700_000_000 + number, 1_700_000_000 + number))
