"""A fuzzer that keeps the inputs that reach new lines. Run as a program:

    python tests/security/fuzz.py --seconds 60                  every target in turn
    python tests/security/fuzz.py --target codec --seed 7 --inputs 5000
    python tests/security/fuzz.py --target codec --replay FILE   one kept input

The code under test records which lines were reached. Its modules are compiled with a mark before each statement of each
function, which is cheap and needs no tracing. A failing input is written to --keep and shown.
"""

import argparse
import ast
import importlib.abc
import importlib.machinery
import importlib.util
import random
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
MARKED: Final = (
    "hookmq.mqtt",
    "hookmq.broker",
    "hookmq.mqtt.topics",
    "hookmq.server.proxy_protocol",
    "hookmq.config",
    "hookmq.routing.subscription_tree",
)
"""Modules whose lines count."""
SEEN = bytearray(1 << 16)
Target = Callable[[bytes], None]


class _Marks(ast.NodeTransformer):
    """Inserts ``__seen__[n] = 1`` before every statement of every function."""

    count = 0

    def _body(self, body: list[ast.stmt], doc: bool) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for index, statement in enumerate(body):
            text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not (doc and index == 0 and text) and not isinstance(
                statement, ast.Nonlocal | ast.Global
            ):
                mark = ast.parse(f"__seen__[{_Marks.count}] = 1").body[0]
                _Marks.count += 1
                for node in ast.walk(mark):
                    ast.copy_location(node, statement)
                made.append(mark)
            made.append(self._inner(statement))
        return made

    def _inner(self, node: Any) -> Any:
        for name in ("body", "orelse", "finalbody"):
            if isinstance(getattr(node, name, None), list) and not isinstance(node, ast.ClassDef):
                setattr(
                    node,
                    name,
                    self._body(
                        getattr(node, name),
                        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef),
                    ),
                )
        for inner in getattr(node, "handlers", []) + getattr(node, "cases", []):
            inner.body = self._body(inner.body, False)
        if isinstance(node, ast.ClassDef):
            self.generic_visit(node)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> Any:
        """Mark a function's statements."""
        return self._inner(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> Any:
        """Mark a coroutine's statements."""
        return self._inner(node)


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Return the module's marked code, and never a cached version."""
        path = self.get_filename(fullname)
        tree = _Marks().visit(ast.parse(self.get_data(path), path))
        code: CodeType = compile(tree, path, "exec")
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, with the array in which its marks are recorded."""
        module.__dict__["__seen__"] = SEEN
        super().exec_module(module)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> Any:
        """Find the marked modules. Other modules are left to the next finder."""
        if not any(name == one or name.startswith(one + ".") for one in MARKED):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = _Loader(name, spec.loader.path)
        return spec


# --- targets ----------------------------------------------------------------------------------------------------------


def codec() -> Target:
    """Decode bytes with both decoders, whole and in pieces. Both must return equal packets, and it must be possible to
    encode the accepted packets again.
    """
    from hookmq.mqtt.encoder import encode
    from hookmq.mqtt.packet_limits import PacketLimits
    from hookmq_testing.decoder import Decoder

    limits = PacketLimits(300, 3, 4)

    def run(data: bytes) -> None:
        if not data:
            return
        version, server = (
            (0, True),
            (3, True),
            (4, True),
            (5, True),
            (3, False),
            (4, False),
            (5, False),
        )[data[0] % 7]
        stream = data[1:]
        whole, pieces = Decoder(version, limits, server), Decoder(version, limits, server)
        found = whole.feed(stream)
        again = [packet for byte in stream for packet in pieces.feed(bytes((byte,)))]
        assert found == again
        assert (whole.error and whole.error.code) == (pieces.error and pieces.error.code)
        assert whole.buffered == pieces.buffered <= 300
        for packet in found:
            if getattr(packet, "dup", False) and not packet.qos:  # type: ignore[union-attr]
                continue  # only 3.1 allows it, and the encoder does not repeat it
            level = whole.version
            reader = Decoder(0 if hasattr(packet, "client_id") else level, server=server)
            assert reader.feed(encode(packet, level)) == [packet]

    return run


def connection() -> Target:
    """Feed the input in chunks to a broker with three clients, with pauses in between."""
    import mqttbytes as m
    from attacks import at_rest, check_silence, spoken
    from byteclient import ByteClient
    from bytememory import in_memory, join
    from hookmq_testing import Harness
    from hookmq_testing.decoder import Decoder

    def run(data: bytes) -> None:
        with Harness(config={"session": {"max_expiry": 60.0}}) as harness:
            witness = join(harness, "witness")
            witness.subscribe(("#", 1))
            decoder = Decoder(5, server=False)
            clients: dict[int, ByteClient] = {}
            at = 0
            while at < len(data):
                which, size = data[at] & 3, (data[at] >> 2) + 1
                chunk = data[at + 1 : at + 1 + size]
                at += 1 + size
                client = clients.get(which)
                if which == 3:
                    harness.advance(size)
                    continue
                if client is None or client.wire.closed:
                    client = clients[which] = in_memory(harness)
                client.send(chunk)
            decoder.feed(witness.take())
            assert decoder.error is None
            assert not witness.wire.closed
            witness.close()
            for client in clients.values():
                client.send(m.PINGREQ)
                client.close()
            harness.advance(200)
            left = at_rest(harness)
            assert (
                left["connections"] == left["queued"] == left["sessions"] == left["remembered"] == 0
            ), left
            check_silence(spoken(harness))

    return run


def topics() -> Target:
    """Match a filter with a topic. All implementations must agree, and valid input must be routable."""
    from hookmq.mqtt.errors import ProtocolError
    from hookmq.mqtt.topics import (
        compile_filter,
        contains,
        matches,
        parse_share,
        validate_filter,
        validate_topic,
    )
    from hookmq.routing.subscription_tree import SubscriptionTree

    class Route:
        valid = True

    def run(data: bytes) -> None:
        text = data.decode("utf-8", "surrogateescape")
        filter, _, topic = text.partition("\n")
        try:
            validate_filter(filter, 50)
            validate_topic(topic, 50)
        except ProtocolError:
            return
        _, inner = parse_share(filter)
        expected = by_hand(inner, topic)
        assert matches(inner, topic) == compile_filter(inner)(topic) == expected
        router: SubscriptionTree[str, int, Any] = SubscriptionTree(lambda topic, found: Route())
        router.subscribe(inner, "s", 1)
        assert bool(router.match(topic)) == expected
        if contains(inner, topic):
            assert expected
        assert contains(inner, inner)
        router.unsubscribe(inner, "s")
        assert router.match(topic) == []

    return run


def by_hand(filter: str, topic: str) -> bool:
    """Apply the matching rules of section 4.7 level by level."""
    want, have = filter.split("/"), topic.split("/")
    if topic[0] == "$" and want[0] in ("+", "#"):
        return False
    for index, level in enumerate(want):
        if level == "#":
            return True
        if index == len(have) or level not in ("+", have[index]):
            return index == len(have) and level == "#"
    return len(want) == len(have) or (want[-1] == "#" and len(want) == len(have) + 1)


def proxy() -> Target:
    """Parse a PROXY header in pieces of every size."""
    from hookmq.server.proxy_protocol import ProxyError, ProxyParser

    def read(data: bytes, step: int) -> Any:
        parser, used = ProxyParser("any"), 0
        while parser.header is None and used < len(data):
            piece = data[used : used + step]
            taken = parser.feed(piece)
            assert 0 <= taken <= len(piece)
            used += taken
        return parser.header, used

    def run(data: bytes) -> None:
        answers: list[Any] = []
        for step in (1, 7, 5000):
            try:
                answers.append(read(data, step))
            except ProxyError:
                answers.append("error")
        assert answers[0] == answers[1] == answers[2]

    return run


def config() -> Target:
    """Load a configuration. It is accepted or refused with errors, and never allows access by mistake."""
    from hookmq.config.model import loads
    from hookmq.config.yaml_document import decode
    from hookmq.model.errors import ConfigError

    def run(data: bytes) -> None:
        try:
            text = decode(data, "f")
            made = loads(text, environ={"X": "1"}, folder="/nonexistent")
        except ConfigError as error:
            str(error)
            return
        for section, verdict in (("auth", made.auth.default), ("authz", made.authz.default)):
            assert verdict == "deny" or "allow" in text, section

    return run


TARGETS: Final[dict[str, Callable[[], Target]]] = {
    "codec": codec, "connection": connection, "topics": topics, "proxy": proxy, "config": config
}  # fmt: skip


def seeds(name: str) -> list[bytes]:
    """Return the initial inputs for mutation."""
    import mqttbytes as m

    packets = [
        m.connect("c", keep_alive=9, username="u", password=b"p", properties=m.session_expiry(9) + m.receive_maximum(2)),
        m.connect("w", level=4, will=("w", b"x"), will_qos=1), m.connect("o", level=3), m.connect("c", clean=False),
        m.connect("d", will=("w", b"x"), will_properties=m.will_delay(3) + m.user("a", "b")),
        m.publish("t", b"x", 1, 1, properties=m.expiry(3) + m.user("k", "v") + m.content_type("t")),
        m.publish("t", b"x", 2, 2, retain=True, properties=m.alias(1)), m.publish("t", b"x", level=4),
        m.puback(1), m.pubrec(1, 0x10), m.pubrel(2), m.pubcomp(1, 0, m.reason_string("r")),
        m.subscribe(1, ("t/#", 1), ("$share/g/t", 2), properties=m.identifier(3)), m.subscribe(1, ("+/t", 0), level=4),
        m.unsubscribe(2, "t/#"), m.suback(1, 0), m.unsuback(2, 0), m.PINGREQ, m.PINGRESP, m.disconnect(4),
        m.auth(0x18, m.auth_method("x") + m.auth_data(b"d")), b"\x20\x03\0\0\0",
    ]  # fmt: skip
    if name == "codec":
        return [bytes((at,)) + packet for packet in packets for at in range(7)]
    if name == "connection":

        def chunk(which: int, data: bytes) -> bytes:
            parts = [data[at : at + 64] for at in range(0, len(data), 64)]
            return b"".join(bytes((which | len(part) - 1 << 2,)) + part for part in parts)

        first = m.connect("c", properties=m.session_expiry(9))
        return [
            chunk(0, first) + chunk(1, packets[1]) + chunk(n % 2, p) + chunk(3, b"x" * 9)
            for n, p in enumerate(packets)
        ]
    if name == "topics":
        return [
            b"a/+/#\na/b/c",
            b"#\n$SYS",
            b"$share/g/+\nx",
            b"+/+\n/",
            b"a/#\na",
            "größe/+\ngröße/x".encode(),
        ]
    if name == "proxy":
        v2 = b"\r\n\r\n\x00\r\nQUIT\n"
        return [
            b"PROXY TCP4 192.0.2.1 192.0.2.9 5000 1883\r\nx", b"PROXY TCP6 ::1 ::2 1 2\r\n", b"PROXY UNKNOWN\r\n",
            v2 + b"\x21\x11\x00\x0c" + bytes(12), v2 + b"\x20\0\0\0", v2 + b"\x21\x21\x00\x24" + bytes(36),
            v2 + b"\x21\x11\x00\x1b" + bytes(12) + b"\x20\0\x0c\x07\0\0\0\0\x22\0\x04name",
        ]  # fmt: skip
    from importlib.resources import files

    default = files("hookmq.config").joinpath("default.yaml").read_bytes()
    more = b"version: 1\nlisteners: [{name: a, bind: '127.0.0.1:0'}, {type: http, bind: '[::1]:0', http: {token: x}}]\n"
    return [
        default,
        more,
        more
        + b"auth: &a {default: deny}\nauthz: *a\nsession: {max_expiry: 1h30m, queue_bytes: 1.5MiB}\n",
        more
        + b"plugins: [{use: x, id: y, config: {a: {$env: X}}, hooks: {authorize: {timeout: 1s}}}]\n",
    ]


WORDS: Final = {
    "topics": [b"/", b"+", b"#", b"$", b"\n", b"$share/", b"$SYS/", b"\0", b"\xff", b"//"],
    "config": [b"{", b"}", b"[", b"]", b": ", b"- ", b"\n", b"&a ", b"*a", b"!!python/object ", b"{$file: /etc/passwd}",
               b"{$env: X}", b"0x", b"1e999", b"9" * 50, b"\xef\xbb\xbf", "\u2028".encode(), b"---\n", b"? ", b"<<: *a",
               b"null", b"allow", b"\t", b"|\n", b"5s", b"1GiB", b"100/s", b"-1", b"\x00"],
    "proxy": [b" ", b"\r\n", b"\0", b"\xff", b"PROXY ", b"TCP4", b"\x21", b"65535", b"%"],
}  # fmt: skip
BYTES: Final = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x10, 0x30, 0x32, 0x34, 0x82)


def mutate(rng: random.Random, data: bytes, corpus: list[bytes], words: list[bytes]) -> bytes:
    """Return `data` changed in one to eight ways."""
    raw = bytearray(data)
    for _ in range(1 << rng.randrange(4)):
        at, how = rng.randint(0, len(raw)), rng.randrange(8)
        if how == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif how == 1 and at < len(raw):
            raw[at] = rng.choice(BYTES)
        elif how == 2:
            raw[at:at] = bytes((rng.choice(BYTES),))
        elif how == 3:
            del raw[at : at + rng.randint(1, 8)]
        elif how == 4:
            raw[at:at] = raw[max(0, at - rng.randint(1, 30)) : at]
        elif how == 5:
            other = rng.choice(corpus)
            start = rng.randint(0, len(other))
            raw[at:at] = other[start : start + rng.randint(1, 60)]
        elif how == 6 and words:
            raw[at:at] = rng.choice(words)
        elif at < len(raw):
            raw[at] = (raw[at] + rng.choice((-1, 1))) & 0xFF
    return bytes(raw[:4096])


def fuzz(
    name: str, rng: random.Random, seconds: float, inputs: int, keep: Path
) -> tuple[int, int, bool]:
    """Run a target. Return (inputs, lines reached, whether no input failed)."""
    run = TARGETS[name]()
    words = WORDS.get(name, [])
    queue = seeds(name)
    corpus: list[bytes] = []
    reached: set[int] = set()
    done = 0
    end = time.monotonic() + seconds
    while done < inputs and time.monotonic() < end:
        seed = bool(queue)
        data = queue.pop() if queue else mutate(rng, rng.choice(corpus), corpus, words)
        SEEN[:] = bytes(len(SEEN))
        done += 1
        try:
            run(data)
        except Exception:
            path = keep / f"{name}-{abs(hash(data)):x}"
            keep.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            traceback.print_exc()
            print(f"{name}: input {done} failed, kept in {path}: {data.hex()[:400]}")
            return done, len(reached), False
        lines = {at for at, seen in enumerate(SEEN[: _Marks.count]) if seen} if any(SEEN) else set()
        if seed or not lines <= reached:  # compiled modules report no lines, so keep only the seeds
            reached |= lines
            corpus.append(data)
    return done, len(reached), True


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=TARGETS, action="append")
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument(
        "--inputs", type=int, default=1 << 60, help="at most so many for each target"
    )
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"))
    parser.add_argument("--replay", type=Path)
    given = parser.parse_args(arguments)
    sys.meta_path.insert(0, _Finder())
    names = given.target or list(TARGETS)
    if given.replay is not None:
        TARGETS[names[0]]()(given.replay.read_bytes())
        return 0
    seed = random.SystemRandom().randrange(1 << 32) if given.seed is None else given.seed
    good = True
    for name in names:
        rng = random.Random(f"{seed} {name}")
        done, lines, well = fuzz(name, rng, given.seconds / len(names), given.inputs, given.keep)
        print(f"{name}: seed {seed}, {done} inputs, {lines} lines, {'well' if well else 'FAILED'}")
        good = good and well
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
