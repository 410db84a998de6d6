"""HTTP connections of our servers, with bounds: uvicorn's, whose every phase but our own work ends by itself.

Invariants: a client that is waited for (for a head, for an answer to be taken) is waited for within its seconds, then
disconnected; more connections than allowed are refused as they open; what is no HTTP is refused in one JSON line, and nothing
that a client does is an error in our log.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
from dataclasses import replace
from typing import Any, Literal

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from milonga.auth import App
from milonga.bounds import RETRY, Bounds, Refusal, identify_client

BACKLOG = 128
"""Most connections that are accepted at once; those beyond the bound are open until they are refused."""
PART = 1 << 16
"""Fewest bytes of a waiting answer that a client takes in its time, if it does not take them all."""


class BoundedConfig(uvicorn.Config):
    """The configuration of a server: an application and its bounds. One event loop and one parser, whatever is installed."""

    def __init__(self, app: App, bounds: Bounds, ws: Literal["auto", "none"], linger: int | None = None) -> None:
        super().__init__(
            app,
            http=BoundedConnection,
            ws=ws,
            ws_max_size=bounds.body,
            loop="asyncio",
            lifespan="on",
            backlog=BACKLOG,
            log_level="error",  # a client could fill the log with warnings
            access_log=False,
            server_header=False,
            proxy_headers=False,  # whoever could set them could be any client
            timeout_graceful_shutdown=linger,
            h11_max_incomplete_event_size=bounds.head,
        )
        # Where fewer files may be open, the system would refuse connections, with a traceback for each.
        descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.bounds = replace(bounds, connections=min(bounds.connections, descriptors // 2))


class BoundedConnection(H11Protocol):
    """A connection that is refused, or ended, where it goes beyond its bounds."""

    def __init__(
        self,
        config: BoundedConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.bounds = config.bounds
        self._patience: asyncio.TimerHandle | None = None
        """Ends the connection, while the client is waited for."""
        self._unsent = 0
        """Bytes that waited for the client when it was last looked at."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_patience(self.bounds.head_seconds)
        mine = _name_peer(transport)
        if len(self.connections) > self.bounds.connections:
            self._refuse(Refusal(503, "too many connections are open", RETRY))
        elif sum(_name_peer(other.transport) == mine for other in self.connections) > self.bounds.per_client:
            self._refuse(Refusal(429, f"a client has at most {self.bounds.per_client} open connections", RETRY))

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_patience()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # In pieces: a head that comes in one piece would be parsed whole before it is found to be too long.
        for start in range(0, len(data), self.bounds.head):
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            super().data_received(data[start : start + self.bounds.head])

    def handle_events(self) -> None:
        super().handle_events()
        if self.is_working():
            self._stop_patience()

    def is_working(self) -> bool:
        """Whether a request is under way, rather than waited for."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.disconnected

    def on_response_complete(self) -> None:
        # Before the rest: it may begin with the next request, if that has come.
        waits = self.transport.get_write_buffer_size() > 0
        self._start_patience(self.bounds.seconds if waits else self.bounds.head_seconds)
        super().on_response_complete()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._stop_patience()
        super().handle_websocket_upgrade(event)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_patience(self.bounds.seconds)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.is_working():
            self._stop_patience()

    def send_400_response(self, msg: str) -> None:
        error = sys.exception()  # uvicorn calls this while it handles the parser's error, without passing it on
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._refuse(Refusal(431, f"the head of a request has at most {self.bounds.head} bytes"))
        else:
            self._refuse(Refusal(400, "not a request of HTTP/1.1"))

    def _start_patience(self, seconds: float) -> None:
        self._stop_patience()
        self._unsent = self.transport.get_write_buffer_size()
        self._patience = self.loop.call_later(seconds, self._lose_patience)

    def _stop_patience(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _lose_patience(self) -> None:
        """End the connection, unless its answer is being taken; a client that sent a part of a head is told why."""
        unsent = self.transport.get_write_buffer_size()
        if 0 < unsent <= self._unsent - PART:
            self._start_patience(self.bounds.seconds)
            return
        begun = self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]
        if begun and not self.transport.is_closing():
            self._refuse(Refusal(408, f"a head took more than {self.bounds.head_seconds:g} seconds to arrive"))
        else:
            self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        """Answer a refusal and close; where an answer has begun, there is only the end of the connection."""
        if self.is_working():  # the application shall write no second answer
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        body = json.dumps({"error": refusal.why}).encode()
        fields = {"content-type": "application/json", "content-length": str(len(body)), "connection": "close"}
        for event in (
            h11.Response(status_code=refusal.status, headers=list((fields | refusal.headers).items())),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self._start_patience(self.bounds.head_seconds)


def _name_peer(transport: asyncio.BaseTransport) -> str:
    peer = transport.get_extra_info("peername")
    return identify_client(peer[0]) if peer else ""
