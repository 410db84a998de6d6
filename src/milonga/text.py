"""Format untrusted text and numbers for people (terminal, page, chart), and tell how far two texts are apart."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import Any

MOST_WORDS = 4000
"""Words of a text that are compared."""
UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def escape_invisible(text: str, lines: bool = False) -> str:
    """Escape invisible characters: terminal control codes, direction marks and other characters without a shape.

    Invariant: every character of the result is printable (with `lines`, a line break stays one), so it is also legal in XML.
    """
    return "".join(c if c.isprintable() or (lines and c == "\n") else c.encode("unicode_escape").decode() for c in text)


def format_number(value: Any) -> str:
    return "—" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def format_share(value: float) -> str:
    return f"{100 * value:.0f} %"


def format_amount(value: float | None) -> str:
    """Format a count with three significant digits and a unit: 12, 4.5k, 89.5G."""
    if value is None:
        return "—"
    for size, unit in UNITS:
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.4g}"


def clip_text(text: str, most: int) -> str:
    """Clip a text to at most `most` characters; an ellipsis marks the cut."""
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def edit_distance(left: str, right: str) -> int:
    """Return the Levenshtein distance: characters to insert, delete or replace."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        before, row = row, [i]
        for j, b in enumerate(right, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (a != b)))
    return row[-1]


def compare_words(one: str, other: str) -> float:
    """Return how similar two texts are, from 0 to 1: twice the words and signs that match in order, over those of both."""
    return _match_words(one, other).ratio()


def longest_common_run(one: str, other: str) -> int:
    """Return how many words and signs in a row two texts have in common, at most."""
    return _match_words(one, other).find_longest_match().size


def _match_words(one: str, other: str) -> SequenceMatcher[str]:
    """Match two texts by words and signs; case and white space do not count."""
    left, right = (re.findall(r"\w+|[^\w\s]", text.casefold())[:MOST_WORDS] for text in (one, other))
    return SequenceMatcher(None, left, right, autojunk=False)
