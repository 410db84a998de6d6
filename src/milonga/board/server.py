"""Serving the board: a socket of our own, the guard before it, NiceGUI behind it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from milonga.board.catalogue import Catalogue
from milonga.board.guard import Guard, check_host, is_loopback
from milonga.errors import MissingExtra, UserError


def serve(root: Path, host: str, port: int, token: str | None, say: Callable[[str], None]) -> None:
    """Until it is interrupted. `say` is told the address once it can be opened."""
    check_host(host, token)
    catalogue = Catalogue(root)
    try:
        import uvicorn
        from fastapi import FastAPI
        from nicegui import ui
    except ImportError:
        raise MissingExtra("the board", "board") from None
    from milonga.board.pages import Board, install

    listener = listen(host, port)
    port = listener.getsockname()[1]
    install(Board(catalogue))
    # Where pandas is installed, pyarrow loads it with its first array: better now than while someone waits.
    threading.Thread(target=lambda: pa.array([0]), daemon=True).start()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(app, title="Milonga", dark=False, tailwind=False, show_welcome_message=False, reconnect_timeout=10)
    config = uvicorn.Config(Guard(app, host, port, token), log_level="warning", access_log=False, lifespan="on")
    say(f"board of {catalogue.root}: {address(host, port)}  (Ctrl-C ends it)")
    if token is not None:
        say("the first time, open it with ?token=… behind the address")
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound; port 0 takes any that is free."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(128)
    except (OSError, OverflowError) as error:
        raise UserError(f"cannot serve on {host}, port {port}: {error}; choose another --port") from None
    return listener


def address(host: str, port: int) -> str:
    name = host if is_loopback(host) or host not in ("0.0.0.0", "::") else socket.gethostname()
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"
