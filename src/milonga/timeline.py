"""Where the time of a turn goes. Wall-clock figures live in a file of their own, never among the metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timeline:
    """Seconds by kind of work. What no kind of work took is `idle`: the engine waits while prompts are written, outputs are
    read and graded, and credit is given."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self.ahead: float | None = None
        """Of a turn that was played ahead: the seconds of it in which something else was learned."""

    @contextmanager
    def spend(self, work: str) -> Iterator[None]:
        """The time of a block. Blocks do not lie in one another."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[work] = self.seconds.get(work, 0.0) + time.monotonic() - began

    def row(self) -> dict[str, float]:
        """All kinds of work so far, what was idle, and the whole, in seconds. Of a turn that was played ahead the whole is what
        the run waited for it and learned; its works and what was idle add up to that and what overlapped."""
        whole = time.monotonic() - self.began
        idle = max(0.0, whole + (self.ahead or 0.0) - sum(self.seconds.values()))
        row = {f"{work}_s": seconds for work, seconds in self.seconds.items()} | {"idle_s": idle, "turn_s": whole}
        return row if self.ahead is None else row | {"overlap_s": self.ahead}
