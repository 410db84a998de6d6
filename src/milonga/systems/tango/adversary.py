"""tango_free with an adversarial third agent, rewarded for solutions that pass although their answer is not the majority's.

The verifier judges its solutions along with the generator's, by the same vote, in which the adversary does not vote: it learns
to refuse what is convincing but alone. The specification is `free.md` in this folder.
"""

from __future__ import annotations

from milonga.context import Context
from milonga.credit import outcome_advantages
from milonga.evals.metrics import mean
from milonga.patterns.outcome import shape_rewards
from milonga.patterns.voting import mean_final_verdicts
from milonga.roles import StepSolver, StepVerifier
from milonga.schedule import Schedule, alternate, warm_up
from milonga.systems.tango.free import TangoFree
from milonga.types import Rollouts, TrainBatch


class TangoFreeAdversary(TangoFree):
    """tango_free with a third agent that is rewarded for wrong solutions which pass: the verifier learns to refuse them."""

    name = "tango_free_adversary"
    agents = {"generator": StepSolver, "verifier": StepVerifier, "adversary": StepSolver}
    pays_format = ("generator", "adversary")

    def schedule(self) -> Schedule:
        o = self.options
        return warm_up("verifier", o.warmup) + alternate(generator=o.n_generator, adversary=o.n_verifier, verifier=o.n_verifier)

    def rollout(self, ctx: Context) -> Rollouts:
        if ctx.learner == "generator":
            return super().rollout(ctx)
        problems = self.draw_problems(ctx)
        voters = Rollouts([*ctx.ask("generator", problems, self.options.votes), *self.sample_anchors(ctx, problems)])
        if ctx.learner == "adversary":
            attempts = ctx.ask("adversary", problems, self.group_size)
            return Rollouts([*voters, *attempts, *self.sample_verdicts(ctx, attempts)])
        targets = Rollouts([*self.select_for_judging(ctx, voters), *ctx.ask("adversary", problems)])
        return Rollouts([*voters, *ctx.ask("verifier", targets, self.group_size)])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Reward the adversary by the share of verdicts that say right, on solutions whose answer is not the majority's."""
        if ctx.learner != "adversary":
            return super().credit(ctx, rollouts)
        attempts = rollouts.of("adversary")
        gives = self.make_labels(ctx, rollouts.of("generator"), attempts)
        passes = mean_final_verdicts(attempts, rollouts.of("verifier"))
        answers = [t.solution.answer is not None for t in attempts]
        rewards = passes * [float(answer and gives[t.id] == 0.0) for t, answer in zip(attempts, answers, strict=True)]
        objective = self.objectives["adversary"]
        shaped = shape_rewards(rewards, ctx, attempts, objective.filter)
        penalties = ctx.compute_kl_penalties(attempts, objective.estimator)
        credit = outcome_advantages(shaped, attempts, attempts.problem_ids, objective.estimator, penalties)
        notes = {"reward": mean(rewards) or 0.0}
        return [self.train_batch("adversary", attempts, advantages=credit, sources={"verifier": 1.0}, notes=notes)]
