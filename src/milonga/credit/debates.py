"""Credit for several agents over several turns (MAPoRL). Arrays are turns by agents.

A turn is paid for its own answer and for what everybody answers afterwards; a bonus goes to those who change their mind, or
the others', in the right direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from milonga.types import Floats

Share = Literal["all", "others"]
Tie = Literal["half", "self", "none"]


def influence_rewards(own: Floats, heard: Floats, gamma: float, share: Share = "all") -> Floats:
    """R(t, a): the own value now and the discounted mean values of later turns, divided by the sum of the discounts.

    `heard` are the values as others feel them: NaN where an answer is not to be held against anybody but its writer. A later
    turn without any known value has no part in the sum, nor in what it is divided by.
    """
    turns, agents = own.shape
    out = np.full((turns, agents), np.nan)
    for a in range(agents):
        others = [j for j in range(agents) if share == "all" or j != a]
        for t in range(turns):
            total, weight = own[t, a], 1.0
            for later in range(t + 1, turns):
                known = heard[later, others][~np.isnan(heard[later, others])]
                if len(known):
                    total += gamma ** (later - t) * known.mean()
                    weight += gamma ** (later - t)
            out[t, a] = total / weight
    return out


@dataclass(frozen=True)
class TransitionBonus:
    """What a change of mind is worth, for better or worse: wrong to right earns it, right to wrong costs it."""

    persuaded: float = 0.0
    """Moving to where the majority of the others stood; the paper's alpha_1."""
    critical: float = 0.0
    """Moving against them; alpha_0."""
    leading: float = 0.0
    """The others move to where I stand; beta_1."""
    provoking: float = 0.0
    """They move away from where I stand: a useful mistake, or a right answer that drove them off; beta_0."""
    tie: Tie = "half"
    """What the majority of the others is where they are divided: halfway between, where I stand, or no bonus."""

    def rewards(self, correct: Floats) -> Floats:
        """The bonus of each turn of each agent, from 0 and 1 for wrong and right."""
        turns, agents = correct.shape
        majority = np.array([[self._majority(correct[t], a) for a in range(agents)] for t in range(turns)])
        out = np.zeros((turns, agents))
        for t in range(1, turns):
            moved = correct[t] - correct[t - 1]
            out[t] += moved * self._weight(correct[t], majority[t - 1], self.persuaded, self.critical)
        for t in range(turns - 1):
            moved = majority[t + 1] - majority[t]
            out[t] += moved * self._weight(correct[t], majority[t + 1], self.leading, self.provoking)
        return np.nan_to_num(out)

    def _majority(self, correct: Floats, agent: int) -> float:
        share = float(np.delete(correct, agent).mean())
        if share != 0.5:
            return float(share > 0.5)
        return {"half": 0.5, "self": float(correct[agent]), "none": float("nan")}[self.tie]

    def _weight(self, mine: Floats, theirs: Floats, same: float, other: float) -> Floats:
        """By how far apart we stand: 0 is together, 1 is opposed."""
        apart = np.abs(mine - theirs)
        weight: Floats = (1 - apart) * same + apart * other
        return weight
