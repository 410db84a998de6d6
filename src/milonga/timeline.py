"""Timing of a turn by kind of work. Wall-clock figures live in a file of their own, never among the metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timeline:
    """Seconds of a turn by kind of work. The rest is `idle`: the engine waits while prompts are written, completions are parsed
    and graded, and credit is assigned."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.hidden: float | None = None
        """For asynchronous rollouts: the rollout seconds that were hidden behind learning; None otherwise."""

    @contextmanager
    def measure(self, work: str) -> Iterator[None]:
        """Add the time of a block to a kind of work. Blocks are not nested."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[work] = self.seconds.get(work, 0.0) + time.monotonic() - began

    def to_row(self) -> dict[str, float]:
        """The row of the timing file: seconds of each kind of work, idle seconds, and the whole. With asynchronous rollouts the
        whole is the time the run waited for the turn and learned from it; work and idle add up to whole plus overlap."""
        whole = time.monotonic() - self.began
        idle = max(0.0, whole + (self.hidden or 0.0) - sum(self.seconds.values()))
        row = {f"{work}_s": seconds for work, seconds in self.seconds.items()} | {"idle_s": idle, "turn_s": whole}
        return row if self.hidden is None else row | {"overlap_s": self.hidden}
