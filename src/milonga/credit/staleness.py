"""Staleness of samples: how many policy versions they are behind the learner (asynchronous rollouts).

A token that version v sampled, and a later version learns from, weighs min(pi_now / pi_v, cap): a truncated importance ratio,
so that a few rare tokens cannot carry a batch. The ratio that an objective clips is then taken against the policy as it is when
the train batch begins, so that clipping bounds the step and not the staleness as well. The learner does both where a train
batch has a `stale_cap`.
"""

from __future__ import annotations

import numpy as np

from milonga.types import Floats, Rollout, TrainBatch


def token_staleness(rollout: Rollout, policy: str, version: int) -> Floats:
    """Return for each token the number of versions since it was sampled; 0 where it is not trained. Aligned with the rollout's
    ids."""
    out = np.zeros(len(rollout.ids))
    for segment in rollout.segments:
        if segment.trained and segment.policy == policy and segment.version is not None:
            out[segment.start : segment.end] = version - segment.version
    return out


def mean_staleness(train_batch: TrainBatch, version: int) -> float:
    """Return the mean staleness of a train batch, in versions, over its trained tokens."""
    chosen = [token_staleness(rollout, train_batch.policy, version)[rollout.mask] for rollout in train_batch.rollouts]
    total = sum(len(row) for row in chosen)
    return float(sum(row.sum() for row in chosen) / total) if total else 0.0
