"""GRPO and its family: one generator with outcome rewards only. The baseline that co-training must beat."""

from __future__ import annotations

from milonga.recipes.base import RECIPES, Recipe
from milonga.recipes.outcome import outcome_credit, sample_solutions
from milonga.roles import StepSolver
from milonga.schedule import Schedule, always
from milonga.table import Table
from milonga.types import Lesson, Traces


@RECIPES.register("grpo")
class Grpo(Recipe):
    """Outcome rewards, normalised within the rollouts of a problem (GRPO, arXiv 2402.03300).

    `--set policies.generator.objective.preset=dapo` (or dr_grpo, rloo, reinforce_pp, cispo, gspo, aipo …) makes it the
    others of the family.
    """

    name = "grpo"
    paper = "arXiv 2402.03300"
    paradigm = "single policy"
    granularity = "sequence"
    truth = "answers"
    seats = {"generator": StepSolver}
    lead = "generator"
    tools = True
    bindings = {"own": "", "lora": "", "shared": ""}
    overlap = ""

    def schedule(self) -> Schedule:
        return always("generator")

    def play(self, table: Table) -> Traces:
        return sample_solutions(table, "generator", self.objectives["generator"], self.rollouts)

    def credit(self, table: Table, played: Traces) -> list[Lesson]:
        advantages = outcome_credit(table, played, self.objectives["generator"])
        return [self.lesson("generator", played, advantages=advantages, sources={"answers": 1.0})]
