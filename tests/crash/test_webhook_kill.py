"""Kill the broker repeatedly while clients publish and an unreliable service receives events.

No acknowledged event is lost, each client's messages arrive in order, and a repeated event has the
same id. A QoS 2 message is always one event.
"""

import asyncio
import os
import random
import sys
import threading
from pathlib import Path

import pytest
from aiohttp import web
from crashing import Client, crashing

KILLS = 5
EACH = 40
SILENCE = 600
"""After this many tenths of a second without an event, no more are expected."""
QOS = {"one": 1, "two": 2, "three": 2}
HOOK = """\
  - use: webhook
    config:
      url: "http://127.0.0.1:{port}/"
      events: [message.published]
      outbox: {{path: "{path}"}}
      retry: {{first_delay: 10ms, longest_delay: 100ms, breaker_pause: 50ms}}
      concurrency: 3
      drain: 0s
"""


class Service:
    """A service that fails occasionally, before or after it stores the request."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.seen: list[tuple[str, int, str]] = []
        """The client, number and event id of each event, in order of arrival."""

    async def take(self, request: web.Request) -> web.StreamResponse:
        draw = self.random.random()
        if draw < 0.1:
            return web.Response(status=500)
        event = await request.json()
        self.seen.append((event["data"]["client_id"], int(event["data"]["payload"]), event["id"]))
        assert request.transport is not None
        if draw < 0.15:
            request.transport.abort()
        return web.Response(status=500 if draw < 0.2 else 204)


async def run(
    folder: Path, seed: int, kills: int = KILLS, over: Path | None = None
) -> tuple[Service, dict[str, set[int]]]:
    """Kill the broker `kills` times. Return the service, and the numbers of the acknowledged messages for each client.

    The file `over` is created after the last kill.
    """
    service = Service(seed)
    application = web.Application()
    application.router.add_post("/", service.take)
    runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    more = HOOK.format(port=runner.addresses[0][1], path=folder / "outbox")
    try:
        acked = await asyncio.to_thread(
            _publish, folder, more, random.Random(seed), kills, service, over
        )
    finally:
        await runner.cleanup()
    return service, acked


def _publish(
    folder: Path,
    more: str,
    rng: random.Random,
    kills: int,
    service: Service,
    over: Path | None,
) -> dict[str, set[int]]:
    with crashing(folder, more=more) as broker:
        clients = {name: Client(broker, name) for name in QOS}
        for kill in range(kills + 1):
            for name, client in clients.items():
                for number in range(kill * EACH, (kill + 1) * EACH):
                    client.publish(number, f"t/{name}", QOS[name])
            if kill == kills:
                if over is not None:
                    over.touch()
                break
            some = rng.randrange(1, EACH)
            one = clients[rng.choice(list(QOS))]
            one.wait(lambda one=one, least=kill * EACH + some: len(one.acked) >= least)
            times = {name: len(client.present) for name, client in clients.items()}
            broker.kill()
            broker.start()
            for name, client in clients.items():
                client.back(times[name])
        total = (kills + 1) * EACH
        for client in clients.values():
            client.wait(lambda client=client: len(client.acked) == total)
        _settle(service, total - 1)
        acked = {name: set(client.acked) for name, client in clients.items()}
        for client in clients.values():
            client.close()
        broker.clients.clear()
        assert broker.stop() == 0
    return acked


def _settle(service: Service, last: int) -> None:
    """Wait until the last event of each client has arrived, or until no more arrive. The last event arrives after all
    earlier ones.
    """
    never = threading.Event()
    silent = 0
    while silent < SILENCE and not {(n, last) for n in QOS} <= {one[:2] for one in service.seen}:
        before = len(service.seen)
        never.wait(0.1)
        silent = silent + 1 if len(service.seen) == before else 0


def judge(service: Service, acked: dict[str, set[int]]) -> list[str]:
    """Return a description of each violation."""
    wrong = []
    of: dict[str, tuple[str, int]] = {}
    for client, number, id in service.seen:
        if of.setdefault(id, (client, number)) != (client, number):
            wrong.append(f"{id} is two events")
    for name, qos in QOS.items():
        numbers = [number for client, number, _ in service.seen if client == name]
        lost = acked[name] - set(numbers)
        if lost:
            wrong.append(f"{len(lost)} of {name} lost")
        # After a kill, a publisher may repeat a QoS 1 message that was already accepted. That is a new message with its
        # own event.
        places = {id: place for place, id in enumerate(_ids(service, name))}
        events = [of[id][1] for id in places]
        if qos == 2 and len(set(events)) != len(events):
            wrong.append(f"{name}: a message of QoS 2 is two events")
        firsts = list(dict.fromkeys(numbers))
        if firsts != sorted(firsts):
            wrong.append(f"{name} out of order")
    return wrong


def _ids(service: Service, name: str) -> list[str]:
    return list(dict.fromkeys(id for client, _, id in service.seen if client == name))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_kills_lose_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("SEED") or random.randrange(1 << 32))
    print(f"SEED={seed}", file=sys.stderr)
    service, acked = await run(tmp_path, seed)
    assert all(len(numbers) == (KILLS + 1) * EACH for numbers in acked.values())
    assert judge(service, acked) == []
    assert len(service.seen) > len({id for _, _, id in service.seen})  # the service did fail


EARLY = """\
import sys
if "serve" in sys.argv:
    import asyncio
    import os
    from hookmq_webhook.outbox import Outbox

    def flush(self, commit, done):
        done(None)
        later = asyncio.get_running_loop().call_later

        def look():
            if os.path.exists(os.environ["OVER"]):
                self.log.flush(lambda failed: self._ready())
            else:
                later(0.1, look)

        look()

    Outbox.flush = flush
"""


def test_the_judge_sees_each_breach() -> None:
    service = Service(1)
    acked: dict[str, set[int]] = {"one": {0, 1}, "two": {0}, "three": set()}
    service.seen = [
        ("one", 0, "a"),
        ("one", 0, "a"),
        ("one", 0, "b"),
        ("one", 1, "c"),
        ("two", 0, "d"),
    ]
    assert judge(service, acked) == []
    service.seen = [("one", 1, "a"), ("one", 0, "b"), ("two", 0, "d"), ("two", 0, "e")]
    assert judge(service, acked) == ["one out of order", "two: a message of QoS 2 is two events"]
    service.seen = [("one", 0, "a"), ("one", 1, "a")]
    assert judge(service, acked) == ["a is two events", "1 of two lost"]


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_an_acknowledgement_before_the_outbox_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killing the broker reveals a planted bug that lets the commit finish without the outbox. The
    disk is so slow that a kill hits this interval.
    """
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(EARLY)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    over = tmp_path / "over"
    monkeypatch.setenv("OVER", str(over))
    service, acked = await run(tmp_path, 0, 1, over)
    assert any("lost" in one for one in judge(service, acked)), judge(service, acked)
