"""The generator's side that recipes share: rollouts by the objective's rules, and the reward for the answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from milonga.credit import mixed, outcome_advantages, overlong_penalty
from milonga.objectives import Objective
from milonga.table import Table
from milonga.types import Floats, Traces


def solve(table: Table, seat: str, objective: Objective, n: int) -> Traces:
    """`n` solutions of each problem of the turn; with dynamic sampling (DAPO) of problems with both outcomes.

    Correctness decides, not the shaped reward: a length penalty alone would pass.
    """
    if not objective.dynamic_sampling:
        return table.ask(seat, table.problems(), n)
    return solve_until(table, seat, keep_mixed, objective.max_tries, n)


def solve_until(table: Table, seat: str, keep: Callable[[Traces], Traces], tries: int, n: int) -> Traces:
    """`n` solutions of each problem, of as many problems as a turn has, from groups that `keep` leaves.

    The others are replaced by new problems, for a number of tries; then the turn goes on with what there is.
    """
    solutions = table.ask(seat, table.problems(), n)
    useful = keep(solutions)
    for _ in range(tries - 1):
        missing = table.setting.batch - len(useful) // n
        if missing <= 0:
            break
        useful = Traces([*useful, *keep(table.ask(seat, table.problems(missing), n))])
    return useful if len(useful) else solutions


def keep_mixed(solutions: Traces) -> Traces:
    keep = mixed(solutions.correct, solutions.problems)
    return Traces(trace for trace, kept in zip(solutions, keep, strict=True) if kept)


def outcome_rewards(table: Table, solutions: Traces, objective: Objective) -> Floats:
    """Right or wrong, less what the objective says about length; NaN where a solution carries no credit at all."""
    return shaped(solutions.correct, table, solutions, objective)


def shaped(rewards: Floats, table: Table, solutions: Traces, objective: Objective) -> Floats:
    """Rewards of 0 and 1, wherever they come from, by the objective's rules on length.

    With shaping, rewards are +1 and -1 as in DAPO: beside 0 and 1 the length term would weigh twice as much.
    """
    limit = table.setting.limit(solutions[0].seat)
    if objective.overlong_buffer:
        shaping = np.array([overlong_penalty(t.length, limit, objective.overlong_buffer) for t in solutions])
        rewards = 2 * rewards - 1 + shaping
    if objective.overlong_filter:
        rewards = np.where([t.finish == "length" for t in solutions], np.nan, rewards)
    return rewards


def outcome_credit(table: Table, solutions: Traces, objective: Objective) -> list[Floats]:
    """Advantages of the answers, by the objective's rules on length and KL."""
    rewards = outcome_rewards(table, solutions, objective)
    return outcome_advantages(rewards, solutions, solutions.problems, objective, table.penalties(solutions, objective))
