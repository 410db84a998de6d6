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
from milonga.errors import UserError, explain_lost_memory
from milonga.interrupts import SIGNALS, stop_on_signals
from milonga.synonyms import suggest_option

LESS = "ask for fewer problems, samples or tokens at once (see --help), or take a smaller model"
"""What needs less memory, whichever command it is; a run says it more exactly."""
STOPPED = tuple(128 + number for number in SIGNALS)


def run_guarded(command: Callable[[], Any]) -> int:
    """Run a command; a user's mistake becomes one line and exit code 2."""
    code: Any = 0
    try:
        with explain_lost_memory(LESS):
            code = command()
    except UserError as error:
        return _print_error(str(error))
    except (KeyboardInterrupt, typer.Abort):
        code = STOPPED[0]
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _print_error(_explain_parser(error))  # the parser's own: a wrong command, option or value
    if code in STOPPED:
        notices.print_line("stopped")
    return code if isinstance(code, int) else 0


def _explain_parser(error: Any) -> str:
    """Explain an error of the parser. For an option that is known by another name, say how it is written here; for an argument
    that is missing, what it is."""
    text, context = error.format_message(), getattr(error, "ctx", None)
    kind = type(error).__name__
    if kind == "MissingParameter" and (meant := getattr(error.param, "help", None)):
        text = f"{text.rstrip('.')}: {meant.rstrip('.')}"
    if kind == "NoSuchOption" and context is not None:
        taken = {flag for parameter in context.command.params for flag in parameter.opts}
        said = suggest_option(context.info_name, error.option_name, _find_value(error.option_name), taken)
        text = f"No such option: {error.option_name}: {said}" if said else text
    return f"{text} (see --help)"


def _find_value(option: str) -> str | None:
    """Find what was given to an option that is unknown, and may have a value or not; None if there is none."""
    words = sys.argv[1:]
    for word, after in zip(words, [*words[1:], "-"], strict=True):
        name, equals, value = word.partition("=")
        if name == option and (equals or not after.startswith("-")):
            return value if equals else after
    return None


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
