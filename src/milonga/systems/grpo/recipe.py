"""GRPO and its family: one generator with outcome rewards only. The baseline that co-training must beat."""

from __future__ import annotations

from milonga.context import Context
from milonga.patterns.outcome import outcome_credit, sample_solutions
from milonga.recipe import ALLOWED, Recipe
from milonga.roles import StepSolver
from milonga.schedule import Schedule, always
from milonga.types import Rollouts, TrainBatch


class Grpo(Recipe):
    """Outcome rewards, normalised within the rollouts of a problem (GRPO, arXiv 2402.03300).

    `--set policies.generator.objective.preset=dapo` (or dr_grpo, rloo, reinforce_pp, cispo, gspo, aipo …) makes it the
    others of the family.
    """

    name = "grpo"
    granularity = "sequence"
    truth = "answers"
    pays_outcomes = True
    agents = {"generator": StepSolver}
    lead = "generator"
    tools = True
    bindings = {"own": ALLOWED, "lora": ALLOWED, "shared": ALLOWED}
    overlap = ALLOWED
    published = {
        "batch": {"problems": 16, "rollouts": 64},
        "sampling": {"max_tokens": 1024},
        "policies": {"generator": {"lr": 1e-6, "objective": {"kl_coef": 0.04}}},
    }

    def schedule(self) -> Schedule:
        return always("generator")

    def rollout(self, ctx: Context) -> Rollouts:
        return sample_solutions(ctx, "generator", self.objectives["generator"].filter, self.group_size)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        advantages = outcome_credit(ctx, rollouts, self.objectives["generator"])
        return [self.train_batch("generator", rollouts, advantages=advantages, sources={"answers": 1.0})]
