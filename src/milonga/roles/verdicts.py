"""Reading verdicts in prose: CORRECT or INCORRECT on each step of a solution, and on the whole.

What is supposed, quoted or conditional is no verdict; who says both says nothing.
Invariant: every reader goes over the text once, line by line; its time grows linearly with the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from milonga.roles.prose import Line, find_thought_end, split_lines

Kind = Literal["step", "final"]
EDGE = r"[\s>*#_\-•`(\[|]*"
STEP_MARK = re.compile(rf"{EDGE}(?:\d{{1,3}}[.)]\s*[*_]*)?(?:step|paragraph)\s{{0,8}}#?\s{{0,8}}(\d{{1,4}})\b", re.IGNORECASE)
NUMBER_MARK = re.compile(r"[\s>*#_(\[]*(\d{1,4})[*_]{0,3}[.):\]][*_]{0,3}\s")
ROW_MARK = re.compile(r"\s*\|[\s*_`#]*(\d{1,4})[\s*_`]*\|")
"""The first cell of a row of a table, if it is a number."""
THUS = r"(?:(?:so|thus|therefore|hence)\b,?\s*)?"
WHOLE_MARK = re.compile(rf"{EDGE}{THUS}(?:the\s+|my\s+)?(?:final|overall)\b|.*\bfinal verdict\b", re.IGNORECASE)
OF_STEP = r"\s{1,8}(?:for|on|of)\s{1,8}(?:step|paragraph)\s{1,8}"
BARE_MARK = re.compile(rf"{EDGE}{THUS}(?:the\s+|my\s+)?(?:verdict|conclusion)\b(?!{OF_STEP}\d)", re.IGNORECASE)
NAMED_MARK = re.compile(rf"{EDGE}{THUS}(?:the\s+|my\s+)?verdict{OF_STEP}(\d{{1,4}})\b", re.IGNORECASE)
"""How a verdict may begin: on the whole; on the whole or one step, as its place tells; on a step that it names."""
CLOSING_MARK = re.compile(rf"{EDGE}{THUS}(?:the\s+(?:whole\s+)?(?:solution|answer)|all\s+(?:the\s+)?steps)\b", re.IGNORECASE)
"""How a verdict on the whole may begin, once the step before it has its own."""
WORD = re.compile(
    r"(?<![a-z])(?P<no>(?:not|cannot|can't|isn't|never)\s+(?:be\s+)?(?:entirely\s+|quite\s+|fully\s+)?)?"
    r"(?P<word>in[^\w\s]{0,3}correct|correct|wrong|right)(?![a-z])",
    re.IGNORECASE,
)
SIGNS = "✓✔✅☑✗✘❌❎\ufe0f"
BOX_BEFORE = re.compile(r"\\boxed\{\W*(?:text\{\W*)?$")
PREDICATE = re.compile(
    rf"(?:\b(?:is|are|was|were|be|seems?|step)\s*[*_\"'`]*|^\W*|[:.,;=→\-–—(\[|>{SIGNS}][\s*_\"'`\[(]*)$", re.IGNORECASE
)
"""What stands before a word that is a verdict, rather than a word of the analysis ("the correct value")."""
MARKS = rf"[\s*_\"'`)\]}}${SIGNS}]*"
ENDING = re.compile(r"(?:\\checkmark|</\w{1,20}>|[^\w?,;:=/<+])*$")
"""What may follow the last word of a line."""
REASON = re.compile(rf"{MARKS}(?:[.,;:!(|→–—]|(?<=\s)-|(?:because|since)\b)", re.IGNORECASE)
"""What follows a verdict that goes on with its reason: "Correct (3+4=7)", "Correct - …"."""
APART = re.compile(rf"(?:^|[.:!?;,=→–—|{SIGNS}]|\s-)[\s*_\"'`(\[{{$\\]*$")
CLOSED = re.compile(rf"{MARKS}(?:$|[.,;!?(|→–—]|(?<=\s)-)")
"""What stands before and behind a word that is a sentence of its own."""
SUPPOSED = re.compile(
    r"\b(?:if|unless|whether|since|because|would|could|might|should|were|then|only|steps? \d{1,3})\b[^.;:,!?]*$", re.IGNORECASE
)
SUPPOSED_AFTER = re.compile(r"[^\w.;:!?]{0,3}\s(?:only )?(?:if|unless|when)\b", re.IGNORECASE)
"""What stands around a word that is supposed, or said of another step: "only CORRECT if", "since step 1 is CORRECT"."""
UNSAID = re.compile(r"\bwhether\b[^.;:,!?]*$|\b(?:would|could|might)(?: only| then)? be\W*$", re.IGNORECASE)
QUOTED = re.compile(
    r"\W{0,3}(?:\s+or\s+\W{0,3}(?:in)?correct\b|\s*/\s*(?:in)?correct\b)|[*_\"'`)\]}]{0,3}\s+steps?\b", re.IGNORECASE
)
"""What follows a word that only repeats what was asked for: "CORRECT or INCORRECT", "the first INCORRECT step"."""
QUOTED_BEFORE = re.compile(r"\bcorrect\W{0,3}(?:\s+or\s+|\s*/\s*)\W{0,3}$", re.IGNORECASE)
BOTH, BOTH_BEFORE = re.compile(r"[ \t]+(?:IN)?CORRECT\b"), re.compile(r"\b(?:IN)?CORRECT[ \t]+$")
"""Who says both words in a row says nothing."""
NEAR = 60
"""Characters of its line, before and behind a word, that are looked at."""
ALONE = re.compile(rf"[\s>*#_\-•`\[(|]*(?:\\boxed\{{\W*(?:text\{{)?)?(?:in)?correct[\s*_`.!)\]}}|{SIGNS}]*", re.IGNORECASE)
"""A line that is nothing but a verdict."""


@dataclass(frozen=True)
class Verdict:
    """A verdict that was read: what it says, where its word begins in the text, and how plainly it was said (1 to 3)."""

    right: bool
    at: int
    plainness: int


@dataclass(frozen=True)
class Verdicts:
    """The verdicts of a verification. `steps` maps the number of a step, from 1, to its verdict; `ends` to the end of its check
    in the text."""

    steps: dict[int, Verdict]
    ends: dict[int, int]
    final: Verdict | None


@dataclass(frozen=True)
class _Section:
    """A part of a verification: the check of one step, or the final verdict."""

    kind: Kind
    number: int
    start: int
    end: int


def read_verdicts(text: str, count: int) -> Verdicts:
    """Read the verdicts on `count` steps and the final one, however they are laid out, behind the thought of a text.

    A check is what stands between "Step 3" (or "3.") and the next of its kind. Checks count in ascending order: of a step that
    is named twice, the first check with a verdict. Without any marks, lines that are verdicts count in order. What stands in a
    thought is no verdict, even where nothing follows it: which of them the text would have kept is not known.
    """
    steps: dict[int, Verdict] = {}
    ends: dict[int, int] = {}
    finals: list[Verdict] = []
    last, begin = 0, find_thought_end(text)
    sections = _find_sections(text, begin)
    for section in sections:
        verdict = _find_verdict(text, section.start, section.end)
        if verdict is None:
            continue
        if section.kind == "final":
            finals.append(verdict)
        elif last < section.number <= count:
            last = section.number
            steps[last], ends[last] = verdict, section.end
    # Who says both says nothing.
    final = finals[0] if len({verdict.right for verdict in finals}) == 1 else None
    if not any(section.kind == "step" for section in sections):
        return _read_unmarked(text, begin, count, final)
    return Verdicts(steps, ends, final)


ANY_ANSWER = r"(?:the|this|your)\s(?:(?:given|provided|final)\s)?answer(?:\s(?:you\s)?(?:provided|given))?"
OPENING = re.compile(
    rf"{EDGE}{ANY_ANSWER}(?:\sto\sthe\squestion\s\"[^\"\n]{{1,600}}\")?\sis\s(?:(?:indeed|clearly|definitively|absolutely)\s)?"
    r"[*_\"'`]{0,3}(?P<no>in)?correct[*_\"'`]{0,3}(?:[.!]|\s*\n\s*\n|\sbecause\b)",
    re.IGNORECASE,
)
"""A verdict on the whole that begins a text, before its reasons."""
MENDED = re.compile(
    r"\b(?:correct|right)\s\w{1,20}\s(?:is|are|was|should|would)\b|\bshould be\b"
    r"|\b(?:however|incorrect|wrong|not?|false|but|actually|errors?|mistakes?)\b",
    re.IGNORECASE,
)
"""Who says so of an answer that is right takes the verdict back, or may."""
RECONSIDERED = re.compile(r"\b(?:wait|second thought|on reflection|recomput\w*|sorry)\b", re.IGNORECASE)
ASKED_FOR = re.compile(r"[\"'`“]final verdict\W{1,4}(?P<no>in)?correct\b", re.IGNORECASE)
"""What was asked for, in quotes: a line that has both words repeats the prompt."""
NUMBERED_MARK = re.compile(
    r"[\s>*#_(\[]*\d{1,4}[*_]{0,3}[.):\]](?P<lead>[^\n]*)\bfinal verdict[*_]{0,3}(?:\sis)?\s?[:–-](?P<rest>[^\n]*)\n?",
    re.IGNORECASE,
)
"""A final verdict as the last item of a list, which would be a check of a step elsewhere."""
CONDITIONAL = re.compile(r"\b(?:if|when|unless|provided|would|should|could|write|give|previous|earlier)\b", re.IGNORECASE)
"""Words of an item that only speaks of a final verdict."""


def read_conclusion(text: str) -> tuple[bool | None, bool]:
    """Read the one verdict on a whole solution, behind the thought: after a mark such as "Final verdict", or else in the last
    line, or else in the first sentence. Return it, None if there is none or if two contradict each other, and whether it was
    marked."""
    begin, end = find_thought_end(text), len(text.rstrip().removesuffix("\\]").removesuffix("$$").rstrip())
    finals = [section for section in _find_sections(text, begin) if section.kind == "final"]
    said = {verdict.right for one in finals if (verdict := _find_said(text, one.start, one.end)) is not None}
    said = said or {verdict.right for verdict in _find_numbered(text, begin)}
    if said:
        return (said.pop(), True) if len(said) == 1 else (None, False)
    last = max(begin, text.rfind("\n", 0, end) + 1)
    verdict = _find_said(text, last, end)
    return (_read_opening(text, begin) if verdict is None else verdict.right), False


def _find_said(text: str, start: int, end: int) -> Verdict | None:
    """Find the verdict between two places. Where the first line repeats what was asked for, both verdicts in quotes, it stands
    before or behind these."""
    newline = text.find("\n", start, end)
    quotes = list(ASKED_FOR.finditer(text, start, end if newline < 0 else newline))
    if len({match["no"] is None for match in quotes}) < 2:
        return _find_verdict(text, start, end)
    return _find_verdict(text, start, quotes[0].start()) or _find_verdict(text, quotes[-1].end(), end)


def _find_numbered(text: str, begin: int) -> list[Verdict]:
    """Find the final verdicts that are items of a list: behind the mark, or on the next line if nothing stands there."""
    found = []
    lines = list(split_lines(text, begin))
    for at, line in enumerate(lines):
        mark = NUMBERED_MARK.match(line.text)
        if mark is not None and not (CONDITIONAL.search(mark["lead"]) or CONDITIONAL.search(mark["rest"])):
            is_next = not mark["rest"].strip(" *_:\t\r") and at + 1 < len(lines)
            where = lines[at + 1] if is_next else line
            found.append(_find_said(text, where.start if is_next else line.start + mark.start("rest"), where.end))
    return [verdict for verdict in found if verdict is not None and verdict.plainness > 1]


def _read_opening(text: str, begin: int) -> bool | None:
    """Read the verdict in the first sentence of a text, if nothing behind it says otherwise."""
    opening = OPENING.match(text, begin)
    if opening is None:
        return None
    right, later = opening["no"] is None, _find_verdict(text, opening.end(), len(text))
    taken_back = RECONSIDERED.search(text, opening.end()) or (right and MENDED.search(text, opening.end()))
    if taken_back or (later is not None and later.right != right):
        return None
    return right


def _find_sections(text: str, begin: int) -> list[_Section]:
    """Find the parts of a verification by the beginnings of its lines. A line "Verdict:" within a check is that of the step if
    a later step follows, if those of earlier steps were so, or if the check has no other and a verdict on the whole follows."""
    lines = list(split_lines(text, begin))
    marks = _find_step_marks(lines)
    highest = [*accumulate((int(mark[1]) if mark else 0 for mark in reversed(marks)), max)][::-1]
    whole = max((at for at, line in enumerate(lines) if WHOLE_MARK.match(line.text)), default=-1)
    found: list[_Section] = []
    customary, is_first = False, True
    for at, (line, mark) in enumerate(zip(lines, marks, strict=True)):
        if mark is not None:
            found.append(_Section("step", int(mark[1]), line.start + mark.end(), line.end))
            is_first = True
            continue
        is_bare = BARE_MARK.match(line.text) is not None
        owned = is_bare and found and found[-1].kind == "step"
        if owned and highest[at] > found[-1].number:
            customary = True
        elif owned and is_first and (customary or (at < whole and not _has_verdict(text, found[-1]))):
            is_first = False
        elif is_bare or WHOLE_MARK.match(line.text) or (found and _closes(text, found[-1], line)):
            found.append(_Section("final", 0, line.start, line.end))
            continue
        if found:
            found[-1] = replace(found[-1], end=line.end)
    return found


def _find_step_marks(lines: Sequence[Line]) -> list[re.Match[str] | None]:
    """Find the lines that begin the check of a step. "4." alone does if it is no item of a list within a check. Where steps are
    named: it follows step 3, without a list in between, and no "Step 4" is named. Otherwise: it is not indented further. Nor
    does "Verdict on step 4" where that check has begun."""
    marks = [STEP_MARK.match(line.text) or NAMED_MARK.match(line.text) for line in lines]
    called = {int(mark[1]) for mark in marks if mark is not None}
    begun, before, indent = 0, -1, 1000
    for at, (line, mark) in enumerate(zip(lines, marks, strict=True)):
        item = None if mark else NUMBER_MARK.match(line.text) or ROW_MARK.match(line.text)
        if mark is not None:
            marks[at] = mark if int(mark[1]) != begun or STEP_MARK.match(line.text) else None
            begun = before = int(mark[1])
        elif item is not None and called:
            follows = int(item[1]) == before + 1 and int(item[1]) not in called
            marks[at], before = (item, before + 1) if follows else (None, -1)
        elif item is not None:
            deep = len(line.text) - len(line.text.lstrip())
            marks[at], indent = (item, min(indent, deep)) if deep <= indent + 1 else (None, indent)
        elif WHOLE_MARK.match(line.text):
            before = -1
    return marks


def _has_verdict(text: str, section: _Section) -> bool:
    return _find_verdict(text, section.start, section.end) is not None


def _closes(text: str, section: _Section, line: Line) -> bool:
    """Whether a line begins a verdict on the whole: it sounds so, and the step before it has a verdict already."""
    if section.kind != "step" or CLOSING_MARK.match(line.text) is None or _find_verdict(line.text, 0, len(line.text)) is None:
        return False
    return _has_verdict(text, section)


def _read_unmarked(text: str, begin: int, count: int, final: Verdict | None) -> Verdicts:
    """Read lines that are nothing but a verdict, in order: one for each step, and perhaps one more for the whole."""
    said = []
    for line in split_lines(text, begin):
        if ALONE.fullmatch(line.text) and (verdict := _find_verdict(text, line.start, line.end)) is not None:
            said.append((verdict, line.end))
    if final is None and len(said) == count + 1:
        final = said.pop()[0]
    if len(said) > count:
        return Verdicts({}, {}, final)
    steps = {number: verdict for number, (verdict, _) in enumerate(said, 1)}
    return Verdicts(steps, {number: end for number, (_, end) in enumerate(said, 1)}, final)


def _find_verdict(text: str, start: int, end: int) -> Verdict | None:
    """Find the verdict in a part of the text: of the words that can be one, those most plainly said. Of plain ones the first
    counts, since remarks may follow, but of those within sentences the last of its line, and one that is supposed only where
    no other is; of statements in an analysis the last, which concludes it."""
    best: Verdict | None = None
    weight, stop = (0, 0), start
    for match in WORD.finditer(text, start, end):
        found, weighed = _weigh_word(text, match, start, end)
        renews = weighed[0] == 1 or (weighed < (2, 2) and match.start() < stop)
        if found is not None and (weighed > weight or (weighed == weight and renews)):
            best, weight = found, weighed
            if match.start() >= stop:
                newline = text.find("\n", match.end(), end)
                stop = end if newline < 0 else newline
    return best


def _weigh_word(text: str, match: re.Match[str], start: int, end: int) -> tuple[Verdict | None, tuple[int, int]]:
    """Weigh a word as a verdict: how plainly it is said, and of words in capitals how far it stands apart (2: a sentence of its
    own, 1: in a sentence, 0: supposed). None: a word of the analysis."""
    word = match["word"]
    right = (word.lower() in ("correct", "right")) != bool(match["no"])
    first, last = max(start, match.start() - NEAR), min(end, match.end() + NEAR)
    before = text[first : match.start()].rpartition("\n")[2]
    after = text[match.end() : last].partition("\n")[0]
    plainness = _weigh_place(word, before, after, match["no"])
    if plainness is None:
        return None, (0, 0)
    apart = 2 if APART.search(before) and CLOSED.match(after) else 0 if _is_supposed(before, after) else 1
    return Verdict(right, match.start("word"), plainness), (plainness, apart if plainness == 2 else 0)


def _is_supposed(before: str, after: str) -> bool:
    return SUPPOSED.search(before) is not None or SUPPOSED_AFTER.match(after) is not None


def _weigh_place(word: str, before: str, after: str, negated: str | None) -> int | None:
    """Weigh the place of a word. 3: in a box. 2: in capitals, or alone on its line. 1: the end of a statement, with or without
    its reason, or "is correct"."""
    if QUOTED.match(after) or QUOTED_BEFORE.search(before) or BOTH.match(after) or BOTH_BEFORE.search(before):
        return None
    if BOX_BEFORE.search(before):
        return 3
    if negated is None and UNSAID.search(before):
        return None
    graded, last = word.lower() not in ("wrong", "right"), ENDING.match(after) is not None
    if graded and word.isupper() and not re.search(r"\b(?:the|a)\s+$", before, re.IGNORECASE):
        return 2
    if negated is None and PREDICATE.search(before) is None:
        return None
    begins = not before.strip(" *_\"'`>-#")
    if last and begins:
        return 2
    predicated = negated is not None or re.search(r"\b(?:is|are|was|were|be|seems?)\W*$", before, re.IGNORECASE) is not None
    explained = graded and (word[0].isupper() or not before.strip(" *_\"'`>-#:.|")) and REASON.match(after) is not None
    return 1 if last or predicated or explained else None
