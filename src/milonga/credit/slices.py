"""Rewards of a generator and a slice judge that learn adversarially (GAR). Pure functions.

The judge is rewarded for telling reference slices from generated ones, and for agreeing with the answer of what it judges; the
generator for the share of its slices that are accepted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from milonga.types import Rollout, Rollouts

Verdict = bool | None
"""Yes, no, or unreadable."""


@dataclass(frozen=True)
class SliceReward:
    """The reward of a verdict on one slice: origin * R_d + agreement * R_a.

    R_d pays for naming the origin: yes to reference slices, no to generated ones. R_a pays for predicting the correctness of
    the generated rollout's answer. The two disagree about right slices of right rollouts: with `z0_only_wrong` generated slices
    count as such only in rollouts whose answer is wrong.
    """

    origin: float = 1.0
    agreement: float = 0.5
    z0_only_wrong: bool = False
    on_reference: bool = False
    """Whether R_a is paid on reference slices too, whose answer is right."""

    def __call__(self, verdict: Verdict, reference: bool, correct: float, sure: float | None = None) -> float:
        """Return the reward of one verdict. `sure` is the log-probability of naming the origin, where that is paid instead of
        the verdict. An unreadable verdict earns 0; NaN (no advantage at all) where the answer's correctness is unknown."""
        if not reference and math.isnan(correct):
            return float("nan")
        if verdict is None:
            return 0.0
        named = float(verdict == reference) if sure is None else bound_logprob(sure)
        exempt = self.z0_only_wrong and not reference and correct == 1.0
        agrees = float(verdict == bool(reference or correct)) * (not reference or self.on_reference)
        return self.origin * named * (not exempt) + self.agreement * agrees


def bound_logprob(logprob: float, lowest: float = -5.0) -> float:
    """Map a log-probability to [0, 1]: without a bound, one certain error would outweigh everything else."""
    return 1.0 - min(max(logprob, lowest), 0.0) / lowest


def approval_rate(slices: Sequence[Sequence[Verdict]]) -> float:
    """R_s: return the share of yes, first within the verdicts on each slice, then over the slices.

    Unreadable is not yes; a solution without slices scores 0.
    """
    return float(np.mean([np.mean([said is True for said in verdicts]) for verdicts in slices])) if slices else 0.0


def is_reference(piece: Rollout) -> bool:
    """Whether a slice was cut from a reference solution, rather than from one that was sampled."""
    return piece.target.origin == "given"


def group_verdicts(verdicts: Rollouts) -> dict[str, list[list[Verdict]]]:
    """Group verdicts: solution id to the verdicts on each of its slices, in their order."""
    found: dict[str, dict[str, list[Verdict]]] = {}
    for verdict in verdicts:
        piece = verdict.target
        found.setdefault(piece.target.id, {}).setdefault(piece.id, []).append(verdict.verification.final)
    return {solution: list(pieces.values()) for solution, pieces in found.items()}


def average_step_verdicts(slices: Sequence[Sequence[Verdict]], solution: Rollout, sizes: Sequence[int]) -> list[float] | None:
    """Return the mean verdict, from -1 to 1, on the slice of each step. `sizes` are the steps in each slice. None where steps
    and slices do not match."""
    if len(slices) != len(sizes) or not solution.steps or sum(sizes) != len(solution.steps):
        return None
    return [2 * approval_rate([verdicts]) - 1 for verdicts, size in zip(slices, sizes, strict=True) for _ in range(size)]
