"""The command `milonga`.

Invariants: a user's mistake is one line on stderr and exit code 2, never a traceback; progress goes to stderr; with
`--json` stdout is one JSON object, and tables go to stderr too. Every command ends its help with examples, which a test parses.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from typing import Any

import typer

from milonga.cli import commands as commands  # which registers them
from milonga.cli import completion, notices
from milonga.cli.shell import app, console
from milonga.errors import UserError, explain_lost_memory
from milonga.interrupts import SIGNALS, stop_on_signals
from milonga.synonyms import FLAGS, find_setting

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
    """Explain an error of the parser; for an option that is known by another name, or as a key, say how it is written here."""
    text, context = f"{error.format_message()} (see --help)", getattr(error, "ctx", None)
    if not (name := getattr(error, "option_name", None)) or context is None:
        return text
    taken = {flag for parameter in context.command.params for flag in parameter.opts}
    return f"No such option: {name}: {said} (see --help)" if (said := suggest_option(name, taken)) else text


def suggest_option(name: str, taken: Collection[str]) -> str | None:
    """Suggest an option of a command that takes these, for one that it does not: near in meaning, not in letters."""
    found = find_setting(name)
    flag = FLAGS.get(name.strip("-").replace("-", "_")) or (found.flag if found is not None else "")
    if flag in taken:
        return f"did you mean {flag}?"
    if found is not None and "--set" in taken:
        which = " (NAME: a policy, such as generator)" if "NAME" in found.key else ""
        return f"did you mean --set {found.key}=...?{which}"
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
