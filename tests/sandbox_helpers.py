"""What tests of the sandbox share."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from milonga.sandbox import Level, Limits, Sandbox
from milonga.sandbox.executor import try_level


def wait_until(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def opened(level: Level, workers: int = 2, **limits: Any) -> Sandbox:
    """A sandbox at a level, or a skipped test that says why there is none."""
    reason = try_level(level)
    if reason is not None:
        pytest.skip(f"no isolation '{level}' here: {reason}")
    return Sandbox(Limits(**{"wall_s": 3.0, **limits}), level, allow_weak=level == "limited", workers=workers)
