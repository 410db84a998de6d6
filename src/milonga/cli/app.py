"""The command `milonga`.

Invariants: a user's mistake is one line on stderr and exit code 2, never a traceback; progress goes to stderr; with
`--json` stdout is one JSON object, and tables go to stderr too. Every command ends its help with examples, which a test parses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from milonga.cli import commands as commands  # which registers them
from milonga.cli import completion, notices
from milonga.cli.shell import app, console
from milonga.errors import UserError
from milonga.interrupts import SIGNALS, stop_on_signals

STOPPED = tuple(128 + number for number in SIGNALS)


def run_guarded(command: Callable[[], Any]) -> int:
    """Run a command; a user's mistake becomes one line and exit code 2."""
    code: Any = 0
    try:
        code = command()
    except UserError as error:
        return _print_error(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED[0]
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _print_error(f"{error.format_message()} (see --help)")  # the parser's own: a wrong command, option or value
    if code in STOPPED:
        notices.print_line("stopped")
    return code if isinstance(code, int) else 0


def _print_error(text: str) -> int:
    notices.print_line(" ".join(text.split()))
    return 2


def main() -> None:
    """The entry point of the `milonga` command."""
    # Loading bars of small models only hide what matters.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    notices.show_as_lines()
    console.stderr = False  # a command before this one, in the same process, may have moved its tables
    with completion.join_bash_words(), stop_on_signals():
        sys.exit(run_guarded(lambda: app(sys.argv[1:] or ["--help"], prog_name="milonga", standalone_mode=False)))
