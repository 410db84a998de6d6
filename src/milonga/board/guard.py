"""Access control of the board, as ASGI middleware.

Invariants: without a token only requests under a name of this machine are served (`milonga.auth`); with a token nothing is
served without it; a page of another origin cannot open a web socket; a browser is told to load nothing from elsewhere;
the application sees well-formed heads and bodies within their bounds alone (`milonga.bounds`).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from milonga.auth import App, Receive, Scope, Send, compare_secret, is_local
from milonga.bounds import Bounds, Rates, Refusal, read_body, refuse_head, replay_body

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
BOUNDS = Bounds(body=1 << 16)
"""A page sends clicks and words, and no files."""
PARTS = ("/_nicegui/", "/_nicegui_ws/")
"""Where the files and the socket of a page are."""
PAGES = 120.0
"""Most pages that one client opens a minute: each takes a megabyte until a minute after nobody looks at it."""


class Guard:
    """ASGI middleware that checks host, origin and token before the application sees a request."""

    def __init__(self, app: App, port: int, token: str | None) -> None:
        self.app, self.token = app, token
        self.rates = Rates(PAGES)
        self.cookie = f"milonga-{port}"
        self.pass_word = hmac.new((token or "").encode(), b"milonga cookie", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        malformed = refuse_head(scope, BOUNDS)
        if malformed is not None:
            await send_refusal(scope, send, malformed)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        query = dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        refusal = self.find_refusal(headers)
        if refusal is None and self.token is not None and not self.is_authenticated(headers):
            if scope["type"] == "http" and compare_secret(query.pop("token", ""), self.token):
                await self.set_cookie_and_redirect(scope["path"], query, send)
                return
            refusal = Refusal(401, "this page needs its token: open the link with ?token=… once")
        if refusal is not None:
            await send_refusal(scope, send, refusal)
            return
        await self.pass_on(scope, receive, send)

    async def pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer: a request with its whole body, or a web socket."""
        if scope["type"] == "http":
            often = None if scope["path"].startswith(PARTS) else self.rates.refuse(scope)
            body = often or await read_body(receive, BOUNDS)
            if isinstance(body, Refusal):
                await send_refusal(scope, send, body)
            if not isinstance(body, bytes):
                return
            receive = replay_body(body, receive)
        await self.app(scope, receive, _add_security_headers(send))

    def find_refusal(self, headers: dict[str, str]) -> Refusal | None:
        host = headers.get("host", "")
        if self.token is None and not is_local(host):
            return Refusal(421, "this page is served to its own machine only, under the name localhost or 127.0.0.1")
        origin = headers.get("origin")
        # An origin is a scheme and a host, nothing else: what a URL parser makes of more does not matter.
        if origin is not None and (not host or origin.lower().partition("://")[2] != host.lower()):
            return Refusal(403, "a page of another origin may not ask")
        # What another site loads into its own page, such as an image, has no origin; a link that is followed is a document.
        if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-dest") != "document":
            return Refusal(403, "a page of another origin may not ask")
        return None

    def is_authenticated(self, headers: dict[str, str]) -> bool:
        """Whether a request carries the cookie, or the token itself as a bearer token."""
        assert self.token is not None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and compare_secret(bearer, self.token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return cookie is not None and compare_secret(cookie.value, self.pass_word)

    async def set_cookie_and_redirect(self, path: str, query: dict[str, str], send: Send) -> None:
        """Set the cookie and redirect to the same page without the token, so that the token is in no browser history."""
        there = "/" + quote(path.lstrip("/\\")) + (f"?{urlencode(query)}" if query else "")
        cookie = f"{self.cookie}={self.pass_word}; Path=/; HttpOnly; SameSite=Lax"
        headers = [(b"location", there.encode("ascii")), (b"set-cookie", cookie.encode()), *HEADERS]
        await send_response(send, 303, headers, b"")


async def send_refusal(scope: Scope, send: Send, refusal: Refusal) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.why})
    else:
        fields = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close"), *HEADERS]
        fields += [(name.lower().encode(), value.encode()) for name, value in refusal.headers.items()]
        await send_response(send, refusal.status, fields, f"milonga: {refusal.why}\n".encode())


async def send_response(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _add_security_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *HEADERS]}
        await send(message)

    return sending
