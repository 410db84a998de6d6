"""The generator's side that recipes share: rollouts by the objective's rules, and the reward for the answer."""

from __future__ import annotations

import numpy as np

from milonga.credit import mixed, outcome_advantages, overlong_penalty
from milonga.objectives import Objective
from milonga.table import Table
from milonga.types import Floats, Traces


def solve(table: Table, seat: str, objective: Objective, n: int) -> Traces:
    """`n` solutions of each problem of the turn.

    With dynamic sampling (DAPO) groups whose outcomes are all equal are replaced by new problems, for a number of tries; then
    the turn goes on with what there is. Correctness decides, not the shaped reward: a length penalty alone would pass.
    """
    solutions = table.ask(seat, table.problems(), n)
    if not objective.dynamic_sampling:
        return solutions
    useful = keep_mixed(solutions)
    for _ in range(objective.max_tries - 1):
        missing = table.setting.batch - len(useful) // n
        if missing <= 0:
            break
        useful = Traces([*useful, *keep_mixed(table.ask(seat, table.problems(missing), n))])
    return useful if len(useful) else solutions


def keep_mixed(solutions: Traces) -> Traces:
    keep = mixed(solutions.correct, solutions.problems)
    return Traces(trace for trace, kept in zip(solutions, keep, strict=True) if kept)


def outcome_credit(table: Table, solutions: Traces, objective: Objective) -> list[Floats]:
    """Advantages of the answers: right or wrong, less what the objective says about length and KL."""
    rewards = solutions.correct
    limit = table.setting.limit(solutions[0].seat)
    if objective.overlong_buffer:
        rewards = rewards + np.array([overlong_penalty(t.length, limit, objective.overlong_buffer) for t in solutions])
    if objective.overlong_filter:
        rewards = np.where([t.finish == "length" for t in solutions], np.nan, rewards)
    penalties = table.penalties(solutions, objective)
    return outcome_advantages(rewards, solutions, solutions.problems, objective, penalties)
