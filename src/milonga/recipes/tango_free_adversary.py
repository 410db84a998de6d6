"""tango_free with an adversarial third agent, rewarded for solutions that pass although their answer is not the majority's.

The verifier judges its solutions along with the generator's, by the same vote, in which the adversary does not vote: it learns
to refuse what is convincing but alone. The specification is docs/recipes/tango_free.md.
"""

from __future__ import annotations

from milonga.credit import outcome_advantages
from milonga.evals.metrics import mean
from milonga.recipes.base import RECIPES
from milonga.recipes.outcome import shape_rewards
from milonga.recipes.tango_free import TangoFree
from milonga.recipes.voting import mean_final_verdicts
from milonga.roles import StepSolver, StepVerifier
from milonga.schedule import Schedule, alternate, warm_up
from milonga.table import Table
from milonga.types import Lesson, Traces


@RECIPES.register("tango_free_adversary")
class TangoFreeAdversary(TangoFree):
    """tango_free with a third agent that is rewarded for wrong solutions which pass: the verifier learns to refuse them."""

    name = "tango_free_adversary"
    seats = {"generator": StepSolver, "verifier": StepVerifier, "adversary": StepSolver}

    def schedule(self) -> Schedule:
        o = self.options
        turns = alternate(generator=o.n_generator, adversary=o.n_verifier, verifier=o.n_verifier)
        return warm_up("verifier", o.warmup) + turns

    def play(self, table: Table) -> Traces:
        if table.learner == "generator":
            return super().play(table)
        problems = self.draw_problems(table)
        voters = Traces([*table.ask("generator", problems, self.options.votes), *self.sample_anchors(table, problems)])
        if table.learner == "adversary":
            attempts = table.ask("adversary", problems, self.rollouts)
            return Traces([*voters, *attempts, *self.sample_verdicts(table, attempts)])
        subjects = Traces([*self.select_for_judging(table, voters), *table.ask("adversary", problems)])
        return Traces([*voters, *table.ask("verifier", subjects, self.rollouts)])

    def credit(self, table: Table, played: Traces) -> list[Lesson]:
        """Reward the adversary by the share of verdicts that say right, on solutions whose answer is not the majority's."""
        if table.learner != "adversary":
            return super().credit(table, played)
        attempts = played.select(lambda t: t.seat == "adversary")
        gives = self.make_labels(table, played.select(lambda t: t.seat == "generator"), attempts)
        passes = mean_final_verdicts(attempts, played.select(lambda t: t.seat == "verifier"))
        answers = [t.reading.value.answer is not None for t in attempts]
        rewards = passes * [float(answer and gives[t.id] == 0.0) for t, answer in zip(attempts, answers, strict=True)]
        objective = self.objectives["adversary"]
        paid = shape_rewards(rewards, table, attempts, objective)
        credit = outcome_advantages(
            paid, attempts, attempts.problem_ids, objective, table.compute_kl_penalties(attempts, objective)
        )
        notes = {"reward": mean(rewards) or 0.0}
        return [self.lesson("adversary", attempts, advantages=credit, sources={"verifier": 1.0}, notes=notes)]
