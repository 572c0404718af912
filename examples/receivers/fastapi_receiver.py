"""A FastAPI receiver for HookMQ events. It remembers events in memory until the process ends.

HOOK_SECRETS='whsec_...' uvicorn --factory fastapi_receiver:from_environment
"""

import os
from collections import Counter

from fastapi import FastAPI, HTTPException, Request
from hookmq_webhook_receiver import Ledger, Received, VerificationError, inflate, read, verify


def make(secrets: list[str]) -> FastAPI:
    application = FastAPI()
    ledger = Ledger()
    counts: Counter[str] = Counter()

    def handle(event: Received) -> None:
        """Handle an event by counting its type. Replace this function with your own."""
        counts[event.type] += 1

    @application.post("/hook", status_code=204)
    async def hook(request: Request) -> None:
        try:
            body = inflate(request.headers, await request.body())
            verify(request.headers, body, secrets)
            events = read(request.headers, body)
        except VerificationError as error:
            raise HTTPException(401, str(error)) from None
        except ValueError as error:
            raise HTTPException(400, str(error)) from None
        for event in events:
            if ledger.take(event):
                handle(event)

    @application.get("/counts")
    async def shown() -> dict[str, object]:
        return {"counts": counts, "missing": len(ledger.missing()), "lost": ledger.lost}

    return application


def from_environment() -> FastAPI:
    return make(os.environ["HOOK_SECRETS"].split())
