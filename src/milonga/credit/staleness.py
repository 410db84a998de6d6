"""How old samples are.

A token that version v sampled, and a later version learns from, weighs min(pi_now / pi_v, cap): its share of what the policy
would have sampled now, cut off so that a few rare tokens cannot carry a batch. The ratio that an objective clips is then taken
against the policy as it is when the lesson begins, so that clipping bounds the step and not the staleness as well. The learner
does both where a lesson has a `stale_cap`.
"""

from __future__ import annotations

import numpy as np

from milonga.types import Floats, Lesson, Trace


def behind(trace: Trace, policy: str, version: int) -> Floats:
    """For each token how many versions before this one it was sampled; 0 where it is not trained."""
    out = np.zeros(len(trace.ids))
    for segment in trace.segments:
        if segment.trained and segment.policy == policy and segment.version is not None:
            out[segment.start : segment.end] = version - segment.version
    return out


def age(lesson: Lesson, version: int) -> float:
    """Versions that a lesson's samples are behind a learner of this version: the mean over its trained tokens."""
    chosen = [behind(trace, lesson.policy, version)[trace.mask] for trace in lesson.traces]
    total = sum(len(row) for row in chosen)
    return float(sum(row.sum() for row in chosen) / total) if total else 0.0
