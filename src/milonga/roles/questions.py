"""Reading a question that a model wrote, and what it wrote behind it: an answer, or a solution.

Invariant: the text is gone over once, line by line; what stands around the question (a greeting, a title, an explanation) is
left out, and the question itself is taken as it was written.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from milonga.roles.prose import CLOSE, find_thought
from milonga.roles.tags import find_tags

EDGE = r"[\s>*#_\-•`]{0,12}(?:\d{1,2}[.)] [*_`]{0,3})?"
KIND = (
    r"(?:(?:a|an|the|my|new|harder|easier|similar|rewritten|modified|revised|different|related|more|challenging|updated|final"
    r"|correct|right|expected|full|complete|detailed|worked|brief|short|sample|suggested|possible|step[- ]by[- ]step) ){0,4}"
)


def _compile_label(names: str) -> re.Pattern[str]:
    """Compile the beginning of a line that is named so: with a colon, or as a heading or a bold line without one."""
    called = rf"{KIND}{names}(?: \d{{1,3}})?"
    titled = rf"\s{{0,8}}(?:#{{1,6}}[ \t]|\*\*|__)[ \t*_]{{0,6}}{called}[*_`#. \t\r]{{0,8}}(?:\n|\Z)"
    return re.compile(rf"{EDGE}{called}[*_`]{{0,3}} ?:[*_`]{{0,3}}|{titled}", re.IGNORECASE)


QUESTION = _compile_label("(?:question|problem|instruction|prompt)")
"""The beginning of a line that announces the question."""
WORK = _compile_label("(?:answer|solution)")
ABOUT = _compile_label("(?:explanation|reasoning|hint)")
"""The beginning of a line behind the question: its solution, or something about it."""
SOLVING = re.compile(
    rf"{EDGE}(?:to (?:solve|answer) (?:this|the (?:question|problem))|let'?s solve|let us solve)\b", re.IGNORECASE
)
FIRST_STEP = re.compile(rf"{EDGE}step 1\b", re.IGNORECASE)
"""The beginning of a solution without a name. One by steps is a solution only where something was asked before it."""
THIS = r"this (?:\w{2,14} )?(?:question|problem|version|variation)\b"
REMARK = re.compile(rf"{EDGE}\(?(?:note|remark)[*_`]{{0,3}}:[*_` ]{{0,4}}{THIS}", re.IGNORECASE)
CLOSING = re.compile(rf"{EDGE}(?:{THIS}|let me know\b|feel free\b|I hope\b)", re.IGNORECASE)
"""The beginning of a remark about the question: a note, or a sentence where something was asked before it."""
RULE = re.compile(r"\s{0,3}(?:-{3,}|\*{3,}|_{3,})\s*")
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
    label = WORK.match(rest.lstrip()) or ABOUT.match(rest.lstrip())
    return _make(tags[0].body, rest if label is None else rest.lstrip()[label.end() :], len(tags))


def _split_lines(body: str) -> tuple[str, str, int]:
    """Split a text into question and work by how its lines begin, and count the questions that are announced. What only
    introduces the first is left out; an explanation within the work belongs to it."""
    question: list[str] = []
    work: list[str] = []
    marks, has_begun, has_asked = 0, False, False
    taking: list[str] | None = question
    for line in body.splitlines(keepends=True):
        if (asked := QUESTION.match(line)) is not None:
            marks += 1
            if marks == 1:
                question.clear()
                has_begun = has_asked = False
            taking = question if marks == 1 else None
            line = line[asked.end() :]
        elif (given := WORK.match(line)) is not None:
            taking, line = work, line[given.end() :]
        elif taking is not work and (about := ABOUT.match(line)) is not None:
            taking, line = None, line[about.end() :]
        elif not has_begun and not marks and PREAMBLE.fullmatch(line):
            continue
        elif taking is question and has_begun:
            taking = _find_part(line, question, work, has_asked)
        has_begun |= bool(line.strip())
        has_asked |= taking is question and "?" in line
        if taking is not None and not (taking is question and RULE.fullmatch(line)):
            taking.append(line)
    return "".join(question), "".join(work), marks


def _find_part(line: str, question: list[str], work: list[str], has_asked: bool) -> list[str] | None:
    """Find what a line without a name belongs to that stands behind a part of the question: the question, the work, or
    neither."""
    if SOLVING.match(line) or (has_asked and FIRST_STEP.match(line)):
        return work
    return None if REMARK.match(line) or (has_asked and CLOSING.match(line)) else question


def _make(question: str, work: str, marks: int) -> Written:
    bare = _strip_fence(question.strip(AROUND))
    form = 0.0 if not bare else 1.0 if marks == 1 else 0.5
    return Written(bare, work.strip() if bare else "", form)


def _strip_fence(text: str) -> str:
    """Strip the word that a code fence around a text leaves on its first line."""
    return text.removeprefix("plaintext\n").removeprefix("text\n").strip(AROUND)
