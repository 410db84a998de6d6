"""Token advantages: outcome and step rewards along a rollout.

Invariant: every array is aligned with `rollout.ids` and is zero outside the trained tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from milonga.credit.baselines import EPSILON, Normaliser, group_rows, normalise
from milonga.objectives import Estimator
from milonga.types import Floats, PerToken, Rollout, Rollouts

StepNorm = Literal["verdict", "paper"]


def broadcast_to_tokens(values: Floats, rollouts: Rollouts) -> list[PerToken]:
    """Broadcast one value per rollout to its trained tokens. Returns one float array per rollout, aligned with its ids."""
    return [value * rollout.mask for value, rollout in zip(values, rollouts, strict=True)]


def _find_last_trained_token(rollout: Rollout) -> int:
    """Return the index of the last trained token, where the outcome reward is placed."""
    return max(s.end for s in rollout.segments if s.trained) - 1


def returns_to_go(rewards: Floats, mask: np.ndarray, gamma: float) -> Floats:
    """Return the discounted sum of the rewards from each trained token on; the discount counts trained tokens, not
    positions."""
    out = np.zeros(len(rewards))
    total = 0.0
    for t in np.flatnonzero(mask)[::-1]:
        total = rewards[t] + gamma * total
        out[t] = total
    return out


def whiten(arrays: list[PerToken], masks: list[np.ndarray], shift: bool) -> list[PerToken]:
    """Divide by the population std over all masked tokens of the batch; with `shift`, subtract their mean first."""
    pooled = np.concatenate([array[mask] for array, mask in zip(arrays, masks, strict=True)])
    if len(pooled) == 0 or np.ptp(pooled) == 0:
        return [np.zeros(len(array)) for array in arrays]
    mean = pooled.mean() if shift else 0.0
    return [(array - mean) * mask / (pooled.std() + EPSILON) for array, mask in zip(arrays, masks, strict=True)]


def outcome_advantages(
    rewards: Floats,
    rollouts: Rollouts,
    groups: Sequence[Hashable],
    estimator: Estimator,
    penalties: list[PerToken] | None = None,
) -> list[PerToken]:
    """Return token advantages of one reward per rollout, by an estimator.

    rewards: shape (rollouts,). Returns one float array per rollout, aligned with its ids. `penalties` are per-token costs
    inside the reward (beta * k1). They are summed into the reward of the group estimators, and stay at their own tokens in the
    estimator without groups. A rollout with an unknown reward (NaN) has no advantage and no part in the statistics of the
    others.
    """
    total = rewards if penalties is None else rewards - np.array([p.sum() for p in penalties])
    if estimator.advantage in ("zscore", "zscore_population", "centre", "leave_one_out"):
        return broadcast_to_tokens(normalise(total, groups, estimator.advantage), rollouts)
    known = [rollout.mask & ~np.isnan(reward) for reward, rollout in zip(rewards, rollouts, strict=True)]
    if estimator.advantage == "whiten_baseline":
        return whiten(broadcast_to_tokens(normalise(total, groups, "centre"), rollouts), known, estimator.whiten_shift)
    returns = []
    for i, (reward, rollout) in enumerate(zip(rewards, rollouts, strict=True)):
        tokens = np.zeros(len(rollout.ids)) if penalties is None else -penalties[i]
        tokens[_find_last_trained_token(rollout)] += 0.0 if np.isnan(reward) else reward
        returns.append(returns_to_go(tokens, rollout.mask, estimator.gamma))
    return whiten(returns, known, estimator.whiten_shift)


@dataclass(frozen=True)
class StepCredit:
    """How step verdicts become token advantages (RL Tango, all three estimators).

    `verdict` whitens the +1/-1 verdicts over the group and divides by the number of steps. `paper` whitens verdict / K, which
    is length-biased: in a group where every step is judged right, solutions with more steps are punished.
    """

    norm: StepNorm = "verdict"
    scale: float = 1.0
    gamma: float = 1.0

    def advantages(
        self,
        verdicts: Sequence[Sequence[float] | None],
        rollouts: Rollouts,
        groups: Sequence[Hashable],
        estimator: Estimator,
    ) -> list[PerToken]:
        """Return token advantages: one float array per rollout, aligned with its ids.

        `verdicts[i]` are +1/-1 for each step of rollout i, NaN where one is unknown; None where the verification did not match
        the steps.
        """
        for verdict, rollout in zip(verdicts, rollouts, strict=True):
            if verdict is not None and len(verdict) != len(rollout.steps):
                raise ValueError(f"rollout {rollout.id}: {len(verdict)} verdicts for {len(rollout.steps)} steps")
        if estimator.advantage in ("whiten", "whiten_baseline"):
            return self._whiten_returns(verdicts, rollouts)
        how = cast(Normaliser, estimator.advantage)
        out = [np.zeros(len(rollout.ids)) for rollout in rollouts]
        for rows in group_rows(groups):
            judged = [r for r in rows if verdicts[r]]
            if not judged:
                continue
            rewards = self._normalise_pooled([np.asarray(verdicts[r], dtype=float) for r in judged], how)
            for row, reward in zip(judged, rewards, strict=True):
                out[row] = self.scale * step_rewards_to_tokens(reward, rollouts[row])
        return out

    def _normalise_pooled(self, verdicts: list[Floats], how: Normaliser) -> list[Floats]:
        """Return the normalised step rewards of one group; the statistics are pooled over all its steps."""
        counts = [len(v) for v in verdicts]
        paper = self.norm == "paper"
        pool = np.concatenate([v / len(v) if paper else v for v in verdicts])
        flat = normalise(pool, ["group"] * len(pool), how) if len(pool) > 1 else np.zeros(1)
        parts = np.split(flat, np.cumsum(counts)[:-1])
        return list(parts) if paper else [part / len(part) for part in parts]

    def _whiten_returns(self, verdicts: Sequence[Sequence[float] | None], rollouts: Rollouts) -> list[PerToken]:
        """REINFORCE++ form: return-to-go of the step rewards over the token axis, whitened over the judged rollouts.

        With `verdict` the mean verdict of the batch is subtracted first and nothing after, so that unanimous verdicts give 0.
        """
        paper = self.norm == "paper"
        known = [value for verdict in verdicts if verdict for value in verdict if not np.isnan(value)]
        middle = 0.0 if paper or not known else float(np.mean(known))
        returns, judged = [], []
        for verdict, rollout in zip(verdicts, rollouts, strict=True):
            tokens = np.zeros(len(rollout.ids))
            if verdict:
                for value, (_, end) in zip(verdict, rollout.steps, strict=True):
                    tokens[end - 1] += 0.0 if np.isnan(value) else (value - middle) / len(verdict)
            returns.append(returns_to_go(tokens, rollout.mask, self.gamma))
            # Without verdicts the return is 0; once shifted, it would be a penalty. So these tokens are left out.
            judged.append(rollout.mask & bool(verdict))
        return [self.scale * array for array in whiten(returns, judged, shift=paper)]


def step_rewards_to_tokens(step_rewards: Floats, rollout: Rollout) -> Floats:
    """Return token rewards: each token gets the sum of the rewards of the steps that end at or after it; 0 after the last step
    end."""
    out = np.zeros(len(rollout.ids))
    for reward, (_, end) in zip(step_rewards, rollout.steps, strict=True):
        out[:end] += reward
    return out * rollout.mask


def kl_penalties(rollouts: Rollouts, reference: list[PerToken], coefficient: float) -> list[PerToken]:
    """Return beta * k1 of each trained token: a cost inside the reward, without gradient. One float array per rollout."""
    return [coefficient * (rollout.logprobs - ref) * rollout.mask for rollout, ref in zip(rollouts, reference, strict=True)]
