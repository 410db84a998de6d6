"""Credit from implicit rewards (PRIME): a reward at every token, its baseline from the group, added to the outcome's.

Invariant: every array is aligned with `trace.ids` and is zero outside the trained tokens; the end-of-sequence token is one of
them. A trace with an unknown outcome (NaN) has no credit and no part in the statistics of the others.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from milonga.credit.baselines import EPSILON, Normaliser, members
from milonga.credit.mixing import rms
from milonga.credit.tokens import returns_to_go, whiten
from milonga.types import Floats, Traces

Loo = Literal["formula", "code"]
Level = Literal["token_mean", "sequence"]
ProcessNorm = Literal["none", "max_return", "std"]
Whitening = Literal["off", "std_only", "full"]


@dataclass(frozen=True)
class ImplicitCredit:
    """How the token rewards of a group become advantages.

    A_t = sum over s >= t of gamma^(s-t) (r_s - baseline), where the baseline is the mean of the other traces' mean reward per
    token: their sums, taken off at every token, would grow with the length of the trace.
    """

    baseline: Normaliser = "leave_one_out"
    """leave_one_out: of the others. centre: of all. zscore: of all, divided by the std of the traces' levels."""
    loo: Loo = "formula"
    """code: r_t K/(K-1) less the sum of all levels / (K-1), as the public code has it. It differs by (r_t - mean r)/(K-1)."""
    level: Level = "token_mean"
    """What a trace puts into the baseline: its mean reward per token, or its sum, spread over the tokens of the trace that is
    compared. With `sequence` whatever the rewards know of the problem alone cancels at any lengths."""
    length_norm: bool = False
    """Divide by the number of tokens: without it the credit of the first token grows with the length."""
    gamma: float = 1.0

    def advantages(
        self, rewards: Sequence[Floats], outcomes: Floats, traces: Traces, groups: Sequence[Hashable]
    ) -> list[Floats]:
        """`rewards[i]` are those of the tokens of trace i, `outcomes` say which traces carry credit at all."""
        out = [np.zeros(len(trace.ids)) for trace in traces]
        for rows in members(groups):
            known = [r for r in rows if not np.isnan(outcomes[r]) and traces[r].length]
            if len(rows) == 1:
                raise ValueError(f"group '{groups[rows[0]]}' has one member and so no baseline; sample at least two")
            if len(known) < 2:
                continue
            tokens = [rewards[r][traces[r].mask] for r in known]
            for place, row in enumerate(known):
                mask = traces[row].mask
                out[row][mask] = self._centred(tokens, place)
                out[row] = returns_to_go(out[row], mask, self.gamma) / (len(tokens[place]) if self.length_norm else 1)
        return out

    def _centred(self, tokens: list[Floats], place: int) -> Floats:
        """The rewards of one trace of a group, less their baseline."""
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


def rescaled(rewards: Sequence[Floats], traces: Traces, how: ProcessNorm) -> list[Floats]:
    """Token rewards in units of the returns of the whole batch: log-ratio sums have no bound.

    max_return: the largest return is 1. std: the returns of all tokens have standard deviation 1.
    """
    masked = [reward * trace.mask for reward, trace in zip(rewards, traces, strict=True)]
    if how == "none" or not masked:
        return masked
    returns = [returns_to_go(reward, trace.mask, 1.0)[trace.mask] for reward, trace in zip(masked, traces, strict=True)]
    pooled = np.concatenate(returns)
    unit = float(np.abs(pooled).max(initial=0.0) if how == "max_return" else pooled.std() if len(pooled) else 0.0)
    return [reward / unit for reward in masked] if unit > 0 else masked


def weighed(
    outcome: Sequence[Floats], process: Sequence[Floats], weights: tuple[float, float], traces: Traces, how: Whitening
) -> list[Floats]:
    """The weighted sum of both sources, whitened over all tokens of the batch if asked for.

    `full` subtracts the batch mean, in which long traces weigh more: it can turn signs. `std_only` keeps them.
    """
    total = [weights[0] * a + weights[1] * b for a, b in zip(outcome, process, strict=True)]
    return total if how == "off" else whiten(total, [t.mask for t in traces], shift=how == "full")


def accuracy_within(correct: Floats, groups: Sequence[Hashable], low: float, high: float) -> np.ndarray:
    """True for rows whose group's share of right answers lies in [low, high], bounds included; unknown ones do not count."""
    keep = np.zeros(len(correct), dtype=bool)
    for rows in members(groups):
        known = [float(correct[r]) for r in rows if not np.isnan(correct[r])]
        keep[rows] = bool(known) and low - EPSILON <= float(np.mean(known)) <= high + EPSILON
    return keep


def contributions(
    outcome: Sequence[Floats], process: Sequence[Floats], weights: tuple[float, float], traces: Traces
) -> dict[str, float]:
    """What each source adds over the trained tokens (root mean square), the share of the process credit in the sum of both,
    and how far the process credit of a trace goes with its length."""
    masks = [t.mask for t in traces]
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
