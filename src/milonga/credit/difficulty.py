"""Rewards for proposing or choosing problems: a problem is worth learning from if it is solved sometimes, not always or
never."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence


def learnability(rate: float) -> float:
    """4 p (1 - p): 0 where all or none are right, 1 where half of them are. NaN stays NaN."""
    return 4 * rate * (1 - rate)


def normalised_entropy(choices: Sequence[int], options: int) -> float | None:
    """Return the entropy of the choices divided by that of a uniform choice: 0 for a single option, 1 for all equally often;
    None without choices."""
    if not choices or options < 2:
        return None
    shares = [count / len(choices) for count in Counter(choices).values()]
    return -sum(share * math.log(share) for share in shares) / math.log(options)


def scheduled_level(levels: Sequence[int], progress: float) -> int:
    """Return the level of an easy-to-hard schedule that gives each level an equal share of the run."""
    return levels[min(len(levels) - 1, int(progress * len(levels)))]


def task_proposer_reward(rate: float, extreme: float, plain: bool = False) -> float:
    """Return Absolute Zero's reward for the proposer of a task with this solve rate: 1 - rate, and `extreme` where all or none
    solved it.

    With `plain`, 1 - rate there too: most for what nobody can solve. NaN stays NaN.
    """
    return extreme if rate in (0.0, 1.0) and not plain else 1.0 - rate


def graded_reward(correct: float, readable: bool, wrong: float, invalid: float) -> float:
    """Return the solver's reward: 1 if right, `wrong` for a wrong answer, `invalid` for an unreadable one; NaN where
    correctness is unknown."""
    if not readable:
        return invalid
    return correct if math.isnan(correct) or correct else wrong
