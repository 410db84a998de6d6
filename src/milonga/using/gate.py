"""Access control of the HTTP service: authentication, rate limit, size limits. Plain ASGI, so that no body is read before it.

Checked in this order: the Host header (a page of another site must not reach a loopback service through a name that it owns),
the token, the rate of the client, the content type and the size of the body. A refusal is one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from milonga.auth import App, Receive, Scope, Send, compare_secret, is_local

OPEN = ("/health",)
"""Paths that need no token and have no rate limit; no body is read for them."""
CLIENTS = 4096
"""Most clients whose rate is remembered; the least recent ones are forgotten."""


@dataclass(frozen=True)
class Limits:
    """Limits of a request."""

    body: int = 1 << 20
    """Most bytes of a request."""
    seconds: float = 30.0
    """Most seconds for the body to arrive."""
    items: int = 64
    """Most problems or solutions in a request."""
    text: int = 20_000
    """Most characters of an item: its question, answer and all steps together."""
    steps: int = 256
    best_of: int = 64
    checks: int = 64
    outputs: int = 2048
    """Most completions that a request may cost: items times solutions, and those times checks."""
    waiting: int = 1024
    """Most items in the queue; then 503."""
    rate: float = 120.0
    """Most requests of one client per minute; then 429."""


class Gate:
    """ASGI middleware: the application behind it sees only requests that passed all checks."""

    def __init__(self, app: App, limits: Limits, token: str | None, loopback: bool) -> None:
        self.app, self.limits, self.token, self.loopback = app, limits, token, loopback
        self.rates = Rates(limits.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":  # there are no web sockets here
            await self._handle_http(scope, receive, send)

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        refusal = self._find_refusal(scope, headers)
        if refusal is not None:
            await send_refusal(send, *refusal)
            return
        body = b"" if scope["path"] in OPEN else await self._read_body(receive)
        if isinstance(body, tuple):
            await send_refusal(send, *body)
        elif body is not None:
            await self.app(scope, _replay_body(body, receive), send)

    def _find_refusal(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[int, str, dict[str, str]] | None:
        """Return status, reason and headers of a refusal that does not depend on the body; None if there is none."""
        if self.loopback and not is_local(headers.get(b"host", b"").decode("latin-1")):
            return 421, "this service answers to localhost only", {}
        if scope["path"] in OPEN:
            return None
        if self.token is not None and not compare_secret(
            headers.get(b"authorization", b"").decode("latin-1"), f"Bearer {self.token}"
        ):
            return 401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
        wait = self.rates.wait(scope["client"][0] if scope.get("client") else "")
        if wait > 0:
            return 429, f"more than {self.limits.rate:g} requests a minute", {"Retry-After": str(math.ceil(wait))}
        # A page of another site can send a form here without CORS, but no JSON.
        if scope["method"] == "POST" and headers.get(b"content-type", b"").split(b";")[0].strip() != b"application/json":
            return 415, "send application/json", {}
        announced = headers.get(b"content-length", b"0")
        if not announced.isdigit() or int(announced) > self.limits.body:
            return self._refuse_too_large()
        return None

    def _refuse_too_large(self) -> tuple[int, str, dict[str, str]]:
        return 413, f"a request has at most {self.limits.body} bytes", {}

    async def _read_body(self, receive: Receive) -> bytes | tuple[int, str, dict[str, str]] | None:
        """Read the whole body, or return a refusal: the body may be longer than announced, or never end. None if the client
        has disconnected."""
        chunks, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    chunks.append(message.get("body", b""))
                    size += len(chunks[-1])
                    if size > self.limits.body:
                        return self._refuse_too_large()
                    if not message.get("more_body", False):
                        return b"".join(chunks)
        except TimeoutError:
            return 408, f"the request took more than {self.limits.seconds:g} seconds to arrive", {}


class Rates:
    """A token-bucket rate limiter, with one bucket per client that holds a minute's requests."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float | None = None) -> float:
        """Seconds until the client may send a request; 0 if it may now, and then this request is counted."""
        now = time.monotonic() if now is None else now
        left, before = self._clients.pop(client, (self.rate, now))
        left = min(self.rate, left + (now - before) * self.rate / 60)
        allowed = left >= 1
        self._clients[client] = (left - allowed, now)
        if len(self._clients) > CLIENTS:
            self._clients.popitem(last=False)
        return 0.0 if allowed else (1 - left) * 60 / self.rate


async def send_refusal(send: Send, status: int, why: str, headers: dict[str, str]) -> None:
    body = json.dumps({"error": why}).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"} | headers
    raw = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Make a `receive` that replays the body already read, then passes on later messages, such as a disconnect."""
    waiting = [body]

    async def again() -> MutableMapping[str, Any]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again
