"""Between the server and the application: who asks, how much and how often; a line in the log for each."""

import json
import logging
import math
import time
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse

from vqshield_deploy.serving.clients import TokenBuckets, address_of, key_of
from vqshield_deploy.serving.limits import FORM_BYTES, Limits
from vqshield_deploy.serving.metrics import Metrics

CLASSIFY = "/classify"
OPEN = ("/healthz", "/readyz", "/openapi.json")
"""Paths that need no key."""
LOG = logging.getLogger("vqshield.access")
OUTCOMES = {
    200: "answered", 400: "broken upload", 401: "no valid key", 413: "too large", 415: "no image",
    422: "no file", 429: "too many requests", 499: "aborted", 500: "failed", 503: "busy",
}  # fmt: skip
"""What a status means in the log; 499: the client was gone before its answer."""
_SHOWN = 200  # characters of a path in the log


class Guard:
    """An ASGI application around another: checks keys, bounds, counts and times requests, and logs them.

    Args:
        app: the application.
        limits: bounds of /classify.
        metrics: counts of /classify.
        keys: digests of API keys; empty: none are needed.
    """

    def __init__(self, app: Any, limits: Limits, metrics: Metrics, keys: Sequence[bytes] = ()) -> None:
        self._app, self._limits, self._metrics, self._keys = app, limits, metrics, keys
        self._buckets = TokenBuckets(limits.rate, limits.burst)
        self._running = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, request, counted = time.monotonic(), uuid.uuid4().hex, scope["path"] == CLASSIFY
        state = scope.setdefault("state", {})
        status, read, gone = 500, 0, False  # 500: after an exception

        async def bounded() -> Any:
            nonlocal read, gone
            message = await receive()
            gone |= message["type"] == "http.disconnect"
            read += len(message.get("body", b""))
            if counted and read > self._limits.max_bytes + FORM_BYTES:
                raise HTTPException(413, f"the upload has more than {self._limits.max_bytes} bytes")
            return message

        async def noted(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request.encode())]
            await send(message)

        client, refusal = self._admit(scope, counted)
        self._running += counted
        try:
            await (refusal or self._app)(scope, bounded, noted)
        finally:
            status = 499 if gone and not 200 <= status < 300 else status
            seconds = time.monotonic() - began
            if counted:
                self._running -= 1
                self._metrics.requests.labels(status).inc()
                self._metrics.seconds.observe(seconds)
            line = {
                "time": datetime.now(UTC).isoformat(timespec="milliseconds"), "request": request,
                "client": client, "method": scope["method"][:_SHOWN], "path": scope["path"][:_SHOWN],
                "status": status, "outcome": state.get("outcome") or OUTCOMES.get(status, "refused"),
                "bytes": read, "seconds": round(seconds, 4),
            }  # fmt: skip
            LOG.info(json.dumps(line))

    def _admit(self, scope: Any, counted: bool) -> tuple[str, JSONResponse | None]:
        """Who asks, and what refuses the request, if something does."""
        keyless = not self._keys or scope["path"] in OPEN
        key = None if keyless else key_of(scope["headers"], self._keys)
        client = key or address_of((scope.get("client") or ("unknown",))[0])
        if counted and (wait := self._buckets.wait(client, time.monotonic())):
            # Before the key is judged: whoever guesses keys is slowed down too.
            return client, _refusal(429, "too many requests of this client; try again later", wait)
        if not keyless and key is None:
            text = "give a valid API key, as in Authorization: Bearer KEY"
            return client, JSONResponse({"detail": text}, 401, headers={"WWW-Authenticate": "Bearer"})
        if counted and self._running >= self._limits.connections:
            return client, _refusal(503, f"{self._running} requests are running already; try again soon")
        return client, None


def _refusal(status: int, text: str, wait: float = 1) -> JSONResponse:
    return JSONResponse({"detail": text}, status, headers={"Retry-After": str(math.ceil(wait))})
