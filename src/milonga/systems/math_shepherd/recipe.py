"""Math-Shepherd (arXiv 2312.08935): a step's label is the success of completions from it. Nobody labels steps by hand.

The verifier learns how often the right answer can still be reached after each step; it ranks solutions, and in the second
recipe its scores are step rewards of the generator.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import contribution_stats, fill_after_zero, hard_labels, mix_advantages, step_reward_advantages
from milonga.credit.reach import StepReward
from milonga.patterns.outcome import outcome_credit, outcome_rewards, sample_solutions
from milonga.patterns.value_head import Labelled, Scoring, ScoringOptions, estimate_step_values, exact_labels
from milonga.roles.scorer import Aggregate
from milonga.schedule import Schedule, alternate, warm_up
from milonga.tasks.base import ANSWERS, STEPS, Capability
from milonga.types import Rollouts, TrainBatch

Labels = Literal["hard", "soft", "truth"]


class MathShepherdOptions(ScoringOptions):
    labels: Labels = "hard"
    """hard: whether any completion reaches the right answer. soft: the share that does. truth: exact labels up to the first
    error, without completions; an upper bound."""
    completions: int = Field(8, ge=1)
    """Completions from each prefix. Hard labels from different numbers of completions are not comparable."""
    tau: float = Field(0.0, ge=0, lt=1)
    """Share of the completions that must be exceeded for a hard label of 1; 0: one is enough."""
    isotonic: bool = False
    """Whether all steps after the first one with rate 0 are labelled 0 too."""
    drop_unsolved: bool = True
    """Drop problems that no rollout of the turn solved: there right steps would be labelled wrong, as all completions fail."""


class MathShepherd(Scoring):
    """Step labels by completions from each prefix, learned by a verifier with a value head (arXiv 2312.08935)."""

    name = "math_shepherd"
    truth = "answers"
    published = {"options": {"labels": "hard", "completions": 8, "tau": 0.0, "drop_unsolved": False, "aggregate": "min"}}
    Options = MathShepherdOptions
    options: MathShepherdOptions

    @property
    def needs(self) -> Set[Capability]:
        return {ANSWERS, STEPS} if self.options.labels == "truth" else {ANSWERS}

    @property
    def default_aggregate(self) -> Aggregate:
        return "product" if self.options.labels == "truth" else "min"

    def label(self, ctx: Context, solutions: Rollouts) -> list[Labelled]:
        if self.options.labels == "truth":
            return [Labelled(solution, exact_labels(solution)) for solution in solutions]
        if self.options.drop_unsolved:
            solved = {solution.problem.id for solution in solutions if solution.correct == 1}
            solutions = solutions.select(lambda t: t.problem.id in solved)
        values = estimate_step_values(ctx, solutions, self.options.completions)
        return [Labelled(solution, self.make_labels(rates)) for solution, rates in zip(solutions, values, strict=True)]

    def make_labels(self, rates: list[float]) -> list[float]:
        """Turn the success rates of a solution's steps into hard or soft labels."""
        labels = hard_labels(rates, self.options.tau) if self.options.labels == "hard" else rates
        return fill_after_zero(labels, 0.0) if self.options.isotonic else labels

    def sources(self) -> dict[str, float]:
        return {"steps": 1.0} if self.options.labels == "truth" else {"answers": 1.0}


class MathShepherdRlOptions(MathShepherdOptions):
    labels: Labels = "soft"
    """hard, soft or truth; rewards inherit the noise of hard labels."""
    warmup: int = Field(10, ge=0)
    """Verifier turns before the generator's first."""
    refresh: int = Field(0, ge=0)
    """Generator turns between new verifier turns, with the current generator as the completer; 0: the verifier stays frozen."""
    step_reward: StepReward = "centred"
    """centred, difference, or raw: the sum of the scores themselves, which rewards more steps."""
    alpha: float = Field(0.3, ge=0, le=1)
    """Weight of the step rewards against the outcome. At 1 only the verifier rewards, and it will be hacked."""


class MathShepherdRl(MathShepherd):
    """The generator learns from its answers and from the step scores of a verifier made as above (arXiv 2312.08935)."""

    name = "math_shepherd_rl"
    pays_outcomes = True
    lead = "generator"
    Options = MathShepherdRlOptions
    options: MathShepherdRlOptions

    def schedule(self) -> Schedule:
        turns = alternate(generator=self.options.refresh or 1, verifier=1 if self.options.refresh else 0)
        return warm_up("verifier", self.options.warmup) + turns

    def rollout(self, ctx: Context) -> Rollouts:
        if ctx.learner == "verifier":
            return super().rollout(ctx)
        return sample_solutions(ctx, "generator", self.objectives["generator"].filter, self.group_size)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        if ctx.learner == "verifier":
            return super().credit(ctx, rollouts)
        objective, alpha = self.objectives["generator"], self.options.alpha
        found = {check.target.id: check.verification.step_scores for check in ctx.judge("verifier", rollouts)}
        scores = [found.get(solution.id) for solution in rollouts]
        # Scores count only where they match the generator's steps in number, and where the outcome reward is not NaN.
        carries = ~np.isnan(outcome_rewards(ctx, rollouts, objective.filter))
        fitting = [s if s and len(s) == len(t.steps) and c else None for s, t, c in zip(scores, rollouts, carries, strict=True)]
        outcome = outcome_credit(ctx, rollouts, objective)
        process = step_reward_advantages(fitting, rollouts, rollouts.problem_ids, objective.estimator, self.options.step_reward)
        notes = contribution_stats(outcome, process, alpha, [t.mask for t in rollouts])
        notes["step_score"] = float(np.mean([x for s in fitting if s for x in s] or [0.0]))
        sources = {"answers": 1 - notes["step_share"], "verifier": notes["step_share"]}
        return [
            self.train_batch(
                "generator", rollouts, advantages=mix_advantages(outcome, process, alpha), sources=sources, notes=notes
            )
        ]
