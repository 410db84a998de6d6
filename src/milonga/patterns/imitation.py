"""Imitation of a noisy teacher, to learn an agent's format before RL: the SFT stage that many papers begin with."""

from __future__ import annotations

from collections.abc import Sequence

from milonga.context import Context
from milonga.objectives import make_objective
from milonga.recipe import Recipe
from milonga.types import Problem, Rollout, Rollouts, TrainBatch


def sample_demonstrations(ctx: Context, agent: str, count: int | None = None) -> Rollouts:
    """Return the teacher's demonstrations for the turn's problems, one for each, in the agent's tokens."""
    return demonstrate_problems(ctx, agent, ctx.problems(count))


def demonstrate_problems(ctx: Context, agent: str, problems: Sequence[Problem]) -> Rollouts:
    """Return the teacher's demonstrations for these problems, one for each, in the agent's tokens."""
    role = ctx.role(agent)
    demonstrations: list[tuple[Problem | Rollout, str]] = []
    for problem in problems:
        rng = ctx.rng("demonstration", agent, problem.id)
        target, text = role.demonstrate(ctx.task, problem, rng)
        demonstrations.append((problem if target is None else target, text))
    return ctx.write(agent, [target for target, _ in demonstrations], [text for _, text in demonstrations])


def make_imitation_batch(recipe: Recipe, agent: str, texts: Rollouts) -> TrainBatch:
    """Make a cross-entropy train batch from these demonstrations."""
    return TrainBatch(recipe.policies[agent], make_objective("cross_entropy").loss, texts, sources={"demonstrations": 1.0})
