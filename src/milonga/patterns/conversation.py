"""Helpers for multi-turn rollouts: filtering those with a baseline, metrics between two turns, and teacher demonstrations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.tasks.base import normalise_text
from milonga.types import Floats, Problem, Rollout, Rollouts


def filter_comparable(talks: Rollouts) -> Rollouts:
    """Drop conversations that are the only one of their problem: they have no baseline. That happens where the others had no
    room for another turn."""
    counts = Counter(talks.problem_ids)
    return talks.select(lambda talk: counts[talk.problem.id] > 1)


def list_turns(talk: Rollout) -> list[Rollout]:
    """Return the conversation after each of its turns, the first one first."""
    out = [talk]
    while (before := out[0].earlier_conversation) is not None:
        out.insert(0, before)
    return out


def write_teacher_texts(ctx: Context, agent: str, problems: Sequence[Problem], what: str) -> list[str]:
    """Return the text of the agent's noisy teacher for each problem. `what` keys its random mistakes."""
    role = ctx.role(agent)
    return [role.demonstrate(ctx.task, problem, ctx.rng(what, agent, problem.id))[1] for problem in problems]


def compute_turn_costs(talks: Rollouts, differences: list[Floats], betas: Sequence[float]) -> list[Floats]:
    """Return token costs (KL penalties): the differences times the beta of their turn.

    differences: one float array per conversation, aligned with its ids, as the result is. betas: one per turn.
    """
    out = [np.zeros(len(talk.ids)) for talk in talks]
    for talk, cost, difference in zip(talks, out, differences, strict=True):
        for (start, end), beta in zip(talk.turn_spans, betas, strict=True):
            cost[start:end] = beta * difference[start:end]
    return out


CHANGES = ("first_accuracy", "last_accuracy", "gain", "fixed", "broken", "copy_rate")
"""The names of the metrics that `compute_change_metrics` returns."""


def compute_change_metrics(earlier: Rollouts, later: Rollouts) -> dict[str, float | None]:
    """Compare two turns of the same conversations: accuracy of both and its gain, wrong to right, right to wrong, copies."""
    before, after = earlier.correct, later.correct
    same = [normalise_text(a.text) == normalise_text(b.text) for a, b in zip(earlier, later, strict=True)]
    return {
        "first_accuracy": mean(before),
        "last_accuracy": mean(after),
        "gain": mean(after - before),
        "fixed": mean((1 - before) * after),
        "broken": mean(before * (1 - after)),
        "copy_rate": mean(same),
    }
