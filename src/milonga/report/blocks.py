"""The blocks that a report consists of, before they are rendered as HTML or Markdown.

Invariant: all text here is plain; the renderer escapes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from milonga.health import Finding
from milonga.runfolder.transcripts import Transcript


@dataclass(frozen=True)
class Sheet:
    """A table; all columns but the first are numbers, or aligned like numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Facts:
    """A list of (name, value)."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Verdict:
    """The sentence that says what came out."""

    text: str


@dataclass(frozen=True)
class Points:
    """A list of sentences."""

    texts: Sequence[str]


@dataclass(frozen=True)
class Findings:
    """What is wrong with runs, each with its badge."""

    findings: Sequence[Finding]


@dataclass(frozen=True)
class Figure:
    """A chart as SVG and, for formats that cannot show it, a description in words."""

    svg: str
    title: str
    said: Sequence[str]


@dataclass(frozen=True)
class Figures:
    """Charts that stand side by side if there is room."""

    figures: Sequence[Figure]


@dataclass(frozen=True)
class Code:
    """Text to copy, such as a command."""

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
    """A block that is folded at first; opened by a click, without a script."""

    title: str
    block: Sheet | Code | Facts


Block = Sheet | Facts | Text | Verdict | Points | Findings | Figures | Code | Talks | Folded


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Chapter:
    """The part of a report about one folder, or about several together."""

    title: str
    lead: str
    sections: Sequence[Section]


@dataclass(frozen=True)
class Report:
    title: str
    chapters: Sequence[Chapter]
