"""What samples of an older version count: truncated importance weights.

A token that version v sampled, and a later version learns from, weighs w = min(pi_now / pi_v, cap): its share of what the
policy would have sampled now, cut off so that a few rare tokens cannot carry a batch. The ratio that an objective clips is then
taken against the policy as it is when the lesson begins, so that clipping bounds the step and not the staleness as well.

Every policy gradient here is linear in a token's advantage for factors that are not negative, its clipping included: a weight
on the advantage is a weight on the token's term. Terms without an advantage (KL, entropy) are not weighted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from milonga.types import Floats, Lesson, Trace, Traces


@dataclass(frozen=True)
class Staleness:
    """How old a lesson's samples are, and what was done about it; means over trained tokens."""

    staleness: float
    """Versions behind."""
    stale_weight: float = 1.0
    """Of rows with credit: those without are not weighed."""
    stale_truncated: float = 0.0
    """Share of their tokens whose weight was cut off."""


def behind(trace: Trace, policy: str, version: int) -> Floats:
    """For each token how many versions before this one it was sampled; 0 where it is not trained."""
    out = np.zeros(len(trace.ids))
    for segment in trace.segments:
        if segment.trained and segment.policy == policy and segment.version is not None:
            out[segment.start : segment.end] = version - segment.version
    return out


def importance_weights(now: Floats, sampled: Floats, cap: float) -> Floats:
    """min(exp(now - sampled), cap) of log-probabilities; cut off before the exponential, which so never overflows."""
    return np.exp(np.minimum(now - sampled, np.log(cap)))


def age(lesson: Lesson, version: int) -> Staleness:
    """Of a lesson as it is, for a learner of this version."""
    return Staleness(mean_of_trained([behind(t, lesson.policy, version) for t in lesson.traces], lesson.traces))


def credited(lesson: Lesson) -> list[int]:
    """The rows with any advantage. What the others' tokens would weigh changes nothing."""
    if lesson.advantages is None:
        raise ValueError(f"lesson for '{lesson.policy}': '{lesson.objective.kind}' cannot learn from older samples")
    return [row for row, advantage in enumerate(lesson.advantages) if advantage.any()]


def corrected(lesson: Lesson, now: Sequence[Floats], version: int, cap: float) -> tuple[Lesson, Staleness]:
    """A policy-gradient lesson from older samples, for a learner of this version, under which the tokens of its credited rows
    have the log-probabilities `now`."""
    rows, chosen = list(lesson.traces), credited(lesson)
    advantages = list(lesson.advantages or [])
    weights, cut = [], []
    for row, new in zip(chosen, now, strict=True):
        sampled = rows[row].logprobs
        weights.append(importance_weights(new, sampled, cap))
        cut.append((new - sampled > np.log(cap)).astype(float))
        advantages[row] = advantages[row] * weights[-1]
        rows[row] = replace(rows[row], logprobs=new)
    weighed = Traces(rows[row] for row in chosen)
    figures = Staleness(age(lesson, version).staleness, mean_of_trained(weights, weighed, 1.0), mean_of_trained(cut, weighed))
    return replace(lesson, traces=Traces(rows), advantages=advantages), figures


def mean_of_trained(values: Sequence[Floats], traces: Traces, nothing: float = 0.0) -> float:
    """Over the trained tokens of all traces; `nothing` where there are none."""
    chosen = [row[trace.mask] for row, trace in zip(values, traces, strict=True)]
    total = sum(len(row) for row in chosen)
    return float(sum(row.sum() for row in chosen) / total) if total else nothing
