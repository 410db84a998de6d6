"""Turns that pass stages one after another: how long one takes once the pipeline is full.

Invariants: a stage serves turns in order, one at a time; a turn begins when the one staleness + 1 before it is published.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from milonga.types import Floats

LEAST_TURNS = 12
"""That fill the pipeline before any is counted, and that are counted."""
Times = Sequence[Sequence[Floats | None]]
"""Of each stage, for each kind of turn, the seconds of one or of many placements; None where the turn does not pass it."""


def ordered(groups: Times, driver: Sequence[float], learners: int) -> Times:
    """Stages in the order in which a turn passes them: samplers, the driver, learners, which are the last groups."""
    return [*groups[:-learners], [np.array(seconds) for seconds in driver], *groups[-learners:]]


def steady(stages: Times, counts: Sequence[int], staleness: int) -> Floats:
    """Seconds of a cycle."""
    free: list[Floats] = [np.zeros(()) for _ in stages]
    published: list[Floats] = []
    filling, order = played(counts, staleness)
    for kind in order:
        now = published[-staleness - 1] if len(published) > staleness else np.zeros(())
        for at, stage in enumerate(stages):
            seconds = stage[kind]
            if seconds is not None:
                now = free[at] = np.maximum(now, free[at]) + seconds
        published.append(now)
    return (published[-1] - published[filling - 1]) * sum(counts) / (len(order) - filling)


def played(counts: Sequence[int], staleness: int) -> tuple[int, list[int]]:
    """The kinds of the turns to play, and how many of them fill the pipeline: as many are counted. Both are whole cycles, and
    whole rounds of the staleness + 1 turns that are under way, which may be published in bursts."""
    round_ = math.lcm(sum(counts), staleness + 1)
    turns = round_ * math.ceil(LEAST_TURNS / round_)
    cycle = [kind for kind, count in enumerate(counts) for _ in range(count)]
    return turns, cycle * (2 * turns // len(cycle))
