"""The native engine: compile the load generator in `load/*.c`, run it, and convert its counts to a run's account.

It needs Linux and a C compiler, and supports only plain TCP to 127.0.0.1. It spends about a third of the asyncio
engine's CPU time on each message. `hookmq bench --native` and the broker comparison in HookMQ's repository use it.
"""

import hashlib
import json
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from hookmq.plugin import ConfigError

from hookmq_bench.address import Address, BenchError
from hookmq_bench.control import Point, Watched
from hookmq_bench.histogram import Histogram
from hookmq_bench.outcome import Account, FlowSum, Mark
from hookmq_bench.plan import TOPIC, Plan
from hookmq_bench.tally import Tally

SOURCES: Final = Path(__file__).parent / "load"
FLAGS: Final = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
TOPOLOGIES: Final = {"pair": "pairs", "fanin": "all", "fanout": "all"}
LARGEST_PAYLOAD: Final = 16 << 20
DEFECTS: Final = {
    "lost": "lost",
    "duplicates": "duplicated",
    "reordered": "out of order",
    "stray": "not expected",
    "refused": "refused",
    "wrong_qos": "at another QoS",
    "unacknowledged": "never acknowledged",
}
"""The counts that make a strict run void, each with the word that messages use for it."""


class NativeError(BenchError):
    """The generator could not be compiled, or it gave up. The text gives the reason."""


def find_compiler() -> str | None:
    """Return the C compiler's path: `$CC` if set, or the first of cc, gcc and clang that is installed. Return None if
    there is none.
    """
    wanted = [os.environ["CC"]] if os.environ.get("CC") else ["cc", "gcc", "clang"]
    return next((path for name in wanted if (path := shutil.which(name))), None)


def build() -> Path:
    """Return the path of the compiled generator. Compile it first if the sources, compiler or flags have changed.

    Binaries are cached in `$XDG_CACHE_HOME/hookmq-bench`. This call blocks. Raises NativeError if there is no C
    compiler or it fails.
    """
    compiler = find_compiler()
    if compiler is None:
        raise NativeError("the native load generator needs a C compiler (cc, gcc, clang or $CC)")
    files = sorted(SOURCES.glob("*.[ch]"))
    digest = hashlib.sha256(" ".join((compiler, *FLAGS)).encode())
    for file in files:
        digest.update(file.read_bytes())
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hookmq-bench"
    binary = folder / f"load-{digest.hexdigest()[:16]}"
    if not binary.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = folder / f"{binary.name}.{os.getpid()}"
        sources = [str(file) for file in files if file.suffix == ".c"]
        command = [compiler, *FLAGS, "-o", str(fresh), *sources, "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NativeError(f"{' '.join(command)} failed:\n{done.stderr}")
        # Rename only the complete file, because another process may be compiling too.
        fresh.replace(binary)
    return binary


def run(
    words: Mapping[str, str], *, port: int, pids: Iterable[int] = (), timeout: float = 120.0
) -> dict[str, Any]:
    """Run one load against the broker on 127.0.0.1:`port` and return the counts that the generator printed.

    `words` are the generator's arguments (see load/arguments.c). `pids` are the broker's processes, whose CPU time the
    generator reads at both ends of the measured interval. This call blocks. Raises NativeError if the broker refuses
    or closes a connection or breaks the protocol, or if there is no result after `timeout` seconds.
    """
    command = [str(build()), f"port={port}", *(f"pid={pid}" for pid in pids)]
    command += [f"{key}={value}" for key, value in words.items()]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise NativeError(f"no result after {timeout:g} s") from None
    try:
        result = json.loads(done.stdout)
    except ValueError:
        raise NativeError(f"exit code {done.returncode}: {done.stderr.strip()}") from None
    if not isinstance(result, dict):
        raise NativeError(f"not a JSON object: {done.stdout!r}")
    if "error" in result:
        raise NativeError(str(result["error"]))
    return result


def defects(raw: Mapping[str, Any]) -> str:
    """Return why a run that must not lose anything is void. Return an empty string if the run is valid."""
    found = [f"{raw[key]} {text}" for key, text in DEFECTS.items() if raw.get(key)]
    if raw.get("stalled"):
        found.append("stood still")
    if raw.get("not_sustained"):
        found.append("rate not sustained")
    if not found and raw.get("delivered") == 0:
        found.append("nothing delivered")
    return ", ".join(found)


def latencies(raw: Mapping[str, Any]) -> Histogram:
    """Return the latencies of a fixed-rate run. The histogram is empty for any other run."""
    histogram = Histogram()
    told = raw.get("latency", {})
    histogram.count = told.get("count", 0)
    histogram.total = told.get("total", 0)
    histogram.largest = told.get("largest", 0)
    for number, times in told.get("buckets", ()):
        histogram.counts[number] = times
    return histogram


def words_of(plan: Plan) -> dict[str, str]:
    """Return the generator's arguments for a plan. Raises ConfigError for the first unsupported option."""
    target = plan.target
    unsupported = {
        f"the scenario {plan.scenario}": plan.scenario not in TOPOLOGIES,
        f"the host {target.host}: only 127.0.0.1": target.host != "127.0.0.1",
        "TLS": target.tls,
        "WebSocket": target.websocket,
        "MQTT 3.1": target.version == 3,
        "a user name or password": target.username is not None or target.password is not None,
        "a will": target.will is not None,
        "durable sessions (-c, -x)": not target.clean_start or target.session_expiry is not None,
        "-D": bool(plan.properties),
        "--processes": plan.processes > 1,
        "--topic": plan.topic != TOPIC,
        "--retain": plan.retain,
        "--count": bool(plan.count),
        "--ramp-up": bool(plan.ramp_up),
        "--connect-rate": bool(plan.connect_rate),
        "--window together with --rate": bool(plan.rate and plan.window),
        "a --rate that is not a whole number": plan.rate != int(plan.rate),
        "--payload-file": bool(plan.payload.strip(b"x")),
        "a payload above 16 MiB": plan.size > LARGEST_PAYLOAD,
    }
    for what, asked in unsupported.items():
        if asked:
            raise ConfigError(f"--native does not support {what}")
    words: dict[str, object] = {
        "mode": "open" if plan.rate else "closed",
        "topology": "shared" if plan.shared else TOPOLOGIES[plan.scenario],
        "level": target.version,
        "pubs": plan.publishers,
        "subs": plan.subscribers,
        "qos": plan.qos,
        "payload": plan.size,
        "warmup": plan.warm_up,
        "seconds": plan.duration,
        "drain": plan.drain,
    }
    if plan.rate:
        words["rate"] = int(plan.rate)
    else:
        words |= {"window": plan.window, "refill": max(1, plan.window // 4)}
    return {key: str(value) for key, value in words.items()}


def run_plan(plan: Plan, address: Address, show: Callable[[str, Point], None]) -> Watched:
    """Run a plan as `control.run` does, but never call `show`. Raises ConfigError for options that `words_of` refuses."""
    words = words_of(plan)
    longest = plan.warm_up + plan.duration + plan.drain + 2 * plan.timeout
    return watched_of(plan, run(words, port=address.port, timeout=longest))


def watched_of(plan: Plan, raw: Mapping[str, Any]) -> Watched:
    """Convert the generator's counts to the outcome of a run with a single process."""
    tally = Tally(
        sent=raw["sent_total"],
        acked=raw["acked_total"],
        received=raw["delivered_total"],
        wrong_qos=raw["wrong_qos"],
        stray_acks=raw["stray"],
        refused=Counter({"a reason code of 0x80 or above": raw["refused"]} if raw["refused"] else {}),
        latency=latencies(raw),
    )  # fmt: skip
    end = Mark(
        round(raw["elapsed_ns"]), raw["generator_ns"], raw["sent"], raw["acked"], raw["delivered"]
    )
    flows = FlowSum(
        flows=1,
        received=raw["delivered_total"],
        duplicates=raw["duplicates"],
        reordered=raw["reordered"],
    )
    account = Account(
        tally,
        Mark(0, 0),
        end,
        sent={0: raw["sent_total"]},
        unacked={0: raw["unacknowledged"]},
        flows={plan.key(0): flows},
        receive_maximum=raw["window"] if raw["window"] < plan.window else 65_535,
    )
    return Watched([account], stood_still=plan.drain if raw["stalled"] else 0.0)
