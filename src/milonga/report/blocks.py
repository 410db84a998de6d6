"""What a report is made of, before it is dressed as a page or as Markdown.

Invariant: all text here is plain; whoever dresses it escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milonga.run.transcripts import Transcript


@dataclass(frozen=True)
class Sheet:
    """A table; all columns but the first are numbers, or stand like numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Facts:
    """Names with what they are."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Figure:
    """A chart (SVG of ours) and, for a form that cannot show it, what it says in words."""

    svg: str
    title: str
    said: Sequence[str]


@dataclass(frozen=True)
class Figures:
    """Side by side where there is room."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Code:
    """Something to copy."""

    text: str


@dataclass(frozen=True)
class Talk:
    """A transcript and why it was chosen."""

    why: str
    transcript: Transcript


@dataclass(frozen=True)
class Talks:
    talks: Sequence[Talk]


@dataclass(frozen=True)
class Folded:
    """What few want to see; opened by a click, without a script."""

    title: str
    block: Sheet | Code | Facts


Block = Sheet | Facts | Text | Points | Figures | Code | Talks | Folded


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Chapter:
    """All that is said of one folder, or of several together."""

    title: str
    lead: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Report:
    title: str
    chapters: Sequence[Chapter]
