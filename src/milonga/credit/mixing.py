"""Mixing of several advantages, each normalised before, and metrics of what each contributes."""

from __future__ import annotations

import math

import numpy as np

from milonga.types import PerToken


def decay(start: float, end: float, progress: float) -> float:
    """Return an exponentially decayed weight: max(end, start * exp(-progress * ln(start / end))), `start` at progress 0, `end`
    at 1.

    A start of 0 is switched off and stays so; a decay to 0 would never arrive.
    """
    if start == 0:
        return 0.0
    if end <= 0:
        raise ValueError(f"cannot decay from {start} to {end}: the end must be above zero")
    return max(end, start * math.exp(-progress * math.log(start / end))) if start > end else end


def mix_advantages(outcome: list[PerToken], process: list[PerToken], alpha: float) -> list[PerToken]:
    """Return (1 - alpha) * outcome + alpha * process, also where a rollout has no process advantage. One float array per
    rollout."""
    return [(1 - alpha) * a + alpha * b for a, b in zip(outcome, process, strict=True)]


def rms(arrays: list[PerToken]) -> float:
    """Return the root mean square over all entries of all arrays."""
    pooled = np.concatenate(arrays) if arrays else np.zeros(0)
    return float(np.sqrt(np.mean(np.square(pooled)))) if len(pooled) else 0.0


def contribution_stats(
    outcome: list[PerToken], process: list[PerToken], alpha: float, masks: list[np.ndarray]
) -> dict[str, float]:
    """Return the RMS of both weighted advantages over the trained tokens, and the share of the process advantage in their sum.

    A sum of K whitened step terms reaches several units where an outcome is about one: alpha says little about the share.
    """
    of_outcome = (1 - alpha) * rms([a[m] for a, m in zip(outcome, masks, strict=True)])
    of_process = alpha * rms([a[m] for a, m in zip(process, masks, strict=True)])
    total = of_outcome + of_process
    return {
        "alpha": alpha,
        "advantage_outcome": of_outcome,
        "advantage_step": of_process,
        "step_share": of_process / total if total else 0.0,
    }
