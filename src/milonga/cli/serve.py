"""The body of `milonga serve`: a socket, a pair, and the HTTP service between them."""

from __future__ import annotations

import contextlib
import math
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from milonga.auth import bind_socket, find_token, format_address, is_loopback
from milonga.errors import ConfigError, MissingExtra
from milonga.pair import Pair
from milonga.using.gate import Limits
from milonga.using.service import Service

LINGER = 5
"""Seconds that running requests have to finish when the service is stopped."""


def serve(
    folder: str,
    host: str,
    port: int,
    token_file: Path | None,
    rate: float,
    waiting: int,
    device: str | None,
    trust: Collection[str] = (),
    max_tokens: int | None = None,
) -> None:
    """Serve until interrupted or terminated. Options are checked before a model is loaded."""
    try:
        import uvicorn

        from milonga.connections import BoundedConfig
        from milonga.using.http import make_app
    except ImportError:
        raise MissingExtra("'milonga serve'", "serve") from None
    token = find_token(host, token_file)
    if not math.isfinite(rate):
        raise ConfigError(f"--rate {rate} is no number of requests")
    limits = Limits(rate=rate, waiting=waiting)
    with bind_socket(host, port) as listener:
        service = Service(Pair.open(folder, device=device, max_tokens=max_tokens, trust=trust), limits.waiting)
        app = make_app(service, limits, token, is_loopback(host))
        config = BoundedConfig(app, limits, ws="none", linger=LINGER)
        # uvicorn shuts down cleanly on both signals, and then raises them again for the previous handlers.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        sys.stderr.write(f"serving {folder} on {format_address(listener)}; Ctrl-C ends it\n")
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
