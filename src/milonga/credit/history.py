"""History-shaped rewards (MARTI): a turn that corrects an error is worth more than one that repeats a success.

R is the reward of a turn by itself, from 0 to 1; Q is the mean reward of earlier turns; NaN is unknown.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from milonga.types import Floats

Shaping = Literal["margin", "quality", "none"]
Scope = Literal["own", "all"]
Rounds = Literal["last", "all"]


def shape_by_history(reward: Floats, history: Floats, how: Shaping, alpha: float) -> Floats:
    """Return the shaped reward R' of each turn; R itself where nothing came before it. Arrays have one shape.

    margin: R + alpha (R - Q), which pays for corrections. quality: R + alpha (Q R - (1 - Q)(1 - R)), which pays for staying
    right and charges for staying wrong: nothing for 0 to 1, nothing lost for 1 to 0.
    """
    if how == "none":
        return reward
    by_margin = reward - history
    by_quality = history * reward - (1 - history) * (1 - reward)
    term = by_margin if how == "margin" else by_quality
    out: Floats = reward + alpha * np.where(np.isnan(history), 0.0, term)
    return out


def compute_histories(rewards: Floats, scope: Scope, rounds: Rounds) -> Floats:
    """Return Q of each turn of each agent. rewards, result: shape (turns, agents); NaN in the first turn.

    scope `own`: the agent's own earlier turns. `all`: those of all agents; then a partner who was right lowers the reward of a
    correction.
    """
    out = np.full(rewards.shape, np.nan)
    for turn in range(1, len(rewards)):
        before = rewards[:turn] if rounds == "all" else rewards[turn - 1 : turn]
        for debater in range(rewards.shape[1]):
            out[turn, debater] = known_mean(before[:, [debater]] if scope == "own" else before)
    return out


def known_mean(values: Floats) -> float:
    """Return the mean of the values that are not NaN; NaN where there are none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def max_safe_alpha(turns: int) -> float:
    """Return the largest alpha for which a deliberately wrong first answer does not pay under `margin`, over `turns` turns.

    It loses 1, and if all later turns are right it gains alpha (1 + 1/2 + ... + 1/(T - 1)) by their margins.
    """
    return 1 / sum(1 / k for k in range(1, turns)) if turns > 1 else float("inf")
