"""What a critique of a solution is worth by itself."""

from __future__ import annotations

import re


def agreement_reward(verdict: bool | None, right: float) -> float:
    """1 for the right final verdict, 0 for another or for none that can be read; NaN where nobody knows what is right."""
    return right * 0 + float(verdict is not None and float(verdict) == right)


def names_answer(text: str, answer: str) -> bool:
    """Whether a critique has the answer in it, as a word of its own: what an answer checker sees that is handed a critique."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None
