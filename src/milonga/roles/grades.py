r"""Reading a score on a scale from what a judge wrote: "Score: 7", "**7/10**", "<score>7</score>", "\boxed{7}".

Invariant: every number is looked at with a bounded part of its surroundings, so that time grows linearly with the text. What is
not plainly a score of the scale is none: nothing is guessed, and a missing score is never a low one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from milonga.roles.prose import find_thought_end
from milonga.types import Parsed, Verification

AROUND = " \t\r\n\\])$"
"""What may stand behind the last line that says something."""
NEAR = 60
"""Characters before and behind a number that are looked at."""
NUMBER = re.compile(
    r"(?<![\w.,/])(?P<points>\d{1,3}(?:\.\d{1,3}|,\d{1,2}(?= ?/ ?\d))?)(?: ?/ ?\$?(?P<most>\d{1,3})"
    r"|(?: points?)? out of (?P<of>\d{1,3}))?"
    r"(?![\w/%]|[.,]\d)|\\[dt]?frac\{(?P<top>\d{1,3}(?:\.\d{1,3})?)\}\{(?P<under>\d{1,3})\}"
)
"""A number, alone or as a part of the most that there is. A comma may be that of a decimal where this follows it."""
TERM_AFTER = re.compile(r" {0,2}(?:-|–|—|to|or|and|[+=×]) {0,2}[\d(]")
"""What follows a number that is one end of a range, or a term of a sum."""
RANGE_BEFORE = re.compile(r"\d {0,2}(?:-|–|—|to|or|and) {0,2}$|[-−]$")
SUPPOSED_AFTER = re.compile(r"[*_`$}\"']{0,3} (?:would|could|might)\b", re.IGNORECASE)
"""What follows a number that was not given: "9/10 would need units"."""
TAG_BEFORE = re.compile(r"<(?:score|rating|grade|points)>\W{0,4}$", re.IGNORECASE)
BOX_BEFORE = re.compile(r"\\boxed\{\W{0,3}$")
LINK = (
    r"(?:\W{0,4}\([^()\n]{0,24}\))?(?: (?:for|of) (?:the|this)(?: \w{1,14}){1,3})?"
    r"(?:\W{1,8}|\W{0,4}\b(?:is|of|would be|should be)\b\W{0,6}(?:an? )?)(?:N ?= ?)?(?:\\boxed\{)?\W{0,3}$"
)
"""What may stand between the word "score" and its number."""
SUM = r"\W{1,6}\d[\d +.()]{2,40}= ?\W{0,4}$"
LABEL = re.compile(
    r"\n[\s>*#_\-•`\"'({\[]{0,12}(?:(?:so|thus|therefore|the|my|your|overall|final|total),? ){0,4}"
    rf"(?:(?:score|rating)(?:{LINK}|{SUM})|(?:grade|points|total points)\W{{0,3}}[:=]\W{{0,6}}$)",
    re.IGNORECASE,
)
"""A line that begins with "Score:" or the like, up to its number."""
MENTION = re.compile(rf"\bscore{LINK}|\b(?:rate|rated|score|scored)\b(?: [\w']{{1,14}}){{0,5}} $", re.IGNORECASE)
GIVEN = re.compile(
    r"\b(?:overall|verdict|rating|rated|graded?|scor(?:es?|ed|ing)|award(?:s|ed)?|assign(?:s|ed)?|deserves?)\b[^.\n]{0,40}$",
    re.IGNORECASE,
)
"""What stands before "7/10" in the midst of an analysis, if that is a score."""
SHARE_AFTER = re.compile(
    r"[*_`$}]{0,3} (?!(?:points?|marks?|stars?|overall|in total|for|because|since|as|but|and)\b"
    r"|(?:grade|scored?|rating)\b(?:[*_`.,;:!]| for\b| because\b| since\b|\s*$))\w",
    re.IGNORECASE,
)
"""What follows "3/5" where it is a share of something, or a term of the analysis."""
SENTENCE = r"(?:^|\n\W{0,8}|[.!?] )"
AWARDED_BEFORE = re.compile(
    rf"{SENTENCE}(?:an? |the |my )?(?:final |overall )?(?:grade|score|rating) of \W{{0,4}}$", re.IGNORECASE
)
AWARDED_AFTER = re.compile(
    r"[*_`$}]{0,3} (?:is|was) (?:given|awarded|assigned|appropriate|fair|justified|deserved)\b"
    r"(?! (?:to|if|when|only|by|for)\b)",
    re.IGNORECASE,
)
"""What stands around "3/5" that is awarded: "a grade of 3/5 is given because"."""
JUDGEMENT = re.compile(r"\n[\s>*#_\-•`]{0,12}(?:(?:my|your|overall|final) )?judge?ment[*_`]{0,3}:\W{0,6}$", re.IGNORECASE)
"""A line that begins with "Judgement:", up to "9/10"."""
GETS = r"(?:gets|got|receives|received|earns|earned|scores|scored|deserves)"
SUBJECT = r"(?:the|this|your) (?:given )?(?:answer|response|solution|question)"
OBTAINED = re.compile(
    rf"{SENTENCE}(?:(?:hence|thus|therefore|so|overall|based on this),? )?(?:{SUBJECT}|answer) (?:only )?{GETS} (?:an? )?"
    r"[*_`]{0,3}$",
    re.IGNORECASE,
)
ANNOUNCED = re.compile(rf"\n{SUBJECT} is (?:worth )?[*_`]{{0,3}}$", re.IGNORECASE)
"""What stands before the points that an answer gets: as the first words of a sentence, or of the text."""
POINTS_AFTER = re.compile(
    r"[*_`]{0,3} points?(?:[*_`]{0,3}(?:[.;:!)]|,(?! (?:if|when|unless|provided|minus|plus)\b)|\s*$)|\s*\n"
    r"| (?:for|because|since)\b(?! each\b)(?![^.\n]*\d))",
    re.IGNORECASE,
)
"""What follows them, if they are all that it gets: no condition, and no further number in the sentence."""
POINT = re.compile(r"\bpoints?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Scale:
    """A scale of points. From `right` on, what was graded counts as right."""

    low: int
    high: int
    right: float

    def normalise(self, points: float) -> float:
        """Map points to [0, 1]."""
        return (points - self.low) / (self.high - self.low)

    def render_request(self, before: str) -> str:
        """Ask for a score behind what should come before it. The scale stands in the form itself: asked for "Score: N", small
        models give any number."""
        return (
            f"\n\n{before} Then choose one whole number from {self.low} to {self.high} as your grade, not a range. End your "
            f"reply with this line, with the number in place of N:\n\nScore: N/{self.high}"
        )

    def write_score(self, points: float) -> str:
        """Write the line that is asked for."""
        return f"Score: {points:g}/{self.high}"


@dataclass(frozen=True)
class _Found:
    """A number that may be the score. `points` is None if it lies outside the scale; plainness: 0 points that an answer gets,
    which are all of them if no others are spoken of; 1 mentioned, 2 as asked."""

    points: float | None
    plainness: int


def read_score(text: str, scale: Scale) -> tuple[float | None, float]:
    """Read the points that a text gives, after its thought, and score the format: 1 for one line or tag that says them, one
    half for several (the last counts) or for a number that is only mentioned, 0 where there is none. What a higher or lower
    score would have taken is none that is given; what only closes a formula is no last line."""
    begin, tail = find_thought_end(text), len(text.rstrip(AROUND))
    last = text.rfind("\n", begin, tail) + 1
    found = [one for match in NUMBER.finditer(text, begin) if (one := _weigh(text, match, begin, last, scale)) is not None]
    plain, mentioned = ([one for one in found if one.plainness == level] for level in (2, 1))
    best = (plain or mentioned or found or [_Found(None, 0)])[-1]
    is_part = best.plainness == 0 and (len(found) > 1 or len(POINT.findall(text, begin)) > 1)
    if best.points is None or is_part:
        return None, 0.0
    return best.points, 1.0 if len(plain) == 1 else 0.5


def _weigh(text: str, match: re.Match[str], begin: int, last: int, scale: Scale) -> _Found | None:
    """Weigh a number as a score; None if it is a number of the analysis. `last` is where the last line begins."""
    first = max(begin, match.start() - NEAR)
    before = ("\n" if first == begin else "\0") + text[first : match.start()]
    after = text[match.end() : match.end() + NEAR]
    most = match["most"] or match["of"] or match["under"]
    if TERM_AFTER.match(after) or RANGE_BEFORE.search(before) or (most is not None and int(most) != scale.high):
        return None
    if SUPPOSED_AFTER.match(after):
        return None
    value = float((match["points"] or match["top"]).replace(",", "."))
    points = value if scale.low <= value <= scale.high else None
    if TAG_BEFORE.search(before) or LABEL.search(before):
        return _Found(points, 2)
    in_last_line = match.start() >= last
    alone = _is_alone(before, after)
    if most is not None and _is_given(before, after, alone or in_last_line):
        return _Found(points, 1)
    boxed = in_last_line and points is not None and BOX_BEFORE.search(before) is not None  # a result, if it is no score
    if (alone and in_last_line) or boxed or MENTION.search(before):
        return _Found(points, 1)
    is_first = first == begin and ANNOUNCED.search(before) is not None
    return _Found(points, 0) if POINTS_AFTER.match(after) and (is_first or OBTAINED.search(before)) else None


def _is_given(before: str, after: str, stands_out: bool) -> bool:
    """Whether "7/10" is a score that is given, and no share of something. `stands_out`: it is alone or in the last line."""
    if AWARDED_BEFORE.search(before) and AWARDED_AFTER.match(after):
        return True
    said = stands_out or any(pattern.search(before) for pattern in (GIVEN, JUDGEMENT, OBTAINED))
    return said and not SHARE_AFTER.match(after)


def _is_alone(before: str, after: str) -> bool:
    """Whether a number stands alone on its line, but for marks of bold text and the like."""
    _, newline, begin = before.rpartition("\n")
    return bool(newline) and not begin.strip(" *_`#>\"'$") and not after.partition("\n")[0].strip(" *_`.\"'$")


def parse_grading(text: str, scale: Scale) -> Parsed:
    """Parse a grading in prose: its points as a score from 0 to 1, and as a verdict. Steps are not judged."""
    points, form = read_score(text, scale)
    if points is None:
        return Parsed(Verification(None, None), 0.0, f"no score from {scale.low} to {scale.high}")
    return Parsed(Verification(None, points >= scale.right, score=scale.normalise(points)), form)
