"""Format untrusted text and numbers for people (terminal, page, chart), and tell how far two texts are apart."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

MOST_WORDS = 4000
"""Words of a text that are compared."""
NOISE = 1e-12
"""Size of what is left of a sum that should be zero."""
UNITS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def escape_invisible(text: str, lines: bool = False) -> str:
    """Escape invisible characters: terminal control codes, direction marks and other characters without a shape.

    Invariant: every character of the result is printable (with `lines`, a line break stays one), so it is also legal in XML.
    """
    return "".join(c if c.isprintable() or (lines and c == "\n") else c.encode("unicode_escape").decode() for c in text)


def format_number(value: Any) -> str:
    """Format a number with three decimals; one that would then be zero, and is not, with two digits."""
    if not isinstance(value, float):
        return "—" if value is None else str(value)
    if not math.isfinite(value):
        return str(value)
    if NOISE <= abs(value) < 0.0005:
        return f"{value:.1e}"
    return f"{value if abs(value) >= NOISE else 0.0:.3f}"


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


def format_duration(seconds: float) -> str:
    """Format a duration in the largest unit of which there is more than one."""
    for size, unit in ((3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"


def clip_text(text: str, most: int) -> str:
    """Clip a text to at most `most` characters; an ellipsis marks the cut."""
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def edit_distance(left: str, right: str, most: int = 1000) -> int:
    """Return the Levenshtein distance, characters to insert, delete or replace; `most` if it is more. Only so much of the table
    is computed: time grows with the text, times `most`."""
    if abs(len(left) - len(right)) >= most:
        return most
    row = {j: j for j in range(min(len(right), most) + 1)}
    for i, a in enumerate(left, 1):
        before, row = row, {0: i} if i <= most else {}
        for j in range(max(1, i - most), min(len(right), i + most) + 1):
            least = min(before.get(j, most), row.get(j - 1, most)) + 1
            row[j] = min(least, before.get(j - 1, most) + (a != right[j - 1]), most)
    return min(row[len(right)], most)


def compare_words(one: str, other: str) -> float:
    """Return how similar two texts are, from 0 to 1: twice the words and signs that match in order, over those of both."""
    left, right = _split_words(one), _split_words(other)
    return 2 * _count_common(left, right) / (len(left) + len(right)) if left or right else 1.0


def _count_common(left: Sequence[str], right: Sequence[str]) -> int:
    """Return the length of the longest common subsequence: one long number, a bit for each word of the left, goes through the
    right word by word, so that no list of words takes long."""
    places: dict[str, int] = {}
    for at, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << at
    rest = whole = (1 << len(left)) - 1
    for word in right:
        met = rest & places.get(word, 0)
        rest = (rest + met | rest - met) & whole
    return len(left) - rest.bit_count()


def longest_common_run(one: str, other: str) -> int:
    """Return how many words and signs in a row two texts have in common, at most."""
    left = _split_words(one)
    doubled: list[list[Any]] = [[*left, None, *_split_words(other)]]  # of each place, a name of the 2**k words from there on
    while _shares_name(doubled[-1], len(left)):
        doubled.append(_join_names(doubled[-1], doubled[-1][2 ** (len(doubled) - 1) :]))
    length, runs = 0, [0] * len(doubled[0])
    for k in reversed(range(len(doubled) - 1)):
        longer = _join_names(runs, doubled[k][length:])
        if _shares_name(longer, len(left)):
            length, runs = length + 2**k, longer
    return length


def _join_names(first: Sequence[Any], second: Sequence[Any]) -> list[int]:
    """Name runs of words by the names of their two halves: equal runs alike."""
    names: dict[tuple[Any, Any], int] = {}
    return [names.setdefault(pair, len(names)) for pair in zip(first, second, strict=False)]


def _shares_name(names: Sequence[Any], middle: int) -> bool:
    """Whether something before the middle has the name of something behind it."""
    return not set(names[:middle]).isdisjoint(names[middle + 1 :])


def _split_words(text: str) -> list[str]:
    """Split a text into the words and signs that are compared; case and white space do not count."""
    return re.findall(r"\w+|[^\w\s]", text.casefold())[:MOST_WORDS]
