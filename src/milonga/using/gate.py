"""Access control of the HTTP service: authentication, rate limit, size limits. Plain ASGI, so that no body is read before it.

Checked in this order: the form of the head, the Host header (a page of another site must not reach a loopback service through
a name that it owns), the token, the rate of the client, the content type, the body and its JSON. A refusal is one JSON object.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from milonga.auth import App, Receive, Scope, Send, compare_secret, is_local
from milonga.bounds import Bounds, Rates, Refusal, read_body, refuse_head, replay_body
from milonga.errors import DataError
from milonga.tasks.rows import parse_json

OPEN = ("/health",)
"""Paths that need no token and have no rate limit; no body is read for them."""


@dataclass(frozen=True)
class Limits(Bounds):
    """Limits of a request, on top of those of every server."""

    items: int = 64
    """Most problems or solutions in a request."""
    text: int = 20_000
    """Most characters of an item: its question, answer and all steps together."""
    steps: int = 256
    values: int = 50_000
    """Most values in a request's JSON, counted by its commas and brackets."""
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
        elif scope["type"] == "http":
            await self._handle_http(scope, receive, send)
        else:  # there are no web sockets here
            await send({"type": "websocket.close", "code": 1008})

    async def _handle_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = refuse_head(scope, self.limits) or self._find_refusal(scope)
        if refusal is not None:
            await send_refusal(send, refusal)
            return
        body = b"" if scope["path"] in OPEN else await read_body(receive, self.limits)
        if isinstance(body, bytes) and body:
            body = self._find_flaw(body) or body
        if isinstance(body, Refusal):
            await send_refusal(send, body)
        elif body is not None:
            await self.app(scope, replay_body(body, receive), send)

    def _find_refusal(self, scope: Scope) -> Refusal | None:
        """Find a reason to refuse a request that does not depend on its body; None if there is none."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        if self.loopback and not is_local(headers.get(b"host", b"").decode("latin-1")):
            return Refusal(421, "this service answers to localhost only")
        if scope["path"] in OPEN:
            return None
        if self.token is not None and not compare_secret(
            headers.get(b"authorization", b"").decode("latin-1"), f"Bearer {self.token}"
        ):
            return Refusal(401, "a token is needed: Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"})
        often = self.rates.refuse(scope)
        if often is not None:
            return often
        # A page of another site can send a form here without CORS, but no JSON.
        if scope["method"] == "POST" and headers.get(b"content-type", b"").split(b";")[0].strip() != b"application/json":
            return Refusal(415, "send application/json")
        return None

    def _find_flaw(self, body: bytes) -> Refusal | None:
        """Find a reason to refuse a body: no JSON, half of a character, or small values by the hundred thousand: each takes
        many times its bytes."""
        if sum(body.count(mark) for mark in (b",", b"[", b"{")) > self.limits.values:
            return Refusal(413, f"a request has at most {self.limits.values} values")
        try:
            parse_json(body, "the body")
        except DataError as error:
            return Refusal(400, str(error))
        return None


async def send_refusal(send: Send, refusal: Refusal) -> None:
    body = json.dumps({"error": refusal.why}).encode()
    fields = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"} | refusal.headers
    raw = [(name.lower().encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
