"""Turns without a signal: no row of any train batch could move the weights by what it was rewarded or labelled with.

Invariant: everything follows from the metrics rows of the run; a resumed run stops where an uninterrupted one would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from milonga.evals.metrics import mean
from milonga.health import MOST
from milonga.text import format_share
from milonga.types import TrainBatch

Row = Mapping[str, Any]


def count_signals(train_batch: TrainBatch) -> int:
    """Count the rows that teach something: with a weight and, in a policy gradient, an advantage at some token."""
    weights = train_batch.weights or [1.0] * len(train_batch.rollouts)
    if train_batch.advantages is None:
        return int(np.count_nonzero(weights))
    return sum(weight != 0 and bool(np.any(row)) for weight, row in zip(weights, train_batch.advantages, strict=True))


def find_stall(rows: Sequence[Row], lead: str, patience: int) -> str | None:
    """Say why a run has stalled: no signal in its last `patience` turns, or in the last `patience` turns of the lead agent.

    None if it has not, and if `patience` is 0. Turns without a train batch, which only collect data, do not count.
    """
    counted = [row for row in rows if row.get("signal") is not None]
    led = [row for row in counted if row["learner"] == lead]
    for last in (counted[-patience:], led[-patience:]) if patience else ():
        if len(last) == patience and not any(row["signal"] for row in last):
            agent = str(last[-1]["learner"])
            return f"the {agent} found nothing to learn from in {patience} turns in a row: {_find_cause(last, agent)}"
    return None


def _find_cause(rows: Sequence[Row], agent: str) -> str:
    """Find the most likely cause in the metrics of the agent's rollouts."""

    def average(metric: str) -> float | None:
        return mean([value for row in rows if (value := row.get(f"rollouts/{agent}/{metric}")) is not None])

    cut, invalid, accuracy = average("truncated_rate"), average("invalid_rate"), average("accuracy")
    if cut is not None and cut >= MOST:
        return f"{format_share(cut)} of its outputs are cut at the limit: raise sampling.max_tokens"
    if invalid is not None and invalid >= MOST:
        return f"{format_share(invalid)} of its outputs cannot be read: 'milonga probe' shows some"
    if accuracy == 0.0:
        return "all its answers are wrong: choose easier problems or a stronger model"
    if accuracy == 1.0:
        return "all its answers are right: choose harder problems"
    return "its outputs on one problem all earn the same: raise batch.rollouts or sampling.temperature"
