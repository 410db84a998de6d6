"""Sampling of solutions and outcome rewards that recipes share, by the rules of the generator's objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from milonga.context import Context
from milonga.credit import has_both_outcomes, outcome_advantages, overlong_penalty
from milonga.objectives import Estimator, Objective, RolloutFilter
from milonga.types import Floats, Rollout, Rollouts


def sample_solutions(ctx: Context, agent: str, rules: RolloutFilter, n: int) -> Rollouts:
    """Sample `n` solutions of each problem of the turn. With dynamic sampling (DAPO), only of problems whose
    rewards differ.

    The outcome reward decides, not the shaped one: with that, a group that differs only in length penalties would be kept.
    """
    if not rules.dynamic_sampling:
        return ctx.ask(agent, ctx.problems(), n)
    return sample_useful_groups(ctx, agent, _filter_mixed_groups, rules.max_tries, n)


def sample_useful_groups(ctx: Context, agent: str, keep: Callable[[Rollouts], Rollouts], tries: int, n: int) -> Rollouts:
    """Sample groups of `n` solutions per problem until a full batch of problems passes the filter `keep`.

    Problems that do not pass are replaced by new ones, for a number of tries. Then the turn goes on with what there is.
    """
    solutions = ctx.ask(agent, ctx.problems(), n)
    useful = keep(solutions)
    for _ in range(tries - 1):
        missing = ctx.batch_size - len(useful) // n
        if missing <= 0:
            break
        useful = Rollouts([*useful, *keep(ctx.ask(agent, ctx.problems(missing), n))])
    return useful if len(useful) else solutions


def _filter_mixed_groups(solutions: Rollouts) -> Rollouts:
    """Keep the solutions of problems whose rewards differ."""
    keep = has_both_outcomes(solutions.rewards, solutions.problem_ids)
    return Rollouts(rollout for rollout, kept in zip(solutions, keep, strict=True) if kept)


def outcome_rewards(ctx: Context, solutions: Rollouts, rules: RolloutFilter) -> Floats:
    """Return outcome rewards with the filter's length shaping, one per solution; NaN where a solution is masked."""
    return shape_rewards(solutions.rewards, ctx, solutions, rules)


def shape_rewards(rewards: Floats, ctx: Context, solutions: Rollouts, rules: RolloutFilter) -> Floats:
    """Apply the filter's rules on format and length (overlong penalty and filter) to rewards from 0 to 1, from any source.

    With the penalty, rewards are +1 and -1 as in DAPO: with 0 and 1 the length term would weigh twice as much.
    """
    rewards = add_format_rewards(rewards, solutions, rules)
    limit = ctx.run.get_max_tokens(solutions[0].agent)
    if rules.overlong_buffer:
        zone = rules.overlong_buffer if rules.overlong_buffer >= 1 else rules.overlong_buffer * limit
        shaping = np.array([overlong_penalty(t.length, limit, zone) for t in solutions])
        rewards = 2 * rewards - 1 + shaping
    if rules.overlong_filter:
        rewards = np.where([t.finish == "length" for t in solutions], np.nan, rewards)
    return rewards


def add_format_rewards(rewards: Floats, solutions: Sequence[Rollout], rules: RolloutFilter) -> Floats:
    """Add what the format score of each solution is paid by the filter's `format_weight`."""
    if not rules.format_weight:
        return rewards
    return rewards + rules.format_weight * np.array([solution.parsed.format for solution in solutions])


def outcome_credit(ctx: Context, solutions: Rollouts, objective: Objective) -> list[Floats]:
    """Return the advantages of outcome rewards, by the objective's rules on length and KL: one float array per solution,
    aligned with its ids."""
    rewards = outcome_rewards(ctx, solutions, objective.filter)
    penalties = ctx.compute_kl_penalties(solutions, objective.estimator)
    return outcome_advantages(rewards, solutions, solutions.problem_ids, objective.estimator, penalties)


def subtract_kl(ctx: Context, rollouts: Rollouts, rewards: Floats, estimator: Estimator) -> Floats:
    """Subtract the summed KL penalty of each rollout from its reward, for estimators with a KL in the reward."""
    costs = ctx.compute_kl_penalties(rollouts, estimator)
    return rewards if costs is None else rewards - np.array([cost.sum() for cost in costs])
