"""Reading replies in prose that hold one thing: yes or no, which of two answers, a score of a few levels, a rewritten step.

What is supposed, offered or repeated from the prompt is no reply; a reply that says two things says none.
Invariant: every reader goes over the text once; its time grows linearly with the text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

from milonga.roles.prose import FENCE, find_thought_end, skip_thought, split_lines
from milonga.roles.verdicts import BOX_BEFORE, ENDING, NEAR, REASON, Verdict

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
            later = (line.start for line in split_lines(text) if line.start and LABEL.match(line.text))
            text = text[next(later, 0) :]
        label = LABEL.match(text)
        if label is None:
            break
        text = text[label.end() :]
    return text
