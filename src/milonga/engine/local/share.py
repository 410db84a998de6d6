"""Whose rows are whose: one process computes all of them, or several workers a part each.

Invariant: what the workers sum up is what one of them would have computed alone, but for the order of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

Found = TypeVar("Found")


class Share:
    """All of it: the one process of the local engine. `milonga.engine.ray` has one for several workers."""

    workers = 1

    def mine(self, sizes: Sequence[int], units: Sequence[int] | None = None) -> list[int]:
        """Which of some rows this worker computes, given their lengths. A unit of rows is never split."""
        return list(range(len(sizes)))

    def most(self, passes: int) -> int:
        """The most passes that any worker makes, where this one makes so many."""
        return passes

    def total(self, values: Tensor) -> Tensor:
        """The sum over all workers."""
        return values

    def collect(self, found: dict[int, Found]) -> dict[int, Found]:
        """What all workers found, by row."""
        return found

    def whole(self, tensor: Tensor) -> Tensor:
        """A tensor of which every worker may hold a part only."""
        return tensor

    def part(self, tensor: Tensor) -> Tensor:
        """What this worker holds of a tensor: the memory itself, no copy."""
        return tensor
