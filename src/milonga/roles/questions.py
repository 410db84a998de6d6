"""Reading a question that a model wrote, and what it wrote behind it: an answer, or a solution.

Invariant: the text is gone over once, line by line; what stands around the question (a greeting, a title, an explanation) is
left out, and the question itself is taken as it was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from milonga.roles.prose import CLOSE, find_thought
from milonga.roles.tags import find_tags

EDGE = r"[\s>*#_\-•`]{0,12}"
KIND = r"(?:(?:a|an|the|my|new|harder|easier|similar|rewritten|modified|revised|different|related) ){0,4}"
QUESTION = re.compile(
    rf"{EDGE}{KIND}(?:question|problem|instruction|prompt)(?: \d{{1,3}})?[*_`]{{0,3}} ?:[*_`]{{0,3}}", re.IGNORECASE
)
"""The beginning of a line that announces the question."""
BEHIND = re.compile(
    rf"{EDGE}{KIND}(?:final )?(?:(?P<work>answer|solution)|explanation|reasoning|hint)[*_`]{{0,3}} ?:[*_`]{{0,3}}",
    re.IGNORECASE,
)
"""The beginning of a line behind the question: its solution, or something about it."""
PREAMBLE = re.compile(
    r"\s{0,8}(?:sure|certainly|of course|okay|here(?:'s| is| are)|below)\b[^\n]{0,200}[:!]\s{0,8}", re.IGNORECASE
)
AROUND = ' \t\n\r*_`"“”'


@dataclass(frozen=True)
class Written:
    """A question, the work behind it (empty if there is none), and how well the form was kept."""

    question: str
    work: str
    format: float


def read_question(text: str) -> Written:
    """Read a question: in its tag, behind the word "Question:", or else all there is before an answer or an explanation.

    The format score is 1 for one question in a tag or behind the word, one half for several (the first counts) or for none so
    marked, 0 where nothing is left.
    """
    thought = find_thought(text)
    body = text if thought is None else text[thought[1] + len(CLOSE) :]
    tags = find_tags(body, "question")
    if not tags:
        return _make(*_split_lines(body))
    rest = body[tags[0].end :]
    label = BEHIND.match(rest)
    return _make(tags[0].body, rest if label is None else rest[label.end() :], len(tags))


def _split_lines(body: str) -> tuple[str, str, int]:
    """Split a text into question and work by how its lines begin, and count the questions that are announced. What only
    introduces the first is left out; an explanation within the work belongs to it."""
    question: list[str] = []
    work: list[str] = []
    marks, has_begun = 0, False
    taking: list[str] | None = question
    for line in body.splitlines(keepends=True):
        asked, behind = QUESTION.match(line), BEHIND.match(line)
        if asked is not None:
            marks += 1
            if marks == 1:
                question.clear()
            taking = question if marks == 1 else None
            line = line[asked.end() :]
        elif behind is not None and (behind["work"] or taking is not work):
            taking = work if behind["work"] else None
            line = line[behind.end() :]
        elif not has_begun and not marks and PREAMBLE.fullmatch(line):
            continue
        has_begun |= bool(line.strip())
        if taking is not None:
            taking.append(line)
    return "".join(question), "".join(work), marks


def _make(question: str, work: str, marks: int) -> Written:
    bare = _strip_fence(question.strip(AROUND))
    form = 0.0 if not bare else 1.0 if marks == 1 else 0.5
    return Written(bare, work.strip() if bare else "", form)


def _strip_fence(text: str) -> str:
    """Strip the word that a code fence around a text leaves on its first line."""
    return text.removeprefix("plaintext\n").removeprefix("text\n").strip(AROUND)
