"""The distribution of completion lengths: the longest of a batch determines how long sampling takes.

Assumed: lengths are log-normal, and what would be longer than the limit is cut there, as the sampler cuts it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from milonga.randomness import key64
from milonga.types import Floats

GRID = 96
"""Points of a numeric integral over lengths."""


@dataclass(frozen=True)
class Lengths:
    """Distribution of the new tokens of a row. `mean` is the mean before truncation; `spread` is the standard deviation divided
    by the mean, 0 if all are alike."""

    mean: float
    limit: int
    spread: float = 0.5

    def _log_parameters(self) -> tuple[float, float]:
        variance = math.log1p(self.spread**2)
        return math.log(self.mean) - variance / 2, math.sqrt(variance)

    def survival(self, tokens: Floats) -> Floats:
        """The share of rows that are longer than so many tokens."""
        if self.spread == 0:
            return (tokens < min(self.mean, self.limit)).astype(float)
        centre, width = self._log_parameters()
        with np.errstate(divide="ignore"):
            scaled = (np.log(tokens) - centre) / (width * math.sqrt(2))
        return np.where(tokens < self.limit, 0.5 * np.vectorize(math.erfc)(scaled), 0.0)

    @cached_property
    def profile(self) -> tuple[Floats, float, Floats]:
        """The survival curve: midpoints of equal intervals up to the limit, their width, and the share of rows alive there."""
        end = min(self.mean, float(self.limit)) if self.spread == 0 else float(self.limit)
        middles = (np.arange(GRID) + 0.5) * end / GRID
        return middles, end / GRID, self.survival(middles)

    def truncated_mean(self) -> float:
        """Mean of the truncated lengths."""
        _, width, alive = self.profile
        return float(alive.sum() * width)

    def expected_longest(self, rows: float) -> float:
        """Expected length of the longest of so many rows."""
        _, width, alive = self.profile
        return float(chance_any_alive(alive, rows).sum() * width)

    def mean_tokens_so_far(self) -> float:
        """Mean number of tokens that a row has at a random moment while it is sampled."""
        middles, width, alive = self.profile
        return float((alive * middles).sum() * width / self.truncated_mean())

    def draw(self, count: int, *key: object) -> Floats:
        """Random lengths; the same key gives the same ones."""
        if self.spread == 0:
            return np.full(count, min(self.mean, float(self.limit)))
        drawn = np.random.default_rng(key64(*key)).lognormal(*self._log_parameters(), size=count)
        return np.minimum(np.ceil(drawn), float(self.limit))


def chance_any_alive(alive: Floats, rows: float) -> Floats:
    """The chance that at least one of so many rows is alive."""
    return -np.expm1(rows * np.log1p(-np.minimum(alive, 1 - 1e-15)))
