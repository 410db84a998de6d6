"""PRIME (arXiv 2502.01456): an implicit reward model learns online which answers are right; its log-ratio rewards every token.

The implicit reward model is trained as a classifier of outcomes only, on the rollouts of the turn. Its score is a sum over
tokens, so each token's term is a dense reward for the generator, besides the outcome reward. No step is labelled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, cast

import numpy as np
from pydantic import Field, model_validator

from milonga.context import Context
from milonga.credit.baselines import Normaliser
from milonga.errors import ConfigError
from milonga.evals.metrics import mean, order_accuracy
from milonga.patterns.outcome import outcome_credit, outcome_rewards, sample_useful_groups
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, ImplicitScorer, Role, StepSolver
from milonga.schedule import Schedule, always, warm_up
from milonga.systems.prime.credit import (
    ImplicitCredit,
    Level,
    Loo,
    ProcessNorm,
    Whitening,
    combine_advantages,
    filter_by_accuracy,
    process_contribution_stats,
    rescale_rewards,
)
from milonga.tasks.base import ANSWERS
from milonga.types import Floats, Rollouts, TrainBatch


class PrimeOptions(RecipeOptions):
    prm_update: Literal["after", "before", "none"] = "after"
    """after: rewards come from the reward model before its update. before: update first, then score. none: frozen."""
    prm_warmup: int = Field(0, ge=0)
    """Warm-up turns in which only the reward model learns, from the initial generator's rollouts; the paper has none."""
    outcome_weight: float = Field(1.0, ge=0)
    """Weight of the answer's advantage."""
    process_weight: float = Field(1.0, ge=0)
    """Weight of the process advantage. With 0 only the outcome counts, and the reward model is trained without effect."""
    accuracy_low: float = Field(0.2, ge=0, le=1)
    """Problems with a smaller share of right rollouts are replaced by new ones. 0 and 1 keep every problem."""
    accuracy_high: float = Field(0.8, ge=0, le=1)
    """Problems with a larger share are replaced too."""
    loo: Loo = "formula"
    """The leave-one-out baseline. formula: as the paper describes it. code: as the public code has it."""
    level: Level = "token_mean"
    """The baseline of the other rollouts in a group: their reward per token, or their whole score (not in the paper)."""
    length_norm: bool = False
    """Divide the process credit by the length; not in the paper, whose process credit grows with it."""
    process_norm: ProcessNorm = "none"
    """Rescale the token rewards by the batch's largest return (the public code), by its std, or not at all."""
    whitening: Whitening = "off"
    """Whiten the final advantages over all tokens: the public code does it in full, the paper's formula does not."""
    gamma: float = Field(1.0, gt=0, le=1)
    """Discount per token of the process rewards."""

    @model_validator(mode="after")
    def _ordered(self) -> PrimeOptions:
        if self.accuracy_low > self.accuracy_high:
            raise ValueError(f"accuracy_low={self.accuracy_low} is larger than accuracy_high={self.accuracy_high}")
        return self


class Prime(Recipe):
    """Generator and implicit reward model learn in the same turn, from the same rollouts (PRIME, arXiv 2502.01456)."""

    name = "prime"
    granularity = "token"
    truth = "answers"
    needs = {ANSWERS}
    pays_outcomes = True
    agents = {"generator": StepSolver, "verifier": ImplicitScorer}
    lead = "generator"
    learns_along = ("verifier",)
    frozen_if = {"verifier": {"prm_update": "none", "prm_warmup": 0}}
    overlap = Refused("its problems are those that are solved now and then, and its verifier learns from labels")
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused(
            "generator and reward model are two sets of weights in PRIME: one would reward whatever made it likelier"
        ),
    }
    defaults = {
        "policies": {
            "generator": {"objective": {"preset": "grpo", "advantage": "leave_one_out"}},
            "verifier": {"objective": {"preset": "implicit_bce"}, "grad_clip": 10.0},
        }
    }
    published = {
        "turns": 592,
        "batch": {"problems": 256, "rollouts": 4},
        "sampling": {"max_tokens": 3072},
        "policies": {"generator": {"lr": 5e-7, "minibatches": 4}, "verifier": {"lr": 1e-6, "minibatches": 4}},
        "options": {"loo": "code", "process_norm": "max_return", "whitening": "full"},
    }
    learns = {"verifier": ("implicit_bce",)}
    measures = ("verifier/step_auroc",)
    Options = PrimeOptions
    options: PrimeOptions

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        baseline = self.objectives["generator"].estimator.advantage
        if baseline not in ("zscore", "centre", "leave_one_out"):
            raise ConfigError(f"policies.generator.objective: token rewards have no form for advantage '{baseline}' in 'prime'")

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        """Build the roles. The implicit scorer has the beta of its loss, so that loss and rewards share one beta."""
        return super().roles(dialect) | {"verifier": ImplicitScorer(dialect, self.objectives["verifier"].loss.beta)}

    def schedule(self) -> Schedule:
        return warm_up("verifier", self.options.prm_warmup) + always("generator")

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample rollouts of problems whose accuracy is within the range of the options."""
        if not ctx.engine.has_same_vocabulary(self.policies["generator"], self.policies["verifier"]):
            raise ConfigError("'prime' rewards the generator's tokens: generator and verifier need models of one vocabulary")
        tries = self.objectives["generator"].filter.max_tries
        return sample_useful_groups(ctx, "generator", self.filter_by_accuracy, tries, self.group_size)

    def filter_by_accuracy(self, solutions: Rollouts) -> Rollouts:
        """Keep the rollouts of problems whose accuracy is within the range of the options."""
        return Rollouts(rollout for rollout, kept in zip(solutions, self.mask_by_accuracy(solutions), strict=True) if kept)

    def mask_by_accuracy(self, solutions: Rollouts) -> np.ndarray:
        """Return a boolean mask, one per rollout: whether its problem's accuracy is within the range of the options."""
        low, high = self.options.accuracy_low, self.options.accuracy_high
        return filter_by_accuracy(solutions.correct, solutions.problem_ids, low, high)

    def credit(self, ctx: Context, rollouts: Rollouts) -> Iterator[TrainBatch]:
        """Yield the train batches of both. Each is learned before the next is asked for, so `before` scores with the updated
        reward model."""
        if ctx.learner == "verifier" or self.options.prm_update == "before":
            yield self.credit_verifier(rollouts, self.compute_token_rewards(ctx, rollouts))
        if ctx.learner == "generator":
            rewards = self.compute_token_rewards(ctx, rollouts)
            yield self.credit_generator(ctx, rollouts, rewards)
            if self.options.prm_update == "after":
                yield self.credit_verifier(rollouts, rewards)

    def compute_token_rewards(self, ctx: Context, solutions: Rollouts) -> list[Floats]:
        """Compute r_t = beta log(phi(y_t) / ref(y_t)) on the sampled tokens, for all rollouts at once: one float array each."""
        beta = self.objectives["verifier"].loss.beta
        return [beta * ratio for ratio in ctx.score_tokens("verifier", solutions)]

    def credit_verifier(self, solutions: Rollouts, rewards: list[Floats]) -> TrainBatch:
        """Make the reward model's train batch: cross-entropy of sigmoid(sum of r_t) against the outcome. Rollouts of problems
        outside the accuracy range have weight 0."""
        known = ~np.isnan(solutions.correct) & self.mask_by_accuracy(solutions)
        labels = [float(label) for label in np.nan_to_num(solutions.correct)]
        train_batch = self.train_batch(
            "verifier", solutions, labels=labels, weights=[float(k) for k in known], sources={"answers": 1.0}
        )
        train_batch.notes |= compute_pair_accuracy(rewards, solutions)
        return train_batch

    def credit_generator(self, ctx: Context, solutions: Rollouts, rewards: list[Floats]) -> TrainBatch:
        """Make the generator's train batch: A = A_outcome + A_process. Each has its own baseline within the problem."""
        o, objective = self.options, self.objectives["generator"]
        kept = self.mask_by_accuracy(solutions)
        outcomes = np.where(kept, outcome_rewards(ctx, solutions, objective.filter), np.nan)
        outcome = [array * k for array, k in zip(outcome_credit(ctx, solutions, objective), kept, strict=True)]
        form = ImplicitCredit(cast(Normaliser, objective.estimator.advantage), o.loo, o.level, o.length_norm, o.gamma)
        process = form.advantages(
            rescale_rewards(rewards, solutions, o.process_norm), outcomes, solutions, solutions.problem_ids
        )
        weights = (o.outcome_weight, o.process_weight)
        advantages = combine_advantages(outcome, process, weights, solutions, o.whitening)
        notes = process_contribution_stats(outcome, process, weights, solutions)
        sources = {"answers": 1 - notes["process_share"], "verifier": notes["process_share"]}
        return self.train_batch("generator", solutions, advantages=advantages, sources=sources, notes=notes)

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure whether the implicit rewards, trained without step labels, find the first wrong step: the step AUROC."""
        checks = ctx.judge("verifier", ctx.ask("generator", ctx.problems(), 2))
        return {"verifier/step_auroc": step_auroc(checks)}


def compute_pair_accuracy(rewards: list[Floats], solutions: Rollouts) -> dict[str, float]:
    """Return how often a right rollout scores higher than a wrong one of the same problem; empty without such pairs."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for reward, solution in zip(rewards, solutions, strict=True):
        groups.setdefault(solution.problem.id, []).append((float(reward.sum()), solution.correct))
    ordered = [order_accuracy([s for s, _ in group], [c for _, c in group]) for group in groups.values()]
    found = mean([value for value in ordered if value is not None])
    return {} if found is None else {"pair_accuracy": found}


def step_auroc(checks: Rollouts) -> float | None:
    """Return the AUROC of step scores: right steps against first wrong ones. Steps after the first error are not counted."""
    scores: list[float] = []
    right: list[float] = []
    for check in checks:
        given, grade = check.verification.step_scores, check.target.grade
        if given is None or grade is None or grade.steps is None or len(given) != len(grade.steps):
            continue
        counted = len(given) if all(grade.steps) else grade.steps.index(False) + 1
        scores += given[:counted]
        right += [float(step) for step in grade.steps[:counted]]
    return order_accuracy(scores, right)
