"""GAR (arXiv 2512.16917): a generator and a discriminator of slices are trained together, each against the other.

The discriminator's yes or no on each slice is a dense part of the generator's reward. The discriminator is rewarded for telling
reference slices from generated ones and for agreeing with the answer. Verdicts are averaged into one number for each rollout:
this is a shaped outcome reward, not step-level credit (`slice_advantage` makes it that).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import (
    SliceReward,
    StepCredit,
    approval_rate,
    average_step_verdicts,
    compute_class_weights,
    group_verdicts,
    is_reference,
    normalise,
    outcome_advantages,
)
from milonga.credit.mixing import rms
from milonga.errors import ConfigError
from milonga.patterns.imitation import make_imitation_batch, sample_demonstrations
from milonga.patterns.outcome import outcome_rewards, sample_solutions
from milonga.patterns.slicing import cut_slices, score_origin_logprobs, write_reference
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role, SliceJudge, StepSolver
from milonga.schedule import Schedule, always, warm_up
from milonga.systems.gar.metrics import ANSWERED, answer_rates, slice_metrics, yes_rates
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, STEPS, Task
from milonga.types import Rollout, Rollouts, TrainBatch

STYLE = "~"
"""The mark on the steps of references with `ref_source = "gold_marked"`: a style that gives their origin away."""


class GarOptions(RecipeOptions):
    sft: int = Field(10, ge=0)
    """Turns of stage 1, in which the discriminator learns a teacher's verdicts, or those of its own that outcomes confirm; the
    paper has 500 steps."""
    sft_slices: int = Field(128, ge=1)
    """Slices in each of them, half of them right."""
    slice_steps: int = Field(2, ge=1)
    """Steps in a slice."""
    slice_chars: int = Field(0, ge=0)
    """If not 0, steps are merged into slices of at most so many characters instead; the paper cuts at about 320 tokens."""
    context: Literal["slice", "prefix"] = "prefix"
    """Whether the discriminator sees the steps before the slice."""
    analysis: bool = True
    """Whether the teacher of stage 1 writes down what the steps should have given before its verdict."""
    lambda1: float = Field(1.0, ge=0)
    """Generator: weight of the answer, R_m."""
    lambda2: float = Field(1.0, ge=0)
    """Generator: weight of the accepted share of slices, R_s."""
    lambda3: float = Field(1.0, ge=0)
    """Discriminator: weight of telling reference from generated, R_d."""
    lambda4: float = Field(0.5, ge=0)
    """Discriminator: weight of agreeing with the answer, R_a."""
    disc_group: int = Field(4, ge=2)
    """Verdicts on each slice. Their share of yes is the slice's reward. They are also the group of the baseline."""
    ref_source: Literal["gold_same_style", "gold_marked", "none"] = "gold_same_style"
    """Reference slices: gold steps written as the generator writes, the same with a mark of style, or none and no R_d."""
    rd: Literal["verdict", "logprob"] = "verdict"
    """R_d by the verdict, or by the bounded log-probability of the right verdict after the same analysis. Without an analysis
    this is equal for all verdicts on a slice, so the advantage is 0."""
    z0_only_wrong: bool = False
    """Generated slices count as generated only in rollouts with a wrong answer. R_d then never contradicts R_a."""
    ra_on_reference: bool = False
    """Whether reference slices get R_a too."""
    normalise: Literal["sum", "per_reward"] = "sum"
    """Generator: normalise the sum of its rewards, or each of them before they are summed."""
    slice_advantage: bool = False
    """Generator: slice verdicts as credit of their own steps, instead of one number for each rollout; not in the paper."""
    frozen: bool = False
    """Leave the discriminator as it is after stage 1."""


class Gar(Recipe):
    """A generator and a slice discriminator learn jointly and adversarially (GAR, arXiv 2512.16917)."""

    name = "gar"
    granularity = "sequence"
    truth = "answers and reference solutions"
    pays_outcomes = True
    agents = {"generator": StepSolver, "verifier": SliceJudge}
    inference_only_if = {"verifier": {"frozen": True, "sft": 0}}
    lead = "generator"
    overlap = Refused("its judge must see the work of the generator that learns, not of older ones")
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused(
            "the discriminator is paid for recognising what the generator wrote: with one set of weights, itself"
        ),
    }
    Options = GarOptions
    options: GarOptions
    measures = (*slice_metrics(Rollouts([])), *(name for name, _ in ANSWERED))
    # A z-score would give all slices equal weight and so undo lambda3 and lambda4: only the order of two rewards would be left.
    defaults = {"policies": {"verifier": {"objective": {"advantage": "centre"}}}}
    embedded_defaults = {"policies": {"verifier": {"lr": 3e-4}}, "options": {"sft": 60}}
    published = {"turns": 400, "options": {"sft": 500, "slice_chars": 1280, "context": "slice"}}

    needs = {ANSWERS}

    def check(self, task: Task) -> None:
        if self.options.ref_source != "none" and DEMONSTRATIONS not in task.offers:
            raise ConfigError(
                f"recipe 'gar' tells reference solutions from generated ones, and task '{task.name}' has no worked solution of "
                "every problem: name their field by task.fields.solution, or set options.ref_source=none"
            )

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        o = self.options
        judge = SliceJudge(dialect, o.slice_steps, o.context, o.analysis, o.slice_chars)
        return {"generator": StepSolver(dialect), "verifier": judge}

    def schedule(self) -> Schedule:
        return warm_up("verifier", self.options.sft) + always("generator")

    def rollout(self, ctx: Context) -> Rollouts:
        """Stage 1: a teacher's verdicts, or the discriminator's own. Stage 2: the generator's rollouts, and verdicts on slices
        of these and references."""
        if ctx.learner == "verifier" and STEPS in ctx.task.offers:
            return sample_demonstrations(ctx, "verifier", self.options.sft_slices)
        if ctx.learner == "verifier":
            return self.sample_stage_1_verdicts(ctx)
        solutions = sample_solutions(ctx, "generator", self.objectives["generator"].filter, self.group_size)
        return Rollouts([*solutions, *self.sample_verdicts(ctx, solutions, self.options.disc_group)])

    def sample_verdicts(self, ctx: Context, solutions: Rollouts, n: int) -> Rollouts:
        """Sample `n` verdicts on every slice of the solutions, and of one reference for each problem."""
        return ctx.ask("verifier", cut_slices(ctx, [*solutions, *self.write_references(ctx, solutions)]), n)

    def write_references(self, ctx: Context, solutions: Rollouts) -> list[Rollout]:
        """Write one reference for each problem of the solutions."""
        problems = {t.problem.id: t.problem for t in solutions}.values() if self.options.ref_source != "none" else ()
        marked = STYLE if self.options.ref_source == "gold_marked" else ""
        return [write_reference(ctx, problem, marked) for problem in problems]

    def sample_stage_1_verdicts(self, ctx: Context) -> Rollouts:
        """Sample verdicts on slices where no teacher knows which steps are right. Slices of references and of solutions with
        the right answer count as right, those of solutions with a wrong one as wrong: up to `sft_slices`, half of each."""
        solutions = ctx.ask("generator", ctx.problems(), self.group_size)
        slices = cut_slices(ctx, [*solutions, *self.write_references(ctx, solutions)])
        rng, kinds = ctx.rng("stage 1"), [slices.select(lambda s: s.correct == 1.0), slices.select(lambda s: s.correct == 0.0)]
        each = min(self.options.sft_slices // 2, *map(len, kinds))
        chosen = Rollouts(piece for kind in kinds for piece in rng.sample(kind.items, each))
        return ctx.ask("verifier", chosen, self.options.disc_group)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Make the train batches of both players, which learn in the same turn, each with its own groups."""
        if ctx.learner == "verifier" and STEPS in ctx.task.offers:
            return [make_imitation_batch(self, "verifier", rollouts)]
        if ctx.learner == "verifier":
            return self.imitate_confirmed(rollouts)
        solutions = rollouts.of("generator")
        verdicts = rollouts.of("verifier")
        train_batches = [self.credit_generator(ctx, solutions, verdicts)]
        return train_batches if self.options.frozen else [*train_batches, self.credit_verifier(ctx, verdicts)]

    def imitate_confirmed(self, verdicts: Rollouts) -> list[TrainBatch]:
        """Make stage 1's train batch of sampled verdicts: those that agree with the outcome of their slice's solution are
        imitated, right and wrong slices with equal weight; none where they do not agree on both kinds."""
        agrees = [v.verification.final is not None and v.verification.final == bool(v.target.correct) for v in verdicts]
        labels = np.array([v.target.correct if kept else np.nan for v, kept in zip(verdicts, agrees, strict=True)])
        if len(set(labels[~np.isnan(labels)])) < 2:
            return []  # of one kind alone only that one word would be learned
        batch = make_imitation_batch(self, "verifier", verdicts)
        notes = {"kept": float(np.mean(agrees))}
        return [replace(batch, weights=compute_class_weights(labels), sources={"answers": 1.0}, notes=notes)]

    def credit_generator(self, ctx: Context, solutions: Rollouts, verdicts: Rollouts) -> TrainBatch:
        """Make the generator's train batch: R_rea = lambda1 * R_m + lambda2 * R_s, with the problem's rollouts as baseline."""
        o, objective, groups = self.options, self.objectives["generator"], solutions.problem_ids
        estimator = objective.estimator
        slice_verdicts = group_verdicts(verdicts)
        answers = outcome_rewards(ctx, solutions, objective.filter)
        approved = (
            np.array([approval_rate(slice_verdicts.get(t.id, [])) for t in solutions]) + 0 * answers
        )  # unknown stays unknown
        penalties = ctx.compute_kl_penalties(solutions, estimator)
        if o.normalise == "sum" and not o.slice_advantage:
            total = o.lambda1 * answers + o.lambda2 * approved
            credit = outcome_advantages(total, solutions, groups, estimator, penalties)
        else:
            first = outcome_advantages(answers, solutions, groups, estimator, penalties)
            second = outcome_advantages(approved, solutions, groups, estimator)
            if o.slice_advantage:
                known = [
                    slice_verdicts.get(t.id, []) if not np.isnan(a) else [] for t, a in zip(solutions, answers, strict=True)
                ]
                sizes = [[len(piece.solution.steps) for piece in cut_slices(ctx, [t])] for t in solutions]
                votes = [average_step_verdicts(*three) for three in zip(known, solutions, sizes, strict=True)]
                second = StepCredit().advantages(votes, solutions, groups, estimator)
            credit = [o.lambda1 * a + o.lambda2 * b for a, b in zip(first, second, strict=True)]
        parts = [rms([w * normalise(r, groups, "centre")]) for w, r in ((o.lambda1, answers), (o.lambda2, approved))]
        share = parts[1] / sum(parts) if sum(parts) else 0.0
        notes = {"approved": float(np.nanmean(approved)), "approval_share": share}
        sources = {"answers": 1 - share, "verifier": share}
        return self.train_batch("generator", solutions, advantages=credit, sources=sources, notes=notes)

    def credit_verifier(self, ctx: Context, verdicts: Rollouts) -> TrainBatch:
        """Make the discriminator's train batch: R_dis = lambda3 * R_d + lambda4 * R_a, with a baseline over the verdicts on one
        slice. Weights balance reference and generated slices."""
        o, estimator = self.options, self.objectives["verifier"].estimator
        reward = SliceReward(o.lambda3 * (o.ref_source != "none"), o.lambda4, o.z0_only_wrong, o.ra_on_reference)
        logprobs = score_origin_logprobs(ctx, verdicts) if o.rd == "logprob" else {}
        origins = [is_reference(v.target) for v in verdicts]
        rewards = [
            reward(v.verification.final, origin, v.target.correct, logprobs.get(v.id))
            for v, origin in zip(verdicts, origins, strict=True)
        ]
        penalties = ctx.compute_kl_penalties(verdicts, estimator)
        credit = outcome_advantages(np.array(rewards), verdicts, verdicts.target_ids, estimator, penalties)
        share = o.lambda3 / (o.lambda3 + o.lambda4) if o.lambda3 + o.lambda4 and o.ref_source != "none" else 0.0
        return self.train_batch(
            "verifier",
            verdicts,
            advantages=credit,
            weights=compute_class_weights([float(origin) for origin in origins]),
            sources={"demonstrations": share, "answers": 1 - share},
            notes={key: rate for key, rate in yes_rates(verdicts).items() if rate is not None} | answer_rates(verdicts),
        )

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure the discriminator on slices of the current generator, against their exact labels where there are any."""
        verdicts = self.sample_verdicts(ctx, ctx.ask("generator", ctx.problems(), self.group_size), 1)
        return dict.fromkeys(self.measures) | slice_metrics(verdicts) | answer_rates(verdicts)
