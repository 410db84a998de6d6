"""What a run went on after, on the console: a line each, without the place in the code that said it."""

from __future__ import annotations

import sys
import warnings
from typing import Any

from milonga.errors import Notice


def show_as_lines() -> None:
    """From now on, in this process. Python itself would show the second of two alike notices nowhere."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, Notice):
            sys.stderr.write(f"milonga: {' '.join(str(message).split())}\n")
        else:
            usual(message, category, *where, **more)

    warnings.simplefilter("always", Notice)
    warnings.showwarning = show
