"""Hostile requests to a server on this machine, as bytes, and what may come back. For the tests and `soak_serve.py`."""

from __future__ import annotations

import random
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

HOST = b"Host: localhost\r\n"
CLOSE = b"Connection: close\r\n"
JSON = b"Content-Type: application/json\r\n"
CHUNKED = b"POST /solve HTTP/1.1\r\n" + HOST + JSON + b"Transfer-Encoding: chunked\r\n\r\n"
QUESTION = b'{"question": "1+1%100"}'


@dataclass(frozen=True)
class Attack:
    """A request, and the statuses of its answers; several for requests in one go."""

    name: str
    data: bytes
    statuses: tuple[int, ...]


def write_head(method: bytes, path: bytes, *headers: bytes, version: bytes = b"HTTP/1.1") -> bytes:
    return method + b" " + path + b" " + version + b"\r\n" + b"".join(headers) + b"\r\n"


def write_post(path: bytes, body: bytes) -> bytes:
    return write_head(b"POST", path, HOST, JSON, CLOSE, b"Content-Length: %d\r\n" % len(body)) + body


MALFORMED = (
    Attack("a header of 500 KB", write_head(b"GET", b"/health", HOST, b"X: " + b"a" * 500_000 + b"\r\n"), (431,)),
    Attack("a header of 17 KB", write_head(b"GET", b"/health", HOST, b"X: " + b"a" * 17_000 + b"\r\n"), (431,)),
    Attack("200 headers", write_head(b"GET", b"/health", HOST, *(b"X%d: a\r\n" % n for n in range(200))), (431,)),
    Attack("an address of 9 KB", write_head(b"GET", b"/" + b"a" * 9_000, HOST), (414,)),
    Attack("an address of 90 KB", write_head(b"GET", b"/" + b"a" * 90_000, HOST), (431,)),
    Attack("HTTP/0.9", b"GET /health\r\n\r\n", (400,)),
    Attack("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", (400,)),
    Attack("HTTP/2.0", write_head(b"GET", b"/health", HOST, version=b"HTTP/2.0"), (400,)),
    Attack("TLS", bytes.fromhex("16030100a1010000") + b"\3\3" + b"x" * 150, (400,)),
    Attack("a space before a colon", write_head(b"GET", b"/health", b"Host : localhost\r\n"), (400,)),
    Attack("NUL in an address", write_head(b"GET", b"/\0", HOST), (400,)),
    Attack("NUL in a header", write_head(b"GET", b"/health", HOST, b"X: \0\r\n"), (400,)),
    Attack("two hosts", write_head(b"GET", b"/health", HOST, HOST), (400,)),
    Attack("half an address as host", write_head(b"GET", b"/health", b"Host: localhost:[\r\n"), (400,)),
    Attack("no host", write_head(b"GET", b"/health", version=b"HTTP/1.0"), (421,)),
    Attack("another host", write_head(b"GET", b"/health", b"Host: far.example\r\n", CLOSE), (421,)),
    Attack("two kinds of length", CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n0\r\n\r\n", (400,)),
    Attack("two lengths", write_head(b"POST", b"/solve", HOST, b"Content-Length: 1\r\nContent-Length: 2\r\n"), (400,)),
    Attack("a negative length", write_head(b"POST", b"/solve", HOST, b"Content-Length: -1\r\n"), (400,)),
    Attack(
        "a length of 5,000 digits", write_head(b"POST", b"/solve", HOST, b"Content-Length: " + b"9" * 5000 + b"\r\n"), (400,)
    ),
    Attack("a length of 2 GB", write_head(b"POST", b"/solve", HOST, JSON, b"Content-Length: 2147483648\r\n"), (413,)),
    Attack("an encoding that is none", write_head(b"POST", b"/solve", HOST, b"Transfer-Encoding: gzip\r\n"), (400,)),
    Attack("a bad size of a chunk", CHUNKED + b"zz\r\n\r\n", (400,)),
    Attack("a chunk without a size", CHUNKED + b"\r\n\r\n", (400,)),
    Attack("a size of 5,000 digits", CHUNKED + b"f" * 5000 + b"\r\nabc", (400,)),
)
"""What no server of ours takes for a request."""
UNUSUAL = (
    Attack(
        "a web socket", write_head(b"GET", b"/health", HOST, b"Upgrade: websocket\r\nConnection: Upgrade, close\r\n"), (200,)
    ),
    Attack(
        "HTTP/2 as an upgrade", write_head(b"GET", b"/health", HOST, b"Upgrade: h2c\r\nConnection: Upgrade, close\r\n"), (200,)
    ),
    Attack("bare line feeds", b"GET /health HTTP/1.1\nHost: localhost\nConnection: close\n\n", (200,)),
    Attack("a whole URI", write_head(b"GET", b"http://localhost/health", HOST, CLOSE), (404,)),
    Attack("CONNECT", write_head(b"CONNECT", b"localhost:80", HOST, CLOSE), (404,)),
    Attack("OPTIONS *", write_head(b"OPTIONS", b"*", HOST, CLOSE), (404,)),
    Attack("another method", write_head(b"F|O", b"/health", HOST, CLOSE), (405,)),
    Attack("dots", write_head(b"GET", b"/../../etc/passwd", HOST, CLOSE), (404,)),
    Attack("a slash too many", write_head(b"GET", b"/solve/", HOST, CLOSE), (404,)),
    Attack(
        "requests in one go",
        write_head(b"GET", b"/health", HOST) * 20 + write_head(b"GET", b"/health", HOST, CLOSE),
        (200,) * 21,
    ),
    Attack("a request, then none", write_head(b"GET", b"/health", HOST) + b"\0\0none\r\n\r\n", (200, 400)),
    Attack(
        "an answer before a bad chunk",
        write_head(b"GET", b"/health", HOST, b"Transfer-Encoding: chunked\r\n") + b"zz\r\n\r\n",
        (400,),
    ),
)
"""Rare, but HTTP."""
BODIES = (
    Attack("half a character in an id", write_post(b"/solve", b'{"problems": [{"question": "1", "id": "\\ud800"}]}'), (400,)),
    Attack("half a character in a text", write_post(b"/solve", b'{"problems": [{"question": "\\udfff"}]}'), (400,)),
    Attack("half a character in a key", write_post(b"/solve", b'{"problems": [' + QUESTION + b'], "\\ud800": 1}'), (400,)),
    Attack("no JSON", write_post(b"/solve", b"{"), (400,)),
    Attack("UTF-16", write_post(b"/solve", '{"problems": []}'.encode("utf-16")), (400,)),
    Attack("NaN", write_post(b"/verify", b'{"solutions": [{"problem": "1", "steps": ["1"], "answer": NaN}]}'), (400,)),
    Attack("infinity", write_post(b"/verify", b'{"solutions": [{"problem": "1", "steps": ["1"], "answer": 1e999}]}'), (400,)),
    Attack("40,000 lists in each other", write_post(b"/solve", b'{"x": ' + b"[" * 40_000 + b"]" * 40_000 + b"}"), (400,)),
    Attack("500 lists in each other", write_post(b"/solve", b'{"problems": ' + b"[" * 500 + b"]" * 500 + b"}"), (400,)),
    Attack("300,000 values", write_post(b"/solve", b'{"problems": [' + b"[]," * 300_000 + b"[]]}"), (413,)),
    Attack(
        "a seed of 4,000 digits",
        write_post(b"/solve", b'{"problems": [' + QUESTION + b'], "seed": ' + b"9" * 4000 + b"}"),
        (400,),
    ),
    Attack(
        "a seed of 5,000 digits",
        write_post(b"/solve", b'{"problems": [' + QUESTION + b'], "seed": ' + b"9" * 5000 + b"}"),
        (400,),
    ),
    Attack("many checks", write_post(b"/solve", b'{"problems": [' + QUESTION + b'], "checks": ' + b"9" * 4000 + b"}"), (400,)),
    Attack(
        "a key of 500 KB", write_post(b"/solve", b'{"problems": [' + QUESTION + b'], "' + b"k" * 500_000 + b'": 1}'), (422,)
    ),
)
"""JSON that is none, or too much, in well-formed requests to `serve`."""


def exchange(port: int, data: bytes, half: bool = False, seconds: float = 60) -> bytes:
    """Send bytes; everything that comes back until the server closes. With `half` it is told that no more will come."""
    back = bytearray()
    with socket.create_connection(("127.0.0.1", port), timeout=seconds) as raw, suppress(ConnectionError):
        # A server that closes while bytes are under way resets the connection, behind what it has answered.
        with suppress(OSError):
            raw.sendall(data)
            if half:
                raw.shutdown(socket.SHUT_WR)
        while piece := raw.recv(1 << 16):
            back += piece
    return bytes(back)


def list_statuses(answer: bytes) -> tuple[int, ...]:
    return tuple(int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answer) if status != b"100")


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Change a request at a few places: bytes replaced, left out, doubled, or the rest cut off."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.choice((1, 2, 8, 64)))
        kind = rng.randrange(4)
        out[at:end] = (rng.randbytes(end - at), b"", bytes(out[at:end]) * 2, bytes(out[at:end]))[kind]
        if kind == 3:
            del out[end:]
    return bytes(out)


def iterate_mutants(rng: random.Random) -> Iterator[bytes]:
    """Mutants of all requests above, of their neighbourhoods, without end."""
    kinds = [attack.data for attack in (*MALFORMED, *UNUSUAL, *BODIES) if len(attack.data) < 20_000]
    while True:
        yield mutate(rng.choice(kinds) + (rng.choice(kinds) if rng.random() < 0.2 else b""), rng)
