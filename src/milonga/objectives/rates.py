"""The learning rate over a run: warm-up and decay, each a factor of the rate that a policy's section gives.

Invariant: pure functions of counts that a checkpoint holds, so that a resumed run has the same rates. No torch.
"""

from __future__ import annotations

import math

from milonga.config import RateSchedule


def warm_up_factor(steps: int, warmup: int) -> float:
    """Linear warm-up: factor of the next optimizer step after `steps` others; the step number `warmup` is the first whole
    one."""
    return min(1.0, (steps + 1) / warmup) if warmup else 1.0


def decay_factor(schedule: RateSchedule, progress: float, end: float = 0.0) -> float:
    """Decay with the progress of a run, from 1 at its start to `end` at its end: not at all, by a line, or by half a cosine."""
    if schedule == "constant":
        return 1.0
    left = 1.0 - progress if schedule == "linear" else (1.0 + math.cos(math.pi * progress)) / 2
    return end + (1.0 - end) * left
