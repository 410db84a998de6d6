"""How many CPU threads to compute with.

Torch's threads spin while they wait for each other: where another process is busy on the same cores, two threads can be
five times slower than one. So a new run takes the cores that are idle when it starts. The number is part of its config:
sums are split by it, and a resumed run must end in the same bits.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch

LOOK = 0.3
"""Seconds over which idle cores are counted."""


def choose_threads() -> int:
    """As OMP_NUM_THREADS says; otherwise the idle cores, at least one and at most what torch would take."""
    most = torch.get_num_threads()
    if "OMP_NUM_THREADS" in os.environ or most == 1:
        return most
    idle = idle_cores()
    return most if idle is None else max(1, min(most, round(idle)))


def idle_cores() -> float | None:
    """Mean number of idle cores over a moment; None where the system does not tell."""
    before = _read_ticks()
    if before is None:
        return None
    time.sleep(LOOK)
    after = _read_ticks()
    assert after is not None
    idle, total = after[0] - before[0], after[1] - before[1]
    return idle / total * (os.cpu_count() or 1) if total else None


def _read_ticks() -> tuple[int, int] | None:
    """Ticks that all cores were idle, and all ticks, since the system started."""
    file = Path("/proc/stat")
    if not file.exists():
        return None
    fields = [int(value) for value in file.read_text().splitlines()[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
