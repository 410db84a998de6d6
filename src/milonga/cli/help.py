"""The structure of the help: groups of commands and options, and examples that a test parses.

Invariant: every example is a whole command line that is accepted as it stands; what follows a `#` is for the reader.
"""

from __future__ import annotations

TRAIN, MEASURE, LOOK, USE, BUILD = "Train", "Measure", "Look", "Use what was trained", "Build your own"
"""Groups of commands, in the order of a day's work."""
MODELS, SETTINGS, OUTPUT = "Models and device", "Settings", "Output"
"""Groups of options."""

TITLE = "Examples:"


def format_examples(*lines: str) -> str:
    """Format the end of a command's help: `epilog=examples("milonga show runs/tango  # curves and transcripts")`."""
    return "\n".join((TITLE, *lines))


def parse_examples(epilog: str | None) -> list[str]:
    """Return the lines that `examples` was given."""
    title, *lines = (epilog or "").split("\n")
    return lines if title == TITLE else []
