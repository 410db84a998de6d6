r"""Reading ordinary prose: the thought, the steps and the boxed answer of a solution, and the verdicts of a verification.

Nothing is demanded that an instruct model does not do by itself: what can be read is read, what cannot is None.
Invariant: every reader goes over the text once, line by line; its time grows linearly with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from typing import Literal

OPEN, CLOSE = "<think>", "</think>"
HEADING = re.compile(r"\s{0,3}#{1,6}\s")
ITEM = re.compile(r"\s{0,3}(?:#{1,6}\s+)?(?:\*\*|__)?(?:\d{1,3}[.)]\s|step\s+\d{1,3}\b)", re.IGNORECASE)
"""The beginning of a line that begins a step of its own: an item of a numbered list, or "Step 3"."""
FENCE = re.compile(r"\s{0,3}(?:```|~~~)")
TITLE = re.compile(r"(?:\d{1,3}[.)]\s*)?(?:(?:\*\*|__)[^*_]*(?:\*\*|__)|step\s+\d{1,3})\s*[:.]?", re.IGNORECASE)
"""A line that is only a title: bold from end to end, or "Step 3:", numbered or not."""


@dataclass(frozen=True)
class _Line:
    """A line of a text as the span [start, end) of its characters, its newline included."""

    start: int
    end: int
    text: str


def _split_lines(text: str, start: int = 0, end: int | None = None) -> Iterator[_Line]:
    end = len(text) if end is None else end
    while start < end:
        newline = text.find("\n", start, end)
        stop = end if newline < 0 else newline + 1
        yield _Line(start, stop, text[start:stop])
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
    blocks: list[_Line] = []
    for block in _split_blocks(text, start, end):
        before = blocks[-1] if blocks else None
        if before is not None and (_is_formula(block.text) or _is_title(before.text)):
            blocks[-1] = _Line(before.start, block.end, "")  # neither a formula nor a title: its text is not looked at again
        else:
            blocks.append(block)
    if len(blocks) > 1 and _is_title(blocks[-1].text):
        blocks.pop()
    if not blocks:
        return []
    starts = [start, *(block.start for block in blocks[1:]), end]
    return list(pairwise(starts))


def _split_blocks(text: str, start: int, end: int) -> Iterator[_Line]:
    """Split a text at blank lines and before items of a numbered list. Blocks have no blank lines at their ends."""
    state, begin, stop = _Open(), None, start
    for line in _split_lines(text, start, end):
        if not line.text.strip():
            if begin is not None and not state.is_open:
                yield _Line(begin, stop, text[begin:stop])
                begin = None
            continue
        if begin is not None and not state.is_open and ITEM.match(line.text):
            yield _Line(begin, stop, text[begin:stop])
            begin = None
        begin, stop = line.start if begin is None else begin, line.end
        state = state.after(line.text)
    if begin is not None:
        yield _Line(begin, stop, text[begin:stop])


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
    lines = list(_split_lines(text, begin))
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
    lines = list(_split_lines(text, begin))
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


def _find_step_marks(lines: Sequence[_Line]) -> list[re.Match[str] | None]:
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


def _closes(text: str, section: _Section, line: _Line) -> bool:
    """Whether a line begins a verdict on the whole: it sounds so, and the step before it has a verdict already."""
    if section.kind != "step" or CLOSING_MARK.match(line.text) is None or _find_verdict(line.text, 0, len(line.text)) is None:
        return False
    return _has_verdict(text, section)


def _read_unmarked(text: str, begin: int, count: int, final: Verdict | None) -> Verdicts:
    """Read lines that are nothing but a verdict, in order: one for each step, and perhaps one more for the whole."""
    said = []
    for line in _split_lines(text, begin):
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


LETTER = re.compile(r"(?<![A-Za-z0-9'])[ABC](?![A-Za-z0-9'])")
LISTED = re.compile(r"\W{0,8}(?:or|and|/|,)\W{0,8}(?:(?:answer|solution) )?[ABC]\b", re.IGNORECASE)
LISTED_BEFORE = re.compile(r"\b[ABC]\W{0,8}(?:or|and|/|,)\W{0,8}(?:(?:answer|solution) )?\W{0,3}$", re.IGNORECASE)
"""What stands around a letter that is one of several: "[[A]] or [[B]]"."""
CALLED = re.compile(
    r"(?:verdict|winner|choice|decision|better (?:answer|solution|one|response))\b(?: is)?[^\w\n]{0,8}"
    r"(?:(?:answer|solution|response) ?)?\W{0,4}$",
    re.IGNORECASE,
)
PREFERRED = re.compile(
    r"\W{0,4} (?:is|was|would be) (?:the |much |clearly |slightly )?(?:better|best|superior|preferable)\b", re.IGNORECASE
)


def read_choice(text: str) -> tuple[str | None, float]:
    """Read which of two answers a comparison prefers, behind its thought: "A", "B", or "C" for a tie; None if it cannot be
    read. The last of the plainest statements counts. The format score is 1 for [[A]] and the like, one half for others."""
    begin = find_thought_end(text)
    last = text.rfind("\n", begin, len(text.rstrip())) + 1
    best, plainest = None, 0
    for match in LETTER.finditer(text, begin):
        plainness = _weigh_letter(text, match, last)
        if plainness and plainness >= plainest:
            best, plainest = match[0], plainness
    return best, 0.0 if best is None else 1.0 if plainest == 3 else 0.5


def _weigh_letter(text: str, match: re.Match[str], last: int) -> int:
    """Weigh a letter as a verdict. 3: in double brackets. 2: in brackets or a box, behind "Verdict:", or alone in the last
    line. 1: said to be better. 0: a letter of the comparison."""
    before = text[max(0, match.start() - NEAR) : match.start()].rpartition("\n")[2]
    after = text[match.end() : match.end() + NEAR].partition("\n")[0]
    if LISTED.match(after) or LISTED_BEFORE.search(before):
        return 0
    if before.endswith("[[") and after.startswith("]]"):
        return 3
    framed = (before[-1:], after[:1]) in (("[", "]"), ("{", "}"))
    alone = match.start() >= last and not before.strip(" *_#`(.:") and not after.strip(" *_#`).")
    if framed or alone or CALLED.search(before):
        return 2
    return 1 if PREFERRED.match(after) else 0


YES_NO = re.compile(r"(?<![a-z])(?:yes|no)(?![a-z])", re.IGNORECASE)
OFFERED = re.compile(r"\W{0,3}(?:\s+or\s+|\s*/\s*)\W{0,3}(?:yes|no)\b", re.IGNORECASE)
OFFERED_BEFORE = re.compile(r"\b(?:yes|no)\W{0,3}(?:\s+or\s+|\s*/\s*)\W{0,3}$", re.IGNORECASE)
"""Who repeats the two words that were asked for has not chosen one."""
CALLED_SO = r"\b(?:verdict|judge?ment|conclusion|decision)\b(?: is)?"
ASKED = re.compile(
    rf"(?:{CALLED_SO}|\(yes/no\)\?|\b(?:answer|solution|part)\b[^?\n]*\b(?:correct|right)\b[^?\n]*\?)[^\w\n]{{0,12}}$",
    re.IGNORECASE,
)
"""What stands before a yes or no that was asked for: the word verdict, or the question."""
HEADED = re.compile(rf"{CALLED_SO}\W{{0,12}}$", re.IGNORECASE)
ANSWERED = re.compile(r"\banswer\b(?: is)?[^\w\n]{0,12}$", re.IGNORECASE)
OTHER_QUESTION = re.compile(r"\?[^\w\n]{0,12}$")
COUNTED = re.compile(
    r"\s+(?:errors?|mistakes?|issues?|problems?|flaws?|faults?|defects?|gaps?|steps?|parts?|further|other|more|need|doubt|longer)\b",
    re.IGNORECASE,
)
PLAIN_WORD = re.compile(
    r"\s+(?!(?:because|since|as|it|its|the|this|that|these|there|all|every|each|for|due|but|and|we|they)\b)[a-z]", re.IGNORECASE
)
"""What follows a "no" that counts something, as in "no errors" and, but for capitals, "no arithmetic slip"."""


def read_yes_no(text: str) -> Verdict | None:
    """Read the yes or no that a judgement in prose ends in: of the words that can be one, the last of those most plainly said.
    What stands in a thought is none, and a thought that does not end has no judgement."""
    best: Verdict | None = None
    for match in YES_NO.finditer(text, find_thought_end(text)):
        before = text[max(0, match.start() - NEAR) : match.start()]
        after = text[match.end() : match.end() + NEAR].partition("\n")[0]
        plainness = _weigh_yes_no(match[0], before, after)
        if plainness and (best is None or plainness >= best.plainness):
            best = Verdict(match[0].lower() == "yes", match.start(), plainness)
    return best


def swap_yes_no(word: str) -> str:
    """Return the other of the two words, written as this one."""
    other = "no" if word.lower() == "yes" else "yes"
    return other.upper() if word.isupper() else other.capitalize() if word[0].isupper() else other


def _weigh_yes_no(word: str, before: str, after: str) -> int:
    """Weigh a yes or no as a verdict. 3: in a box, or behind "Verdict:", the question that was asked, or "the answer is". 2:
    alone on its line, below "Verdict", or the last word of a line, in capitals. 1: the beginning of a line, as in "No, since",
    or behind another question. 0: a word of the analysis."""
    line = before.rpartition("\n")[2]
    if OFFERED.match(after) or OFFERED_BEFORE.search(line) or (COUNTED if word.isupper() else PLAIN_WORD).match(after):
        return 0
    ends, begins = ENDING.match(after) is not None, not line.strip(" *_\"'`>-#[(")
    explained = ends or REASON.match(after) is not None
    if BOX_BEFORE.search(line) or ASKED.search(line) or (ANSWERED.search(line) and explained):
        return 3
    if (ends and (begins or word.isupper())) or (begins and HEADED.search(before)):
        return 2
    return 1 if explained and (begins or OTHER_QUESTION.search(line)) else 0


LEVEL = r"\W{0,4}?(\\frac\{1\}\{2\}|(?<!frac\{)(?:\d[\d./]{0,7}|\.\d{1,3}))(?![\d./]|\s{0,3},\s{0,3}[\d.]|\s{1,3}or\b)"
BOXED_LEVEL = re.compile(rf"\\boxed\{{{LEVEL}\W{{0,4}}\}}")
NAMED_LEVEL = re.compile(rf"\b(overall |final )?score\b[^\d\n]{{0,40}}?{LEVEL}", re.IGNORECASE)
"""A number in a box, or behind the word score. Who repeats the numbers that were asked for has given none."""
WRITTEN = re.compile(r"(?P<level>\d{0,2}(?:\.\d{1,3})?)(?:/1(?:\.0)?)?\.?")
HALVES = ("1/2", "1/2.", "\\frac{1}{2}")
"""How a level is written, also as a part of 1; and other ways to write 0.5."""


def read_level(text: str, levels: Sequence[float]) -> float | None:
    """Read the score that a judgement in prose ends in, one of a few levels: what is called the overall or final score, or else
    a score, or else stands in the last box; with it, the boxes behind it on its line. None if it is no level, or if two of
    them differ. A thought has none."""
    start = find_thought_end(text)
    named, boxed = list(NAMED_LEVEL.finditer(text, start)), list(BOXED_LEVEL.finditer(text, start))
    chosen = [match for match in named if match[1]] or named or boxed[-2:]
    said = {number for match in chosen for number in (match[match.lastindex or 0], *_find_boxes_behind(text, match))}
    if not named and len(boxed) > 1 and "\n" in text[boxed[-2].end() : boxed[-1].start()]:
        said = {boxed[-1][1]}  # boxes on lines of their own: the last counts
    found = {_convert_level(number) for number in said}
    value = found.pop() if len(found) == 1 else None
    return value if value in levels else None


def _convert_level(number: str) -> float | None:
    if number in HALVES:
        return 0.5
    written = WRITTEN.fullmatch(number)
    return float(written["level"]) if written is not None and written["level"] else None


def _find_boxes_behind(text: str, match: re.Match[str]) -> list[str]:
    """Find the numbers in boxes that follow a score on its line: who gives two has given none."""
    return BOXED_LEVEL.findall(text[match.end() : match.end() + NEAR].partition("\n")[0])


CHANGED = (
    r"(?:subtly |slightly )?(?:rewritten|modified|revised|altered|changed|corrupted|flawed|incorrect|wrong|erroneous|new|next)"
)
CALLED_STEP = (
    rf"(?:the |my |a )?(?:{CHANGED} (?:step|version|paragraph|part|text)(?: \d{{1,3}})?|rewritten"
    rf"|(?:step|paragraph) \d{{1,3}} \({CHANGED}\))"
)
LABEL = re.compile(
    rf"\W{{0,8}}(?:{CALLED_STEP}[*_`]{{0,3}}:[\s*`]*"
    rf"|(?:sure|certainly|here(?: is|'s)|{CALLED_STEP})\b[^\n]{{0,80}}:[ \t*_`]*(?:\n|\Z))",
    re.IGNORECASE,
)
"""What announces a text that was asked for: a name before it, or a line of its own."""
ORIGINAL = re.compile(
    r"\W{0,8}(?:the )?original(?: (?:step|version|paragraph|part|text))?(?: \d{1,3})?[*_`]{0,3}:", re.IGNORECASE
)
CONFESSION = re.compile(
    r"\W{0,8}(?:I(?:'ve| have)? (?:\w{4,15}ly )?(?:introduced|changed|altered|replaced|modified|rewrote|made an? )"
    r"|this (?:introduces|contains an? |creates|rewrite|change)"
    r"|(?:here|in this (?:step|version)),? (?:the|an?) (?:\w{3,15} )?(?:mistake|error)\b"
    r"|(?:the|an?) (?:subtle|small|intentional|deliberate|introduced|key) (?:mistake|error)\b)",
    re.IGNORECASE,
)
REMARK = re.compile(
    r"\W{0,8}(?:(?:explanation|note|remark|changes? made)(?: of [^\n:]{0,40})?[*_`]{0,3}:"
    r"|(?:(?:the |this )?(?:mistake|error)|(?:in )?this (?:rewritten|version|step))\b)",
    re.IGNORECASE,
)
"""The beginning of a line that speaks about it: one that tells what was done to it, or a remark."""
RULE = re.compile(r"\s{0,3}(?:-{3,}|\*{3,}|_{3,})\s*")
OPEN_STEP, CLOSE_STEP = "<step>", "</step>"


def strip_reply(text: str) -> str | None:
    """Strip a reply that should be one rewritten step: what follows a thought, in its tag or its quote if it has one, without
    what announces it, the original before it, fences and quotes around it, and remarks behind its first line. Its paragraphs
    become one. None where nothing is left. What told that a step was rewritten would tell a judge that it is wrong."""
    text = skip_thought(text)
    text = text[text.find(OPEN_STEP) + len(OPEN_STEP) if OPEN_STEP in text else 0 :].partition(CLOSE_STEP)[0]
    lines = [line for line in _strip_labels(text).splitlines() if line.strip()]
    kept = [line for line in lines if not FENCE.match(line) and not RULE.fullmatch(line)]
    while len(kept) > 1 and CONFESSION.match(kept[0]):
        del kept[0]
    if kept and kept[0].lstrip().startswith(">"):
        quoted = takewhile(lambda line: line.startswith(">"), (line.lstrip() for line in kept))
        kept = [line.removeprefix(">").strip() for line in quoted]
    step = "\n".join([*kept[:1], *takewhile(lambda line: not (REMARK.match(line) or CONFESSION.match(line)), kept[1:])])
    return step.strip(" \n\"'`") or None


def _strip_labels(text: str) -> str:
    """Strip what announces a rewritten step, at most three such in a row; and the original, where a label follows it."""
    for _ in range(3):
        if ORIGINAL.match(text) is not None:
            later = (line.start for line in _split_lines(text) if line.start and LABEL.match(line.text))
            text = text[next(later, 0) :]
        label = LABEL.match(text)
        if label is None:
            break
        text = text[label.end() :]
    return text
