"""Serve the board: NiceGUI behind the guard, on a socket that we open ourselves."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from milonga.auth import bind_socket, format_address
from milonga.board.catalogue import Catalogue
from milonga.board.guard import BOUNDS, Guard
from milonga.errors import MissingExtra


def serve(root: Path, host: str, port: int, token: str | None, say: Callable[[str], None]) -> None:
    """Serve until interrupted. `say` is called with the address once it can be opened."""
    catalogue = Catalogue(root)
    try:
        import uvicorn
        from fastapi import FastAPI
        from nicegui import ui
    except ImportError:
        raise MissingExtra("the board", "board") from None
    from milonga.board.pages import Board, install
    from milonga.connections import BoundedConfig

    # What these would log quotes what a client sent, in a terminal that obeys it.
    for name, level in (
        ("nicegui", logging.ERROR),
        ("engineio.server", logging.CRITICAL),
        ("socketio.server", logging.CRITICAL),
    ):
        logging.getLogger(name).setLevel(level)
    listener = bind_socket(host, port)
    install(Board(catalogue))
    # Where pandas is installed, pyarrow loads it with its first array: better now than while someone waits.
    threading.Thread(target=lambda: pa.array([0]), daemon=True).start()
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    ui.run_with(app, title="Milonga", dark=False, tailwind=False, show_welcome_message=False, reconnect_timeout=10)
    config = BoundedConfig(Guard(app, listener.getsockname()[1], token), BOUNDS, ws="auto")
    say(f"board of {catalogue.root}: {format_address(listener)}/  (Ctrl-C ends it)")
    if token is not None:
        say("the first time, open it with ?token=… behind the address")
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listener])
