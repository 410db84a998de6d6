"""Print notices (recovered errors) on the console: one line each, without the source location that Python would add."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from typing import Any

from milonga.errors import Notice
from milonga.text import escape_invisible


def print_line(text: str) -> None:
    """Print a line of our own on stderr. Where nobody reads it any more, that ends nothing."""
    with suppress(OSError):
        sys.stderr.write(f"milonga: {escape_invisible(text)}\n")


def show_as_lines() -> None:
    """Print every notice of this process as one line from now on. Python by default would drop a repeated notice."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, Notice):
            print_line(" ".join(str(message).split()))
        else:
            usual(message, category, *where, **more)

    warnings.simplefilter("always", Notice)
    warnings.showwarning = show
