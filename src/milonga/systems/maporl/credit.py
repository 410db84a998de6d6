"""Rewards for several agents over several turns (MAPoRL). Arrays have shape (turns, agents).

A turn is rewarded for its own answer and for what all agents answer afterwards. A bonus goes to agents who change their mind,
or the minds of the others, in the right direction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from milonga.types import Floats

Share = Literal["all", "others"]
Tie = Literal["half", "self", "none"]


def influence_rewards(own: Floats, visible: Floats, gamma: float, share: Share = "all") -> Floats:
    """Return R(t, a): the own value now plus the discounted mean values of later turns, divided by the sum of the discounts.

    own, visible, result: shape (turns, agents). `visible` are the values that count for the other agents: NaN where an answer
    counts for its writer alone. A later turn without any known value is left out of the sum and of the divisor.
    """
    turns, debaters = own.shape
    out = np.full((turns, debaters), np.nan)
    for a in range(debaters):
        others = [j for j in range(debaters) if share == "all" or j != a]
        for t in range(turns):
            total, weight = own[t, a], 1.0
            for later in range(t + 1, turns):
                known = visible[later, others][~np.isnan(visible[later, others])]
                if len(known):
                    total += gamma ** (later - t) * known.mean()
                    weight += gamma ** (later - t)
            out[t, a] = total / weight
    return out


@dataclass(frozen=True)
class TransitionBonus:
    """The bonus for a change of mind: wrong to right earns it, right to wrong costs it."""

    persuaded: float = 0.0
    """Moving to where the majority of the others stood; the paper's alpha_1."""
    critical: float = 0.0
    """Moving against them; alpha_0."""
    leading: float = 0.0
    """The others move to where this agent stands; beta_1."""
    provoking: float = 0.0
    """They move away from where this agent stands: a useful mistake, or a right answer that drove them off; beta_0."""
    tie: Tie = "half"
    """The majority of the others where they are evenly divided: halfway between, this agent's own answer, or no bonus."""

    def rewards(self, correct: Floats) -> Floats:
        """Return the bonus of each turn of each agent. correct: 0 for wrong, 1 for right, NaN if unknown; shape (turns,
        agents), as the result. What is unknown earns and costs nothing."""
        turns, debaters = correct.shape
        majority = np.array([[self._majority(correct[t], a) for a in range(debaters)] for t in range(turns)])
        out = np.zeros((turns, debaters))
        for t in range(1, turns):
            moved = correct[t] - correct[t - 1]
            out[t] += moved * self._weight(correct[t], majority[t - 1], self.persuaded, self.critical)
        for t in range(turns - 1):
            moved = majority[t + 1] - majority[t]
            out[t] += moved * self._weight(correct[t], majority[t + 1], self.leading, self.provoking)
        return np.nan_to_num(out)

    def _majority(self, correct: Floats, debater: int) -> float:
        """Return the majority answer (0 or 1) of all agents but this one, in one turn; NaN where none of them is known."""
        others = np.delete(correct, debater)
        known = others[~np.isnan(others)]
        if not len(known):
            return float("nan")
        share = float(known.mean())
        if share != 0.5:
            return float(share > 0.5)
        return {"half": 0.5, "self": float(correct[debater]), "none": float("nan")}[self.tie]

    def _weight(self, mine: Floats, theirs: Floats, same: float, other: float) -> Floats:
        """Interpolate between the two bonuses by the distance of the answers: 0 is agreement (`same`), 1 is opposition
        (`other`)."""
        apart = np.abs(mine - theirs)
        weight: Floats = (1 - apart) * same + apart * other
        return weight
