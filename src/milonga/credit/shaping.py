"""Length penalty in the reward (DAPO's soft overlong punishment)."""

from __future__ import annotations


def overlong_penalty(length: int, limit: int, buffer: float) -> float:
    """Return 0 up to limit - buffer, then a value that falls linearly to -1 at the limit, -1 beyond it."""
    if length <= limit - buffer:
        return 0.0
    if length <= limit:
        return ((limit - buffer) - length) / buffer
    return -1.0
