"""What samples of an older version count: truncated importance weights.

A token that version v sampled, and a later version learns from, weighs w = min(pi_now / pi_v, cap): its share of what the
policy would have sampled now, cut off so that a few rare tokens cannot carry a batch. The ratio that an objective clips is then
taken against the policy as it is when the lesson begins, so that clipping bounds the step and not the staleness as well.

Every policy gradient here is linear in a token's advantage for factors that are not negative, its clipping included: a weight
on the advantage is a weight on the token's term. Terms without an advantage (KL, entropy) are not weighted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from milonga.types import Floats, Lesson, Trace, Traces


@dataclass(frozen=True)
class Staleness:
    """How old a lesson's samples are, and what was done about it; means over its trained tokens."""

    staleness: float
    """Versions behind."""
    stale_weight: float = 1.0
    stale_truncated: float = 0.0
    """Share of the tokens whose weight was cut off."""


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


def corrected(lesson: Lesson, now: list[Floats], version: int, cap: float) -> tuple[Lesson, Staleness]:
    """A policy-gradient lesson from older samples, for a learner of this version, under which its tokens have the
    log-probabilities `now`."""
    if lesson.advantages is None:
        raise ValueError(f"lesson for '{lesson.policy}': '{lesson.objective.kind}' cannot learn from older samples")
    traces = lesson.traces
    weights = [importance_weights(new, t.logprobs, cap) for new, t in zip(now, traces, strict=True)]
    cut = [(new - t.logprobs > np.log(cap)).astype(float) for new, t in zip(now, traces, strict=True)]
    figures = Staleness(age(lesson, version).staleness, mean_of_trained(weights, traces), mean_of_trained(cut, traces))
    rows = Traces(replace(t, logprobs=new) for t, new in zip(traces, now, strict=True))
    advantages = [credit * weight for credit, weight in zip(lesson.advantages, weights, strict=True)]
    return replace(lesson, traces=rows, advantages=advantages), figures


def mean_of_trained(values: list[Floats], traces: Traces) -> float:
    """Over the trained tokens of all traces; 0 where there are none."""
    chosen = [row[trace.mask] for row, trace in zip(values, traces, strict=True)]
    total = sum(len(row) for row in chosen)
    return float(sum(row.sum() for row in chosen) / total) if total else 0.0
