"""Advantages from implicit process rewards (PRIME): a reward at every token with a group baseline, added to the outcome
advantage.

Invariant: every array is aligned with `rollout.ids` and is zero outside the trained tokens; the end-of-sequence token is one of
them. A rollout with an unknown outcome (NaN) has no advantage and no part in the statistics of the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from milonga.credit.baselines import EPSILON, Normaliser, group_rows
from milonga.credit.mixing import rms
from milonga.credit.tokens import returns_to_go, whiten
from milonga.types import Floats, PerToken, Rollouts

Loo = Literal["formula", "code"]
Level = Literal["token_mean", "sequence"]
ProcessNorm = Literal["none", "max_return", "std"]
Whitening = Literal["off", "std_only", "full"]


@dataclass(frozen=True)
class ImplicitCredit:
    """How the token rewards of a group become advantages.

    A_t = sum over s >= t of gamma^(s-t) (r_s - baseline), where the baseline is the mean of the other rollouts' mean reward per
    token: their sums, subtracted at every token, would grow with the length of the rollout.
    """

    baseline: Normaliser = "leave_one_out"
    """leave_one_out: of the other rollouts. centre: of all. zscore: of all, divided by the std of the rollouts' levels."""
    loo: Loo = "formula"
    """code: r_t K/(K-1) less the sum of all levels / (K-1), as the public code has it. It differs by (r_t - mean r)/(K-1)."""
    level: Level = "token_mean"
    """What a rollout contributes to the baseline: its mean reward per token, or its sum, divided by the length of the rollout
    that is compared. With `sequence` whatever the rewards know of the problem alone cancels at any lengths."""
    length_norm: bool = False
    """Divide by the number of tokens: without it the advantage of the first token grows with the length."""
    gamma: float = 1.0

    def advantages(
        self, rewards: Sequence[PerToken], outcomes: Floats, rollouts: Rollouts, groups: Sequence[Hashable]
    ) -> list[PerToken]:
        """Return one float array per rollout, aligned with its ids.

        rewards: one float array of token rewards per rollout. outcomes: shape (rollouts,); NaN means that the rollout gets no
        advantage.
        """
        out = [np.zeros(len(rollout.ids)) for rollout in rollouts]
        for rows in group_rows(groups):
            known = [r for r in rows if not np.isnan(outcomes[r]) and rollouts[r].length]
            if len(rows) == 1:
                raise ValueError(f"group '{groups[rows[0]]}' has one member and so no baseline; sample at least two")
            if len(known) < 2:
                continue
            tokens = [rewards[r][rollouts[r].mask] for r in known]
            for place, row in enumerate(known):
                mask = rollouts[row].mask
                out[row][mask] = self._subtract_baseline(tokens, place)
                out[row] = returns_to_go(out[row], mask, self.gamma) / (len(tokens[place]) if self.length_norm else 1)
        return out

    def _subtract_baseline(self, tokens: list[PerToken], place: int) -> Floats:
        """Return the token rewards of rollout `place` of a group, less their baseline."""
        own, count = tokens[place], len(tokens)
        levels = np.array([t.mean() if self.level == "token_mean" else t.sum() / len(own) for t in tokens])
        if self.baseline == "leave_one_out":
            if self.loo == "code":
                return np.asarray((own * count - levels.sum()) / (count - 1))
            return np.asarray(own - (levels.sum() - levels[place]) / (count - 1))
        centred: Floats = own - levels.mean()
        if self.baseline == "centre":
            return centred
        # Equal levels give nothing: divided by an epsilon, rounding errors would look like credit.
        return centred / (levels.std(ddof=1) + EPSILON) if np.ptp(levels) else np.zeros(len(own))


def rescale_rewards(rewards: Sequence[PerToken], rollouts: Rollouts, how: ProcessNorm) -> list[PerToken]:
    """Rescale token rewards by the returns of the whole batch: sums of log-ratios have no bound.

    max_return: the largest return is 1. std: the returns of all tokens have standard deviation 1. One array per rollout.
    """
    masked = [reward * rollout.mask for reward, rollout in zip(rewards, rollouts, strict=True)]
    if how == "none" or not masked:
        return masked
    returns = [returns_to_go(reward, rollout.mask, 1.0)[rollout.mask] for reward, rollout in zip(masked, rollouts, strict=True)]
    pooled = np.concatenate(returns)
    unit = float(np.abs(pooled).max(initial=0.0) if how == "max_return" else pooled.std() if len(pooled) else 0.0)
    return [reward / unit for reward in masked] if unit > 0 else masked


def combine_advantages(
    outcome: Sequence[PerToken], process: Sequence[PerToken], weights: tuple[float, float], rollouts: Rollouts, how: Whitening
) -> list[PerToken]:
    """Return the weighted sum of outcome and process advantages, whitened over all tokens of the batch if asked for.

    `full` subtracts the batch mean, in which long rollouts weigh more: it can turn signs. `std_only` keeps them. One float
    array per rollout, aligned with its ids.
    """
    total = [weights[0] * a + weights[1] * b for a, b in zip(outcome, process, strict=True)]
    return total if how == "off" else whiten(total, [t.mask for t in rollouts], shift=how == "full")


def filter_by_accuracy(correct: Floats, groups: Sequence[Hashable], low: float, high: float) -> np.ndarray:
    """Return a mask over rows, True where the accuracy of the row's group lies in [low, high], bounds included; NaN does not
    count."""
    keep = np.zeros(len(correct), dtype=bool)
    for rows in group_rows(groups):
        known = [float(correct[r]) for r in rows if not np.isnan(correct[r])]
        keep[rows] = bool(known) and low - EPSILON <= float(np.mean(known)) <= high + EPSILON
    return keep


def process_contribution_stats(
    outcome: Sequence[PerToken], process: Sequence[PerToken], weights: tuple[float, float], rollouts: Rollouts
) -> dict[str, float]:
    """Return metrics of both sources: their RMS over the trained tokens, the share of the process advantage in the sum of both,
    and the correlation of a rollout's process advantage (first token) with its length."""
    masks = [t.mask for t in rollouts]
    of_outcome = weights[0] * rms([a[m] for a, m in zip(outcome, masks, strict=True)])
    of_process = weights[1] * rms([a[m] for a, m in zip(process, masks, strict=True)])
    total = of_outcome + of_process
    first = [float(a[m][0]) for a, m in zip(process, masks, strict=True) if m.any()]
    lengths = [float(m.sum()) for m in masks if m.any()]
    related = len(first) > 1 and np.ptp(first) > 0 and np.ptp(lengths) > 0
    return {
        "advantage_outcome": of_outcome,
        "advantage_process": of_process,
        "process_share": of_process / total if total else 0.0,
        "length_correlation": float(np.corrcoef(first, lengths)[0, 1]) if related else 0.0,
    }
