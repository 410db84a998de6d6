"""What a command that goes on where it stopped says when a signal stops it: the command line that does so."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from milonga.cli.notices import print_line
from milonga.interrupts import get_exit_code


@contextmanager
def say_how_to_go_on(*more: str, without: str = "") -> Iterator[None]:
    """Say, when a signal stops this block, the command by which the work goes on, and end with the exit code of the signal.

    It is the command as it was typed, with `more` options, and without the option that is named, which holds for once.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        name, *words = sys.argv[1:]
        again = ["milonga", name, *more, *(drop_option(words, without) if without else words)]
        print_line(f"stopped; to go on: {shlex.join(again)}")
        sys.exit(get_exit_code(error))  # past the handler of all commands, which knows no command to name


def drop_option(words: Sequence[str], option: str) -> list[str]:
    """Drop an option with its value, as `--option value` and as `--option=value`."""
    values = {at + 1 for at, word in enumerate(words) if word == option}
    return [word for at, word in enumerate(words) if at not in values and word.partition("=")[0] != option]
