"""OpenAI-compatible servers on loopback: one with the embedded model behind it, and ones that misbehave as they are told."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from milonga.config import PolicySection
from milonga.engine import Decoding, Request
from milonga.engine.local import LocalEngine
from milonga.types import Part

NAME = "tiny"
"""The model of every server here."""


@dataclass(frozen=True)
class Reply:
    """What a server says: JSON, or bytes as they are."""

    body: Any
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    drip: float = 0.0
    """Seconds between two bytes."""


@dataclass
class Server:
    """A server that runs, and the requests that came: their bodies and headers."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    busy: int = 0
    busiest: int = 0
    """Most requests that were worked on at the same time."""

    @property
    def model(self) -> str:
        return f"openai:{self.url}#{NAME}"


Answer = Callable[[dict[str, Any], int], Reply]
"""From a request's body and its number, from 0, to the reply."""


def said(text: str, finish: str = "stop", tokens: tuple[int, int] = (10, 5), **more: Any) -> Reply:
    """A chat completion as OpenAI has it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish} | more
    return Reply({"choices": [choice], "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}})


@contextmanager
def serving(answer: Answer, models: Reply | None = None) -> Iterator[Server]:
    """A server that answers so, until the block ends."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            return None

        def do_GET(self) -> None:
            self.send(models or Reply({"data": [{"id": NAME}]}) if self.path == "/v1/models" else Reply("no such page", 404))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/chat/completions":
                return self.send(Reply("no such page", 404))
            with lock:
                number = len(server.bodies)
                server.bodies.append(body)
                server.headers.append(dict(self.headers))
                server.busy += 1
                server.busiest = max(server.busiest, server.busy)
            try:
                self.send(answer(body, number))
            finally:
                with lock:
                    server.busy -= 1

        def send(self, reply: Reply) -> None:
            raw = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            for name, value in ({"Content-Length": str(len(raw))} | dict(reply.headers)).items():
                self.send_header(name, value)
            self.end_headers()
            try:
                for at in range(len(raw)) if reply.drip else ():
                    self.wfile.write(raw[at : at + 1])
                    self.wfile.flush()
                    time.sleep(reply.drip)
                self.wfile.write(b"" if reply.drip else raw)
            except OSError:
                self.close_connection = True  # nobody waits for it any more

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: Any) -> None:
            return None

    with Quiet(("127.0.0.1", 0), Handler) as listener:
        server = Server(f"http://127.0.0.1:{listener.server_address[1]}/v1")
        thread = threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown()
            thread.join()


def embedded() -> Answer:
    """The embedded model: one message in, one output out, sampled by the seed of the request."""
    engine, lock = LocalEngine({NAME: PolicySection()}, "cpu"), threading.Lock()

    def answer(body: dict[str, Any], number: int) -> Reply:
        context = engine.encode(NAME, (Part(body["messages"][-1]["content"], foreign=True),))
        greedy = body["temperature"] == 0
        decoding = Decoding(body["max_tokens"], 1.0 if greedy else body["temperature"], greedy=greedy)
        with lock:
            (found,) = engine.sample(NAME, [Request(context, body["seed"])], decoding)
        return said(found.text, "length" if found.finish == "length" else "stop", (len(context), len(found.ids)))

    return answer
