"""Data parallelism: one process computes all rows, or several workers a part each.

Invariant: the sum over the workers is what one of them would have computed alone, but for the order of the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

Found = TypeVar("Found")


class DataParallel:
    """Data parallelism of one process, which has all rows (local engine). `milonga.engine.ray` has one for several workers."""

    workers = 1

    def select_own_rows(self, sizes: Sequence[int], units: Sequence[int] | None = None) -> list[int]:
        """Select the rows that this worker computes, given their lengths. Rows that share a unit are never split."""
        return list(range(len(sizes)))

    def max_over_workers(self, passes: int) -> int:
        """The maximum over all workers of their number of passes."""
        return passes

    def sum_over_workers(self, values: Tensor) -> Tensor:
        """The sum over all workers."""
        return values

    def gather_by_row(self, found: dict[int, Found]) -> dict[int, Found]:
        """Gather the results of all workers, by row."""
        return found

    def gather_tensor(self, tensor: Tensor) -> Tensor:
        """Gather a tensor that may be sharded over the workers."""
        return tensor

    def cut_like(self, tensor: Tensor, like: Tensor) -> Tensor:
        """This worker's shard of a whole tensor, if `like` is sharded."""
        return tensor

    def get_local_part(self, tensor: Tensor) -> Tensor:
        """This worker's shard of a tensor: the memory itself, no copy."""
        return tensor
