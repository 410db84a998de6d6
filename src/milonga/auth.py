"""Authentication and sockets of our servers: tokens, loopback checks, listening.

Invariants: without a token only loopback is served, and only to requests under a name of this machine, so that no foreign site
can reach it by a name of its own that points here (DNS rebinding); tokens are compared in constant time and come from a file
or the environment, because a command line is visible to everybody on the machine.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from milonga.errors import ConfigError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application."""
TOKEN = "MILONGA_TOKEN"
SHORTEST = 16


def find_token(host: str, file: Path | None) -> str | None:
    """Read the token from a file, else from the environment; None if there is none and only loopback is served."""
    try:
        token = os.environ.get(TOKEN, "") if file is None else file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file '{file}' cannot be read: {error}") from None
    if not token:
        if file is not None:
            raise ConfigError(f"--token-file '{file}' is empty")
        if not is_loopback(host):
            raise ConfigError(
                f"--host {host} can be reached by others: set a token with {TOKEN} or --token-file, or use --host 127.0.0.1"
            )
        return None
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"a token has at least {SHORTEST} characters, all of them printable ASCII and no spaces")
    return token


def compare_secret(given: str, secret: str) -> bool:
    """Whether a given string equals the secret, compared in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), secret.encode())


def is_loopback(host: str) -> bool:
    """Whether an address or a host name can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(header: str) -> bool:
    """Whether a Host header names this machine by one of its own names, with any port."""
    name = header.rpartition("]")[0].removeprefix("[") if header.startswith("[") else header.partition(":")[0]
    return is_loopback(name.lower())


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind a listening socket; port 0 takes any free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except (OSError, OverflowError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(f"cannot listen on --host {host} --port {port}: {why}; choose another --port") from None


def format_address(listener: socket.socket) -> str:
    """Format the URL to open in a browser on this machine; with the host's name if all of its addresses are served."""
    host, port = listener.getsockname()[:2]
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"
