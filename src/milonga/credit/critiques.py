"""Rewards of a critique of a solution, taken by itself."""

from __future__ import annotations

import re


def agreement_reward(verdict: bool | None, right: float) -> float:
    """Return 1 for the right final verdict, 0 for a wrong or unreadable one; NaN where the correctness of the solution is
    unknown."""
    return right * 0 + float(verdict is not None and float(verdict) == right)


def names_answer(text: str, answer: str) -> bool:
    """Whether a critique contains the answer as a separate word: what an answer checker sees when it is handed a critique."""
    return re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", text) is not None
