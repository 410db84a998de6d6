"""Texts that the HTML and the Markdown of a report share."""

from __future__ import annotations

from milonga.runfolder.transcripts import Transcript
from milonga.text import clip_text

MOST_TEXT = 1500
"""Most characters of one completion that a report shows."""
MOST_STEP = 400
MOST_STEPS = 30


def clip_model_text(text: str, most: int = MOST_TEXT) -> str:
    return clip_text(text, most)


def format_verdict(value: bool | None) -> str:
    return {True: "right", False: "wrong", None: "—"}[value]


def describe_answer(one: Transcript) -> str:
    """Describe a solution's answer, its grade, and the verifier's verdict on it; and what was cut."""
    cut = f" {one.cut[0].upper()}{one.cut[1:]}." if one.cut else ""
    answer = "No answer" if one.answer is None else f"Answer {clip_text(one.answer, 200)}"
    grade = {True: "right", False: "wrong", None: "could not be graded"}[one.correct]
    if not one.checked:
        return f"{answer}: {grade}.{cut}"
    said = {True: "right", False: "wrong", None: "nothing that can be read"}[one.says_right]
    right, asked = one.agreeing
    more = f" ({right} of {asked} verifications call it right)" if asked > 1 else ""
    return f"{answer}: {grade}. The verifier says {said}{more}.{cut}"


def is_setting(help: str) -> bool:
    """Whether advice is a setting to copy, not a sentence."""
    return " " not in help.removeprefix("--set ")
