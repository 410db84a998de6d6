"""Qwen2.5-Math-PRM (arXiv 2501.07301): consensus filtering of step labels for a process reward model. Completions say whether a
step can still be rescued, a judge says whether it is right. Solutions on whose first error both agree make better labels, but
fewer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from typing import Literal

from pydantic import Field

from milonga.context import Context
from milonga.credit import fill_after_zero, find_first_zero, hard_labels
from milonga.patterns.value_head import NAN, Labelled, Scoring, ScoringOptions, estimate_step_values
from milonga.roles import StepScorer, StepSolver, StepVerifier
from milonga.roles.scorer import Aggregate
from milonga.tasks.base import ANSWERS, STEPS, Capability
from milonga.types import Rollouts

VALUES = ("mc_hard", "mc_soft")
"""Labels that are values of prefixes (Monte Carlo). The others say which steps are right; one head never learns both kinds."""


class QwenPrmOptions(ScoringOptions):
    labels: Literal["consensus_hard", "consensus_soft", "mc_hard", "mc_soft", "judge", "truth"] = "consensus_hard"
    """consensus: labels of solutions on whose first error completions and judge agree. mc: completions alone. judge: the judge
    alone. truth: exact labels, an upper bound. soft: the share of completions that arrive, rather than 0 or 1."""
    completions: int = Field(8, ge=1)
    """Completions from each prefix."""
    tau: float = Field(0.0, ge=0, lt=1)
    """Share of the completions that must be exceeded for a step to count as right; the paper's best is 0."""
    votes: int = Field(1, ge=1)
    """Verifications by the judge; the most frequent first error counts. One verification is greedy."""
    solutions: int = Field(0, ge=0)
    """Solutions learned from in a turn, at most, after filtering, so that arms learn from equally many; 0: all."""


class QwenPrm(Scoring):
    """Completions and a frozen judge must agree about the first error of a solution; the others are dropped (2501.07301)."""

    name = "qwen_prm"
    truth = "answers"
    agents = {"generator": StepSolver, "verifier": StepScorer, "judge": StepVerifier}
    inference_only = ("judge",)
    published = {
        "batch": {"rollouts": 8},
        "options": {"labels": "consensus_hard", "completions": 8, "tau": 0.0, "aggregate": "product"},
    }
    inference_only_if = {"generator": {"labels": "judge"}}
    Options = QwenPrmOptions
    options: QwenPrmOptions

    @property
    def needs(self) -> Set[Capability]:
        return {ANSWERS, STEPS} if self.options.labels == "truth" else {ANSWERS}

    @property
    def default_aggregate(self) -> Aggregate:
        return "last_step" if self.options.labels in VALUES else "product"

    def label(self, ctx: Context, solutions: Rollouts) -> list[Labelled]:
        """Label the steps of the solutions that have any, drop those without consensus, and sample at most `solutions` of
        them."""
        readable = solutions.select(lambda t: len(t.steps) > 0)
        labels = self.label_steps(ctx, readable)
        kept = [Labelled(t, steps) for t, steps in zip(readable, labels, strict=True) if steps is not None]
        # Sampled, not the first ones: those would be of the first problems alone.
        rng = ctx.rng("solutions")
        chosen = rng.sample(range(len(kept)), min(len(kept), self.options.solutions or len(kept)))
        return [kept[i] for i in sorted(chosen)]

    def label_steps(self, ctx: Context, solutions: Rollouts) -> list[list[float] | None]:
        """Return one label per step up to the first error, and NaN after it; None for a solution that is dropped."""
        how = self.options.labels
        if how == "truth":
            return [labels_from_first_error(len(t.steps), t.grade.first_error if t.grade else None) for t in solutions]
        judged = self.judge_first_errors(ctx, solutions) if how not in VALUES else []
        if how == "judge":
            return [labels_from_first_error(len(t.steps), first) for t, first in zip(solutions, judged, strict=True)]
        rates = estimate_step_values(ctx, solutions, self.options.completions)
        hard = [fill_after_zero(hard_labels(r, self.options.tau), NAN) for r in rates]
        # Soft labels stop where the hard ones do.
        soft = [[r if h == h else NAN for r, h in zip(*both, strict=True)] for both in zip(rates, hard, strict=True)]
        labels: list[list[float] | None] = list(soft if how.endswith("soft") else hard)
        if how in VALUES:
            return labels
        agree = [find_first_zero(h) == first for h, first in zip(hard, judged, strict=True)]
        return [steps if same else None for steps, same in zip(labels, agree, strict=True)]

    def judge_first_errors(self, ctx: Context, solutions: Rollouts) -> list[int | None]:
        """Return the judge's first error of each solution: -1 for none, None where no verification could be parsed."""
        votes, found = self.options.votes, dict[str, Counter[int]]()
        for check in ctx.judge("judge", solutions, votes, greedy=votes == 1):
            if check.verification.steps is not None:
                found.setdefault(check.target.id, Counter())[find_first_zero(check.verification.steps)] += 1
        return [found[t.id].most_common(1)[0][0] if t.id in found else None for t in solutions]

    def sources(self) -> dict[str, float]:
        how = self.options.labels
        alone = {"truth": "steps", "judge": "judge", "mc_hard": "answers", "mc_soft": "answers"}
        return {alone[how]: 1.0} if how in alone else {"answers": 0.5, "judge": 0.5}


def labels_from_first_error(count: int, first: int | None) -> list[float] | None:
    """Return the step labels of a solution whose first error is known: 1 before it, 0 at it, NaN after it; -1 means no
    error."""
    if first is None:
        return None
    return [float(k != first) if first == -1 or k <= first else NAN for k in range(count)]
