"""Bootstrapping: before RL, agents imitate their own readable outputs (rejection sampling), so that the others become so too.

It needs no worked solutions. Where answers are known, solvers imitate right solutions before wrong ones, and judges only
verdicts that agree with the truth, on right and on wrong solutions in equal numbers: imitating all that can be read would
make a judge that mostly says CORRECT say it always.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from milonga.context import Context
from milonga.credit.baselines import group_rows
from milonga.patterns.imitation import make_imitation_batch
from milonga.recipe import Recipe
from milonga.roles import Role, StepSolver, StepVerifier
from milonga.schedule import Phase, Schedule
from milonga.types import Rollout, Rollouts, TrainBatch

BOOTSTRAP = "bootstrap"
"""The name of its phases."""
PER_GROUP = 2
"""Most outputs that are imitated of one group: easy problems would crowd out the others."""


def schedule_bootstrap(recipe: Recipe, roles: Mapping[str, Role], turns: int) -> Schedule:
    """Make phases in which step solver and step verifier, where they learn at all, imitate themselves. They come before the
    run's turns."""
    agents = list_bootstrapped(recipe, roles)
    return Schedule(tuple(Phase(agent, turns, name=BOOTSTRAP, counts=False) for agent in agents if turns))


def list_bootstrapped(recipe: Recipe, roles: Mapping[str, Role]) -> list[str]:
    """List the agents that a bootstrap trains: those of the recipe's own learners that are a step solver or a step verifier."""
    schedule = recipe.schedule()
    found = {phase.learner for phase in schedule.intro + schedule.cycle}
    learners = {agent for agent in found if not recipe.is_inference_only(agent, recipe.options)}
    kinds = {recipe.solving: StepSolver, recipe.judging: StepVerifier}
    return [agent for agent, kind in kinds.items() if agent in learners and isinstance(roles.get(agent), kind)]


def sample_bootstrap(ctx: Context, recipe: Recipe) -> Rollouts:
    """Sample the outputs of a turn: many solutions of each problem, or many verifications of one solution of each."""
    if ctx.learner == recipe.solving:
        return ctx.ask(ctx.learner, ctx.problems(), recipe.group_size)
    solutions = ctx.ask(recipe.solving, ctx.problems())
    return Rollouts([*solutions, *ctx.ask(ctx.learner, solutions, recipe.group_size)])


def credit_bootstrap(ctx: Context, recipe: Recipe, rollouts: Rollouts) -> Iterable[TrainBatch]:
    """Make the imitation batch of the outputs that are kept; none if nothing can be read."""
    own = rollouts.of(ctx.learner)
    readable = Rollouts(rollout for rollout in own if rollout.parsed.is_valid and rollout.finish != "length")
    kept = select_verifications(readable) if ctx.role(ctx.learner).judges else select_solutions(readable)
    if kept:
        batch = make_imitation_batch(recipe, ctx.learner, kept)
        batch.notes |= {"readable": len(readable) / len(own), "imitated": float(len(kept))}
        yield batch


def select_solutions(readable: Rollouts) -> Rollouts:
    """Select a few solutions of each problem: well-formed before others, and right before wrong ones."""
    kept: list[Rollout] = []
    for rows in group_rows(readable.problem_ids):
        ranked = sorted(
            (readable[row] for row in rows), key=lambda rollout: (rollout.parsed.format, rollout.correct == 1.0), reverse=True
        )
        kept += ranked[:PER_GROUP]
    return Rollouts(kept)


def select_verifications(readable: Rollouts) -> Rollouts:
    """Select verifications of both classes in equal numbers, a few of each solution.

    The classes are right and wrong solutions, of whose verifications those count that agree with the truth; if one class has
    none, nothing is selected. Where no truth is known, the classes are positive and negative verdicts.
    """
    ranked = sorted(readable, key=lambda rollout: -rollout.parsed.format)  # stable: equal ones stay in order
    known = [check for check in ranked if not np.isnan(check.target.correct)]
    agreeing = [check for check in known if check.verification.final is (check.target.correct == 1.0)] if known else ranked
    right = _limit_each([check for check in agreeing if check.verification.final])
    wrong = _limit_each([check for check in agreeing if not check.verification.final])
    pairs = zip(right, wrong, strict=False)
    return Rollouts(check for pair in pairs for check in pair)


def _limit_each(checks: list[Rollout]) -> list[Rollout]:
    """Keep the first few verifications of each solution."""
    seen: dict[str, int] = {}
    kept = []
    for check in checks:
        seen[check.target.id] = seen.get(check.target.id, 0) + 1
        kept += [check] if seen[check.target.id] <= PER_GROUP else []
    return kept
