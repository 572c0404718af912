"""An aiohttp receiver for HookMQ events. It handles each event once, even if an event is resent after a restart.

HOOK_SECRETS='whsec_...' python aiohttp_receiver.py
"""

import os
import sqlite3

from aiohttp import web
from hookmq_webhook_receiver import Received, VerificationError, read, verify

SECRETS = web.AppKey("SECRETS", list[str])
DATABASE = web.AppKey("DATABASE", sqlite3.Connection)
TABLES = """
CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY, epoch TEXT, sequence INTEGER) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS latest (topic TEXT PRIMARY KEY, value TEXT);
"""


def handle(database: sqlite3.Connection, event: Received) -> None:
    """Handle an event by storing it as the latest payload of its topic. Replace this function with your own."""
    if event.type == "hookmq.message.published":
        row = (event.data["topic"], str(event.data.get("payload")))
        database.execute("INSERT OR REPLACE INTO latest VALUES (?, ?)", row)


async def hook(request: web.Request) -> web.Response:
    body = await request.read()
    try:
        verify(request.headers, body, request.app[SECRETS])
        events = read(request.headers, body)
    except VerificationError as error:
        raise web.HTTPUnauthorized(text=str(error)) from None
    except ValueError as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    database = request.app[DATABASE]
    with database:  # one transaction: the event's id and its effect are stored together
        for event in events:
            row = (event.id, event.epoch, event.sequence)
            if database.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", row).rowcount:
                handle(database, event)
    return web.Response(status=204)  # only after the commit


async def gaps(request: web.Request) -> web.Response:
    """Return how many events are missing because they are still in transit, were abandoned or were dropped."""
    query = "SELECT epoch, max(sequence) - min(sequence) + 1 - count(*) FROM seen GROUP BY epoch"
    return web.json_response(dict(request.app[DATABASE].execute(query)))


def make(secrets: list[str], path: str = "events.sqlite") -> web.Application:
    application = web.Application(client_max_size=16 << 20)
    application[SECRETS] = secrets
    application[DATABASE] = database = sqlite3.connect(path)
    database.executescript(TABLES)

    async def close(_: web.Application) -> None:
        database.close()

    application.on_cleanup.append(close)
    application.router.add_post("/hook", hook)
    application.router.add_get("/gaps", gaps)
    return application


if __name__ == "__main__":
    web.run_app(make(os.environ["HOOK_SECRETS"].split()), host="127.0.0.1", port=8000)
