"""Conversations that recipes share: which can be compared, what changed between two turns, and how a teacher shows a turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from milonga.evals.metrics import mean
from milonga.table import Table
from milonga.tasks.base import keyed, normalised
from milonga.types import Floats, Problem, Trace, Traces


def comparable(talks: Traces) -> Traces:
    """Without those that are alone with their problem, because the others had no room for another turn: they have no
    baseline."""
    counts = Counter(talks.problems)
    return talks.keep(lambda talk: counts[talk.problem.id] > 1)


def turns_of(talk: Trace) -> list[Trace]:
    """The conversation after each of its turns, the first one first."""
    out = [talk]
    while (before := out[0].earlier) is not None:
        out.insert(0, before)
    return out


def taught(table: Table, seat: str, problems: Sequence[Problem], what: str) -> list[str]:
    """What the seat's noisy teacher writes about each problem; `what` keys its slips."""
    role, setting = table.setting.roles[seat], table.setting
    keys = [keyed(what, setting.seed, table.turn, seat, problem.id) for problem in problems]
    return [role.demonstrate(setting.task, problem, key)[1] for problem, key in zip(problems, keys, strict=True)]


def turn_costs(talks: Traces, differences: list[Floats], betas: Sequence[float]) -> list[Floats]:
    """Costs of single tokens, with a factor for each turn."""
    out = [np.zeros(len(talk.ids)) for talk in talks]
    for talk, cost, difference in zip(talks, out, differences, strict=True):
        for (start, end), beta in zip(talk.turns, betas, strict=True):
            cost[start:end] = beta * difference[start:end]
    return out


CHANGES = ("first_accuracy", "last_accuracy", "gain", "fixed", "broken", "copy_rate")
"""What `change_figures` tells."""


def change_figures(earlier: Traces, later: Traces) -> dict[str, float | None]:
    """How two turns of the same conversations differ: accuracy of both and its gain, wrong to right, right to wrong, copies."""
    before, after = earlier.correct, later.correct
    same = [normalised(a.text) == normalised(b.text) for a, b in zip(earlier, later, strict=True)]
    return {
        "first_accuracy": mean(before),
        "last_accuracy": mean(after),
        "gain": mean(after - before),
        "fixed": mean((1 - before) * after),
        "broken": mean(before * (1 - after)),
        "copy_rate": mean(same),
    }
