"""Environment variables that Ray reads once, when it is imported: they must be set before."""

from __future__ import annotations

import os
import sys
from pathlib import Path

TOKEN_FILE = "~/.ray/auth_token"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent home
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # no advice about workers without a GPU
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # nor what a lost worker leaves behind: the engine says what happened
}


def prepare() -> None:
    """Keep Ray quiet; and use a token where there is one. To a new cluster Ray gives one by itself, but a process that joins a
    cluster must say beforehand that it has one. Whoever has loaded Ray already has decided."""
    if "ray" in sys.modules:
        return
    for key, value in QUIET.items():
        os.environ.setdefault(key, value)
    named = any(os.environ.get(key) for key in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if named or Path(TOKEN_FILE).expanduser().is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
