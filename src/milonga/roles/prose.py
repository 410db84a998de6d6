r"""Reading ordinary prose: its lines, the thought before a reply, and the steps of a solution.

Nothing is demanded that an instruct model does not do by itself: what can be read is read, what cannot is None.
Invariant: every reader goes over the text once, line by line; its time grows linearly with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

OPEN, CLOSE = "<think>", "</think>"
HEADING = re.compile(r"\s{0,3}#{1,6}\s")
ITEM = re.compile(r"\s{0,3}(?:#{1,6}\s+)?(?:\*\*|__)?(?:\d{1,3}[.)]\s|step\s+\d{1,3}\b)", re.IGNORECASE)
"""The beginning of a line that begins a step of its own: an item of a numbered list, or "Step 3"."""
FENCE = re.compile(r"\s{0,3}(?:```|~~~)")
TITLE = re.compile(r"(?:\d{1,3}[.)]\s*)?(?:(?:\*\*|__)[^*_]*(?:\*\*|__)|step\s+\d{1,3})\s*[:.]?", re.IGNORECASE)
"""A line that is only a title: bold from end to end, or "Step 3:", numbered or not."""


@dataclass(frozen=True)
class Line:
    """A line of a text as the span [start, end) of its characters, its newline included."""

    start: int
    end: int
    text: str


def split_lines(text: str, start: int = 0, end: int | None = None) -> Iterator[Line]:
    end = len(text) if end is None else end
    while start < end:
        newline = text.find("\n", start, end)
        stop = end if newline < 0 else newline + 1
        yield Line(start, stop, text[start:stop])
        start = stop


def find_thought(text: str) -> tuple[int, int] | None:
    """Find the span of the thought in `<think>` and `</think>`; None if there is none.

    A template may have opened it (then it begins with the text), and a text that was cut may not close it.
    """
    opened, closed = text.find(OPEN), text.find(CLOSE)
    if opened < 0 and closed < 0:
        return None
    if opened < 0 or 0 <= closed < opened:
        return 0, closed
    closed = text.find(CLOSE, opened)
    return opened + len(OPEN), len(text) if closed < 0 else closed


def find_thought_end(text: str) -> int:
    """Find where a text goes on behind its thought; 0 where there is none."""
    thought = find_thought(text)
    return 0 if thought is None else min(len(text), thought[1] + len(CLOSE))


def skip_thought(text: str) -> str:
    """Return what follows the thought of a text; all of it if there is none, nothing if the thought does not end."""
    return text[find_thought_end(text) :]


def find_steps(text: str, start: int = 0, end: int | None = None) -> list[tuple[int, int]]:
    """Find the steps of a text: its paragraphs, as ProcessBench and Qwen's PRM cut them. Spans lie side by side and cover the
    text from `start` to `end`.

    Blank lines part steps, and so do the items of a numbered list. A displayed formula stays with what precedes it, a title
    with what follows it; inside a code fence or an open formula nothing is cut. No step is empty.
    """
    end = len(text) if end is None else end
    blocks: list[Line] = []
    for block in _split_blocks(text, start, end):
        before = blocks[-1] if blocks else None
        if before is not None and (_is_formula(block.text) or _is_title(before.text)):
            blocks[-1] = Line(before.start, block.end, "")  # neither a formula nor a title: its text is not looked at again
        else:
            blocks.append(block)
    if len(blocks) > 1 and _is_title(blocks[-1].text):
        blocks.pop()
    if not blocks:
        return []
    starts = [start, *(block.start for block in blocks[1:]), end]
    return list(pairwise(starts))


def _split_blocks(text: str, start: int, end: int) -> Iterator[Line]:
    """Split a text at blank lines and before items of a numbered list. Blocks have no blank lines at their ends."""
    state, begin, stop = _Open(), None, start
    for line in split_lines(text, start, end):
        if not line.text.strip():
            if begin is not None and not state.is_open:
                yield Line(begin, stop, text[begin:stop])
                begin = None
            continue
        if begin is not None and not state.is_open and ITEM.match(line.text):
            yield Line(begin, stop, text[begin:stop])
            begin = None
        begin, stop = line.start if begin is None else begin, line.end
        state = state.after(line.text)
    if begin is not None:
        yield Line(begin, stop, text[begin:stop])


@dataclass(frozen=True)
class _Open:
    """What is open after a line: a code fence, or a displayed formula."""

    fence: bool = False
    dollars: bool = False
    brackets: int = 0

    @property
    def is_open(self) -> bool:
        return self.fence or self.dollars or self.brackets > 0

    def after(self, line: str) -> _Open:
        if FENCE.match(line):
            return replace(self, fence=not self.fence)
        if self.fence:
            return self
        opened = line.count("\\[") + line.count("\\begin{") - line.count("\\]") - line.count("\\end{")
        return replace(self, dollars=self.dollars ^ bool(line.count("$$") % 2), brackets=max(0, self.brackets + opened))


def _is_formula(block: str) -> bool:
    """Whether a block is a displayed formula and nothing else."""
    bare = block.strip()
    return any(bare.startswith(a) and bare.endswith(b) for a, b in (("\\[", "\\]"), ("$$", "$$"))) and len(bare) > 4


def _is_title(block: str) -> bool:
    """Whether a block is one line that only announces what follows."""
    bare = block.strip()
    if "\n" in bare or len(bare) > 200:
        return False
    return HEADING.match(bare + " ") is not None or TITLE.fullmatch(bare) is not None
