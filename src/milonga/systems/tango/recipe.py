"""RL Tango (arXiv 2505.15034): a generator and a generative step verifier learn in turns.

The verifier learns only from whether its final verdict matches the answer's correctness; its step verdicts become a decaying
dense reward for the generator. Nobody ever sees a step label. The arms that it is compared with are in `arms.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast, get_args

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit.balance import ClassBalance
from milonga.credit.baselines import Normaliser, has_both_outcomes, normalise
from milonga.credit.mixing import contribution_stats, decay, mix_advantages
from milonga.credit.tokens import StepCredit, broadcast_to_tokens, outcome_advantages
from milonga.evals.metrics import mean
from milonga.objectives import Estimator
from milonga.patterns.outcome import sample_solutions, shape_rewards
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import StepSolver, StepVerifier
from milonga.schedule import Schedule, alternate, warm_up
from milonga.tasks.base import ANSWERS
from milonga.types import Floats, PerToken, Rollout, Rollouts, TrainBatch

PAPER_LOSS = {"aggregate": "token_mean", "kl_coef": 0.001, "entropy_coef": 0.001}
Verdicts = list[list[float] | None]
"""+1 or -1 for each step of each solution; None where the verification does not match the steps."""


class TangoOptions(RecipeOptions):
    n_generator: int = Field(3, ge=1)
    """Generator turns in a cycle."""
    n_verifier: int = Field(1, ge=0)
    """Verifier turns in a cycle."""
    warmup: int = Field(6, ge=0)
    """Verifier turns before the first cycle; the paper has 40."""
    alpha: float = Field(0.3, ge=0, le=1)
    """Weight of the step advantage at the start. The paper's 0.1 goes with step_norm = "paper", whose sums are K times
    larger."""
    alpha_min: float = Field(1e-3, gt=0, le=1)
    """Weight of the step advantage at the end."""
    alpha_schedule: Literal["exponential", "constant"] = "exponential"
    """exponential: from alpha to alpha_min over the run's budget. constant: alpha throughout."""
    step_norm: Literal["verdict", "paper"] = "verdict"
    """verdict: whiten the verdicts, then divide by the number of steps. paper: the other way round, length-biased."""
    step_scale: float = Field(1.0, gt=0)
    """A factor on the step advantage; public code has 10 in its RLOO form."""
    step_gamma: float = Field(1.0, gt=0, le=1)
    """Discount per token of the step rewards' return in the whitened (REINFORCE++) form."""
    mask_step_if_flat: bool = False
    """No step advantage for groups whose answers are all right or all wrong."""
    format_weight: float = Field(0.8, ge=0)
    """gamma: weight of the verifier's format score."""
    reweight: bool = True
    """Weight the verifier's rows so that right and wrong solutions count alike."""
    ema: float = Field(0.8, ge=0, lt=1)
    """Decay of the class counts."""
    consistency_bonus: float = Field(0.0, ge=0)
    """Extra reward for a final verdict that follows from the step verdicts; not in the paper."""


class Tango(Recipe):
    """Generator and generative step verifier learn in turns (RL Tango, arXiv 2505.15034)."""

    name = "tango"
    granularity = "step"
    truth = "answers"
    needs = {ANSWERS}
    pays_outcomes = True
    agents = {"generator": StepSolver, "verifier": StepVerifier}
    inference_only_if = {"verifier": {"n_verifier": 0, "warmup": 0}}
    lead = "generator"
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused("generator and verifier are two sets of weights: with one, each undoes the other's KL reference"),
    }
    overlap = ALLOWED
    published = {
        "turns": 200,
        "batch": {"problems": 256, "rollouts": 5},
        "sampling": {"max_tokens": 2048},
        "policies": {agent: {"lr": 1e-6, "objective": PAPER_LOSS} for agent in ("generator", "verifier")},
        "options": {"warmup": 40, "alpha": 0.1, "step_norm": "paper"},
    }
    Options = TangoOptions
    options: TangoOptions
    judge = "verifier"
    """Who judges the steps."""

    def schedule(self) -> Schedule:
        turns = alternate(generator=self.options.n_generator, verifier=self.options.n_verifier)
        return warm_up("verifier", self.options.warmup) + turns

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample a generator turn (many solutions, one check each) or a verifier turn (one solution, many checks)."""
        if ctx.learner == "generator":
            solutions = sample_solutions(ctx, "generator", self.objectives["generator"].filter, self.group_size)
            return Rollouts([*solutions, *ctx.ask("verifier", solutions)])
        solutions = ctx.ask("generator", ctx.problems())
        return Rollouts([*solutions, *ctx.ask("verifier", solutions, self.group_size)])

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        solutions, checks = rollouts.of("generator"), rollouts.of("verifier")
        if ctx.learner == "generator":
            return [self.credit_generator(ctx, solutions, self.collect_verdicts(solutions, checks), solutions.rewards)]
        return [self.credit_verifier(ctx, checks, {t.id: t.correct for t in checks.targets})]

    def collect_verdicts(self, solutions: Rollouts, checks: Rollouts) -> Verdicts:
        """Return the step verdicts that the generator is paid by."""
        return collect_step_verdicts(solutions, checks)

    def credit_generator(self, ctx: Context, solutions: Rollouts, verdicts: Verdicts, right: Floats) -> TrainBatch:
        """Make the generator's train batch: A = (1 - alpha) A_outcome + alpha A_step. Each source is normalised within the
        problem first, then mixed.

        `right` is the outcome reward of each answer, whoever judges it; NaN where it is unknown. Shape (solutions,).
        """
        estimator, groups = self.objectives["generator"].estimator, solutions.problem_ids
        rewards = shape_rewards(right, ctx, solutions, self.objectives["generator"].filter)
        outcome = outcome_advantages(rewards, solutions, groups, estimator, ctx.compute_kl_penalties(solutions, estimator))
        process = self.credit_steps(verdicts, solutions, estimator)
        keep = ~np.isnan(rewards)
        if self.options.mask_step_if_flat:
            keep &= has_both_outcomes(right, groups)
        process = [array * kept for array, kept in zip(process, keep, strict=True)]
        alpha = self.compute_alpha(ctx.progress)
        notes = contribution_stats(outcome, process, alpha, [t.mask for t in solutions])
        sources = {"answers": 1 - notes["step_share"], self.judge: notes["step_share"]}
        mixed = mix_advantages(outcome, process, alpha)
        return self.train_batch("generator", solutions, advantages=mixed, sources=sources, notes=notes)

    def credit_steps(self, verdicts: Verdicts, solutions: Rollouts, estimator: Estimator) -> list[PerToken]:
        """Return the step advantages, normalised within the problem."""
        steps = StepCredit(self.options.step_norm, self.options.step_scale, self.options.step_gamma)
        return steps.advantages(verdicts, solutions, solutions.problem_ids, estimator)

    def compute_alpha(self, progress: float) -> float:
        """Return the weight of the step advantage at this progress of the run."""
        if self.options.alpha_schedule == "constant":
            return self.options.alpha
        return decay(self.options.alpha, self.options.alpha_min, progress)

    def credit_verifier(
        self, ctx: Context, checks: Rollouts, labels: Mapping[str, float], more: Floats | None = None
    ) -> TrainBatch:
        """Make the verifier's train batch: r = [final verdict == answer correct] + gamma * format; the group is the checks of
        one solution.

        `labels` maps a solution's id to whether its answer counts as correct; `more` is an extra reward of each check, shape
        (checks,).
        """
        estimator = self.objectives["verifier"].estimator
        correct = np.array([labels[t.target.id] for t in checks])
        rewards = np.array([self.verifier_reward(t, label) for t, label in zip(checks, correct, strict=True)])
        rewards = rewards if more is None else rewards + more
        notes = {"verifier_reward": mean(rewards) or 0.0}
        penalties = ctx.compute_kl_penalties(checks, estimator)
        if penalties is not None:
            rewards = rewards - np.array([p.sum() for p in penalties])
        # Always within the checks of one solution (law 4); the whitened forms, which have no groups, take the paper's z-score.
        grouped = estimator.advantage in get_args(Normaliser)
        advantage = normalise(rewards, checks.target_ids, cast(Normaliser, estimator.advantage if grouped else "zscore"))
        if self.options.reweight:
            balance = self.open_balance()
            balance.update(correct)
            self.state["balance"] = {"right": balance.right, "wrong": balance.wrong}
            advantage = advantage * balance.weights(correct)
            notes |= {"class_right": float(balance.right or 0), "class_wrong": float(balance.wrong or 0)}
        credit = broadcast_to_tokens(advantage, checks)
        return self.train_batch("verifier", checks, advantages=credit, sources={"answers": 1.0}, notes=notes)

    def open_balance(self) -> ClassBalance:
        """Return the class balance as the run's state has it."""
        return ClassBalance(self.options.ema, **self.state.get("balance", {}))

    def verifier_reward(self, check: Rollout, label: float) -> float:
        """Return the reward of a check, for its format even without a verdict; NaN where it is unknown what is right."""
        value = check.verification
        if np.isnan(label):
            return float("nan")
        agrees = value.final is not None and value.final == bool(label)
        reward = float(agrees) + self.options.format_weight * check.parsed.format
        if value.steps is not None and value.final == all(value.steps):
            reward += self.options.consistency_bonus
        return reward


def collect_step_verdicts(solutions: Rollouts, checks: Rollouts) -> Verdicts:
    """Return the step verdicts on each solution, matched by index: generator and verifier may have different tokenizers."""
    found = {check.target.id: check.verification.steps for check in checks}
    return [verdicts_to_signs(found.get(solution.id), solution) for solution in solutions]


def verdicts_to_signs(verdicts: tuple[bool, ...] | None, solution: Rollout) -> list[float] | None:
    """Convert step verdicts to +1 and -1, NaN for the steps after the last verdict; None where they do not match the solution's
    steps."""
    if not verdicts or len(verdicts) > len(solution.steps):
        return None
    return [1.0 if right else -1.0 for right in verdicts] + [float("nan")] * (len(solution.steps) - len(verdicts))
