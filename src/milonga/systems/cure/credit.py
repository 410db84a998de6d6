"""Rewards of unit tests by how well they separate right programs from wrong ones (CURE, arXiv 2506.03136). Pure functions.

A pass matrix has shape (programs, tests): whether the program passes the test. A column stays where a test could not be parsed;
no program passes such a test, and it has a reward of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from milonga.types import Floats

Booleans = NDArray[np.bool_]


def passed_by_all(passes: Booleans) -> Booleans:
    """Return a mask over tests: True where every one of these programs passes."""
    return np.asarray(passes.all(axis=0))


@dataclass(frozen=True)
class UnitTestReward:
    """The reward of a test, from the programs of its task that are known to be right or wrong."""

    by: Literal["mu", "validity"] = "mu"
    """mu: r = v - f, v whether every right program passes and f the share of wrong ones that do. validity: v alone, which
    breeds trivial tests."""
    hard: bool = False
    """Late stage: 1 for a valid test that no wrong program passes, -1 for an invalid one that some do, else 0."""
    all_correct: Literal["zero", "sign"] = "zero"
    """The reward where no program is wrong: 0, or 1 for valid tests and -1 for others."""
    format_fail: float = -0.5
    """The reward of a test that cannot be parsed. The released code has 0, which is what a valid test earns that every program
    passes."""

    def rewards(self, passes: Booleans, right: Booleans, readable: Booleans) -> Floats | None:
        """Return one reward per test; None where no program is right, so that the validity of tests is unknown.

        passes: shape (programs, tests). right: shape (programs,). readable: shape (tests,).
        """
        if not right.any():
            return None
        return np.where(readable, self._reward_tests(passed_by_all(passes[right]), passes[~right]), self.format_fail)

    def _reward_tests(self, valid: Booleans, wrong: Booleans) -> Floats:
        """Return the reward of each test, as if all could be parsed. valid: shape (tests,). wrong: the pass matrix of the wrong
        programs."""
        if not len(wrong):
            return np.where(valid, 1.0, -1.0) if self.all_correct == "sign" else np.zeros(len(valid))
        if self.by == "validity":
            return valid.astype(float)
        if self.hard:
            passed = np.asarray(wrong.any(axis=0))
            return np.asarray((valid & ~passed).astype(float) - (~valid & passed))
        return np.asarray(valid - wrong.mean(axis=0))


@dataclass(frozen=True)
class Separation:
    """How well random tests separate right code from wrong: mu > 0 means that more and more of them find the right program."""

    valid: float
    """p_u: how likely a test is right."""
    on_valid: float
    """p01: how likely a wrong program passes a right test."""
    on_invalid: float
    """p00: how likely it passes a wrong one."""

    @property
    def mu(self) -> float:
        return self.valid * (1 - self.on_valid) - (1 - self.valid) * self.on_invalid

    def to_metrics(self) -> dict[str, float]:
        """Return the estimates as metrics."""
        return {"validity": self.valid, "p01": self.on_valid, "p00": self.on_invalid, "mu": self.mu}


def estimate_separation(tables: Sequence[tuple[Booleans, Booleans, Booleans]]) -> Separation | None:
    """Estimate `Separation` over many tasks, each with its pass matrix, its mask of right programs, and its mask of right
    tests.

    None where there is no test, or no wrong program to separate.
    """
    valid = [test for _, _, tests in tables for test in tests]
    shares: dict[bool, list[bool]] = {True: [], False: []}
    for passes, right, tests in tables:
        for column, test in enumerate(tests):
            shares[bool(test)] += passes[~right, column].tolist()
    if not valid or not (shares[True] or shares[False]):
        return None
    # A rate without any test of its kind has weight 0 in mu, so that 0.0 is as good as any value.
    on_valid, on_invalid = (float(np.mean(shares[kind])) if shares[kind] else 0.0 for kind in (True, False))
    return Separation(float(np.mean(valid)), on_valid, on_invalid)


def shape_by_length(rewards: Floats, lengths: Floats, low: float = 0.0, high: float = np.inf) -> Floats:
    """Shape rewards by length (CURE's transform for long answers), for the tests of one task: a short right test earns most.

    Centred first. T is the median length of those above the mean, clipped to [low, high], and L the longest of them: they earn
    T - length, and so less than nothing when longer than T; the others earn T - L. Where all above the mean have one length,
    nothing can be told by it: they earn 1, the others -1. The positive part is then scaled to weigh as much as the negative
    one, and all are divided by their std. Rewards that are all alike, or have no negative part, become 0.
    """
    centred = rewards - rewards.mean()
    above = centred > 0
    if not above.any():
        return np.zeros(len(rewards))
    if len(np.unique(lengths[above])) == 1:
        shaped = np.where(above, 1.0, -1.0)
    else:
        middle = float(np.clip(np.median(lengths[above]), low, high))
        shaped = np.where(above, middle - lengths, middle - lengths[above].max())
    gains, losses = shaped[shaped > 0].sum(), -shaped[shaped < 0].sum()
    if gains <= 0 or losses <= 0:
        return np.zeros(len(rewards))
    shaped = np.where(shaped > 0, shaped * losses / gains, shaped)
    return np.asarray(shaped / shaped.std())
