"""Tango with a verifier that learns: from balanced pairs of right and wrong solutions; and, as options, by soft verdicts, step
labels and a weight that is earned.

Every piece can be switched on and off; with all of them off this is Tango, to the bit. The algorithm box is in this folder's
README.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit.balance import ClassBalance
from milonga.credit.baselines import Normaliser, group_rows
from milonga.errors import ConfigError
from milonga.evals.evaluate import judge_metrics
from milonga.evals.verdicts import get_soft_steps
from milonga.objectives import Estimator
from milonga.recipe import Refused
from milonga.systems.tango.recipe import Tango, TangoOptions, Verdicts, collect_step_verdicts
from milonga.systems.tango_balanced.credit import (
    NAN,
    Skill,
    Soundness,
    StepLabels,
    credit_step_verdicts,
    place_on_verdicts,
    soften_signs,
)
from milonga.systems.tango_balanced.pool import PairPool, find_contrasts, find_pairs, restore_solutions
from milonga.types import Floats, PerToken, Rollout, Rollouts, TrainBatch

ON_START = tuple(
    f"verifier/start_{name}"
    for name in ("soft_auroc", "soft_step_auroc", "balanced_accuracy", "positive_rate", "step_accuracy")
)
"""What `measured` adds to an evaluation."""
START_SAMPLES = 4
"""Solutions of each of these problems."""
KEPT = 256
"""Contrasts that are kept where no pairs are."""


class BalancedOptions(TangoOptions):
    soft: bool = False
    """The generator is paid by the probability of each step verdict, and not by the one that was sampled."""
    class_weights: Literal["root", "inverse"] = "root"
    """Class weights of the verifier's rows: 1 / sqrt(count), as in Tango, or 1 / count: both classes count alike."""
    pool: int = Field(256, ge=0)
    """Pairs of a right and a wrong solution of the same problem that are kept, the newest: the verifier learns from them. 0: it
    learns from one new solution of each problem, as in Tango."""
    replay: float = Field(0.25, ge=0, le=1)
    """Share of older pairs, of earlier generators, in a verifier turn."""
    step_credit: float = Field(0.0, ge=0)
    """Weight of the verifier's credit for step verdicts: a right answer says that all steps are right, a wrong one that at
    least one is wrong. 0: none."""
    soundness: bool = True
    """Weight what right answers say of their steps by the estimated share of them that are sound, where answers can be
    guessed."""
    corruptions: float = Field(0.0, ge=0, lt=1)
    """Share of beginnings of right solutions in a verifier turn, half of them with their last step corrupted. None where the
    task knows no mistakes."""
    gate: bool = False
    """alpha follows the verifier's measured skill, alpha * max(0, 2 * balanced accuracy - 1), in place of `alpha_schedule`."""
    measured: int = Field(0, ge=0)
    """Held-out problems (at most all there are) on which an evaluation also measures the verifier on solutions of the generator
    as it started: these stay the same, while its own generator's become harder to judge. 0: none."""


class TangoBalanced(Tango):
    """Tango whose verifier learns from balanced pairs of graded solutions."""

    name = "tango_balanced"
    overlap = Refused("its verifier learns from pairs that the generator's turns leave to it")
    published = {}
    Options = BalancedOptions
    options: BalancedOptions

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        how = self.objectives["generator"].estimator.advantage
        if self.options.soft and how in ("whiten", "whiten_baseline"):
            raise ConfigError(
                f"options.soft: not with policies.generator.objective.advantage={how}, which divides by the deviation and blows"
                " up soft verdicts that hardly differ; use zscore, centre or leave_one_out"
            )

    @property
    def measures(self) -> tuple[str, ...]:
        return ON_START if self.options.measured else ()

    @property
    def makes_labels(self) -> bool:
        """Whether solutions are kept for the verifier."""
        return bool(self.options.pool or self.options.corruptions)

    @property
    def uses_soundness(self) -> bool:
        """Whether any step label is weighted by the estimated share of sound answers."""
        return self.options.soundness and bool(self.options.step_credit or self.options.corruptions)

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample Tango's turns; a verifier turn is about pairs that were kept, and beginnings with known steps."""
        if ctx.learner == "generator" or not self.makes_labels:
            return super().rollout(ctx)
        # What was graded since the last verifier turn is used; where nothing was (a warm-up), solutions are sampled for it.
        solutions = Rollouts([])
        if not self.options.pool or not self.open_pool("pairs").fresh:
            solutions = ctx.ask("generator", ctx.problems(), self.group_size if self.options.pool else 1)
            self.keep_solutions(ctx, solutions)
            if self.options.pool:  # one solution of a problem says nothing of guessing
                self.count_guesses(ctx, solutions)
        targets = self.draw_targets(ctx, solutions)
        return Rollouts([*solutions, *ctx.ask("verifier", targets, self.group_size)])

    def keep_solutions(self, ctx: Context, solutions: Rollouts) -> None:
        """Keep pairs and contrasts of these graded solutions."""
        pairs, contrasts = self.open_pool("pairs"), self.open_pool("contrasts")
        pairs.add(find_pairs(ctx, solutions) if self.options.pool else [])
        contrasts.add(find_contrasts(ctx, solutions, round(self.options.corruptions * ctx.batch_size / 2)))
        self.state |= {"pairs": _to_state(pairs), "contrasts": _to_state(contrasts)}

    def count_guesses(self, ctx: Context, solutions: Rollouts) -> None:
        """Count what several graded solutions of each problem say of guessing, if the estimate is used."""
        if not self.uses_soundness:
            return
        answers: list[int | None] = [None] * len(solutions)
        for rows in group_rows(solutions.problem_ids):
            # Each problem apart: a grader that is asked whether answers are equal compares a limited number of them.
            numbers = ctx.task.group_equal_answers([solutions[row].solution.answer for row in rows])
            for row, number in zip(rows, numbers, strict=True):
                answers[row] = number
        found = self.open_soundness()
        found.update(answers, solutions.correct, solutions.problem_ids)
        self.state["soundness"] = _to_state(found)

    def draw_targets(self, ctx: Context, solutions: Rollouts) -> Rollouts:
        """Draw what the verifier judges: contrasts, and for the rest pairs. Where pairs are few, one of these solutions of each
        problem that no pair is about fills up."""
        o, rng = self.options, ctx.rng("draw")
        contrasts = self.open_pool("contrasts").draw(round(o.corruptions * ctx.batch_size / 2), o.replay, rng)
        rest = ctx.batch_size - 2 * len(contrasts)
        pairs = self.open_pool("pairs").draw(max(1, rest // 2), o.replay, rng)
        kept = restore_solutions(ctx, [one for pair in [*contrasts, *pairs] for one in pair])
        paired = {right["problem"] for right, _ in pairs}
        first = {t.problem.id: t for t in reversed(solutions) if t.problem.id not in paired}
        return Rollouts([*kept, *list(reversed(first.values()))[: max(0, rest - 2 * len(pairs))]])

    def open_pool(self, name: str) -> PairPool:
        """Return a pool as the run's state has it."""
        return PairPool(self.options.pool or KEPT, **self.state.get(name, {}))

    def open_soundness(self) -> Soundness:
        return Soundness(self.options.ema, **self.state.get("soundness", {}))

    def open_skill(self) -> Skill:
        return Skill(self.options.ema, **self.state.get("skill", {}))

    def open_balance(self) -> ClassBalance:
        return ClassBalance(self.options.ema, inverse=self.options.class_weights == "inverse", **self.state.get("balance", {}))

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        if ctx.learner == "generator":
            checks = rollouts.of("verifier")
            skill = self.open_skill()
            skill.update([check.verification.final for check in checks], np.array([check.target.correct for check in checks]))
            self.state["skill"] = _to_state(skill)
            solutions = rollouts.of("generator")
            if self.makes_labels:
                self.keep_solutions(ctx, solutions)
            self.count_guesses(ctx, solutions)
        else:
            for name in ("pairs", "contrasts"):
                if name in self.state:
                    self.state[name] = self.state[name] | {"fresh": 0}
        return super().credit(ctx, rollouts)

    def collect_verdicts(self, solutions: Rollouts, checks: Rollouts) -> Verdicts:
        signs = collect_step_verdicts(solutions, checks)
        if not self.options.soft:
            return signs
        soft = {check.target.id: get_soft_steps(check.verification) for check in checks}
        return [soften_signs(sign, soft.get(t.id)) for sign, t in zip(signs, solutions, strict=True)]

    def credit_steps(self, verdicts: Verdicts, solutions: Rollouts, estimator: Estimator) -> list[PerToken]:
        """Soft verdicts are centred within the problem, not divided by their deviation: those of a unanimous group differ by
        little, which a z-score would blow up to full size."""
        if self.options.soft and estimator.advantage in ("zscore", "zscore_population"):
            estimator = estimator.model_copy(update={"advantage": "centre"})
        return super().credit_steps(verdicts, solutions, estimator)

    def compute_alpha(self, progress: float) -> float:
        return self.options.alpha * self.open_skill().factor if self.options.gate else super().compute_alpha(progress)

    def credit_verifier(
        self, ctx: Context, checks: Rollouts, labels: Mapping[str, float], more: Floats | None = None
    ) -> TrainBatch:
        """Make Tango's train batch, and add the credit of step verdicts to it."""
        train_batch = super().credit_verifier(ctx, checks, labels, more)
        o, soundness = self.options, self.open_soundness().share if self.options.soundness else 1.0
        known = [label_steps(check.target, soundness, o.step_credit > 0) for check in checks]
        how: Normaliser = "zscore"
        found = credit_step_verdicts([check.verification.steps for check in checks], known, checks.target_ids, how)
        correct = np.array([labels[check.target.id] for check in checks])
        weights = np.ones(len(checks))
        if o.reweight:
            weights = np.where(np.isnan(correct), 1.0, self.open_balance().weights(correct))
        assert train_batch.advantages is not None
        for row, (check, values) in enumerate(zip(checks, found, strict=True)):
            scale = (1.0 if is_contrast(check.target) else o.step_credit) * weights[row]
            train_batch.advantages[row] = train_batch.advantages[row] + scale * place_on_verdicts(values, check)
        made = float(np.mean([is_contrast(check.target) for check in checks]))
        train_batch.sources = {"answers": 1 - made} | ({"construction": made} if made else {})
        # Each note only with its piece on.
        train_batch.notes |= {"soundness": soundness} if self.uses_soundness else {}
        train_batch.notes |= {"contrasts": made} if o.corruptions else {}
        train_batch.notes |= {"targets": float(len(set(checks.target_ids)))} if self.makes_labels else {}
        return train_batch

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure the verifier on solutions of the generator as it started."""
        if not self.options.measured:
            return {}
        size = ctx.task.size(ctx.split)
        count = self.options.measured if size is None else min(self.options.measured, size)
        solutions = ctx.ask("generator", ctx.problems(count), START_SAMPLES, tag="ref")
        found = judge_metrics(ctx.ask("verifier", solutions))
        return {name: found[name.removeprefix("verifier/start_")] for name in ON_START}


def is_contrast(target: Rollout) -> bool:
    """Whether this is a beginning of a solution whose steps are labelled, and whose answer is not."""
    return target.origin == "given" and bool(np.isnan(target.correct))


def label_steps(target: Rollout, soundness: float, by_answer: bool) -> StepLabels:
    """Label the steps of what a verifier judged: by its corruption, or by its answer."""
    steps = target.grade.steps if target.grade is not None else None
    if is_contrast(target) and steps is not None:
        return StepLabels.from_corruption([float(right) for right in steps], soundness)
    return StepLabels.from_answer(target.correct if by_answer else NAN, len(target.solution.steps), soundness)


def _to_state(one: PairPool | Soundness | Skill) -> dict[str, Any]:
    """Return what a part of the state holds, without its settings."""
    return {key: value for key, value in vars(one).items() if key not in ("limit", "decay")}
