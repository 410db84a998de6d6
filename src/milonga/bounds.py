"""What a client of our servers may take: bytes, seconds and connections. Plain ASGI; `milonga.connections` has the sockets.

Invariants: a head is judged before anything else reads it, so that no later code meets a malformed Host, two lengths of one
body, or a head without bound; a body is read here alone, within its bytes and seconds.
"""

from __future__ import annotations

import asyncio
import ipaddress
import math
import re
import time
from collections import OrderedDict
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from milonga.auth import Receive, Scope

HOST = re.compile(r"([A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(:[0-9]{0,5})?", re.ASCII)
CLIENTS = 4096
"""Most clients whose rate is remembered; the least recent ones are forgotten."""
RETRY = {"Retry-After": "1"}
"""Header of refusals that pass by themselves: seconds after which to try again."""


@dataclass(frozen=True)
class Bounds:
    """What one client, and all of them together, may take of a server."""

    head: int = 16 << 10
    """Most bytes of a request's head: its first line and its headers; then 431."""
    headers: int = 100
    target: int = 8 << 10
    """Most bytes of the address in the first line; then 414."""
    head_seconds: float = 10.0
    """Most seconds for a head to arrive, from the opening of the connection or the previous answer; then 408."""
    body: int = 1 << 20
    """Most bytes of a request's body; then 413."""
    seconds: float = 30.0
    """Most seconds for the body to arrive (then 408), and for a part of an answer to be taken (then the connection ends)."""
    connections: int = 512
    """Most open connections; then 503."""
    per_client: int = 256
    """Most open connections of one client; then 429."""


@dataclass(frozen=True)
class Refusal:
    """An answer in place of the one that was asked for."""

    status: int
    why: str
    headers: dict[str, str] = field(default_factory=dict)


@lru_cache(4096)
def identify_client(address: str) -> str:
    """Whom an address counts for: itself, or in IPv6 its network, since one client has all addresses of a /64."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((found, 64), strict=False))


def refuse_head(scope: Scope, bounds: Bounds) -> Refusal | None:
    """Refuse a head that is too large or that two readers could take for two things; None if it is well-formed."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    names = [name.lower() for name, _ in headers]
    if len(headers) > bounds.headers or sum(len(name) + len(value) for name, value in headers) > bounds.head:
        return Refusal(431, f"a request has at most {bounds.headers} headers, and {bounds.head} bytes of them")
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > bounds.target:
        return Refusal(414, f"an address has at most {bounds.target} bytes")
    if scope.get("http_version", "1.1") not in ("1.0", "1.1"):
        return Refusal(400, "send HTTP/1.1")
    if b"content-length" in names and b"transfer-encoding" in names:
        return Refusal(400, "a body has either Content-Length or Transfer-Encoding")
    hosts = [value for name, value in headers if name.lower() == b"host"]
    if len(hosts) > 1 or any(HOST.fullmatch(host.decode("latin-1")) is None for host in hosts):
        return Refusal(400, "the Host header is malformed")
    announced = dict(zip(names, (value for _, value in headers), strict=True)).get(b"content-length", b"0")
    if not announced.isdigit() or len(announced) > len(str(bounds.body)) or int(announced) > bounds.body:
        return refuse_body(bounds)
    return None


def refuse_body(bounds: Bounds) -> Refusal:
    return Refusal(413, f"a request has at most {bounds.body} bytes")


async def read_body(receive: Receive, bounds: Bounds) -> bytes | Refusal | None:
    """Read the whole body, or return a refusal: the body may be longer than announced, or never end. None if the client has
    disconnected."""
    chunks, size = [], 0
    try:
        async with asyncio.timeout(bounds.seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return None
                chunks.append(message.get("body", b""))
                size += len(chunks[-1])
                if size > bounds.body:
                    return refuse_body(bounds)
                if not message.get("more_body", False):
                    return b"".join(chunks)
    except TimeoutError:
        return Refusal(408, f"the request took more than {bounds.seconds:g} seconds to arrive")


def replay_body(body: bytes, receive: Receive) -> Receive:
    """Make a `receive` that replays the body already read, then passes on later messages, such as a disconnect."""
    waiting = [body]

    async def again() -> MutableMapping[str, Any]:
        if waiting:
            return {"type": "http.request", "body": waiting.pop(), "more_body": False}
        return await receive()

    return again


class Rates:
    """A token-bucket rate limiter, with one bucket per client that holds a minute's requests."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def refuse(self, scope: Scope) -> Refusal | None:
        """Refuse a request of a client that asks too often; else it is counted."""
        wait = self.wait(identify_client(scope["client"][0]) if scope.get("client") else "")
        if wait <= 0:
            return None
        return Refusal(429, f"more than {self.rate:g} requests a minute", {"Retry-After": str(math.ceil(wait))})

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
