"""Let's Verify Step by Step (arXiv 2305.20050): a verifier that learns the truth of each step ranks solutions better than one
that learns only whether the answer is right; and labels go further when convincing wrong solutions are labelled.

Labels come from a file, as people wrote them, or from a task that knows the truth of each step of what the generator writes.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from pydantic import Field

from milonga.context import Context
from milonga.credit import select_convincing_wrong
from milonga.errors import ConfigError
from milonga.evals.bench import write_labelled
from milonga.patterns.value_head import Labelled, Scoring, ScoringOptions, exact_labels
from milonga.roles import StepSolver
from milonga.roles.scorer import Aggregate
from milonga.tasks.base import ANSWERS, LABELS, Capability, Task
from milonga.types import Rollout, Rollouts, TrainBatch


class LetsVerifyOptions(ScoringOptions):
    labels: Literal["process", "outcome"] = "process"
    """process: the truth of each step, up to the first error. outcome: whether the answer is right, at the last token."""
    stop_at_error: bool = True
    """Whether labelling stops at the first error. What comes after it was never labelled in the paper."""
    label_budget: int = Field(4, ge=1)
    """How many of a problem's rollouts in the turn are labelled; of a file so many labelled solutions for each of
    `batch.problems`."""
    convincing_fraction: float = Field(0.8, ge=0, le=1)
    """Share of them that are convincing wrong answers: those with the highest verifier scores. The others are uniform."""


class LetsVerify(Scoring):
    """Each turn is a round: sample, choose by the present verifier, label, learn from all rounds (arXiv 2305.20050)."""

    name = "lets_verify"
    truth = "steps"
    inference_only = ("generator",)
    published = {
        "sampling": {"max_tokens": 1024},
        "policies": {"verifier": {"epochs": 2}},
        "options": {"labels": "process", "stop_at_error": True, "aggregate": "product"},
    }
    Options = LetsVerifyOptions
    options: LetsVerifyOptions

    @property
    def needs(self) -> Set[Capability]:
        return {LABELS} if self.options.labels == "process" else {ANSWERS}

    def check(self, task: Task) -> None:
        """Refuse to learn what nobody labelled: the labels of a file are known up to the first error."""
        if not self.options.stop_at_error and self.uses_labelled_file(task):
            raise ConfigError("options.stop_at_error=false: in a file no step is labelled after the first error; leave it out")

    def uses_labelled_file(self, task: Task) -> bool:
        """Whether labels come with the task's problems: then nothing is sampled to be labelled."""
        return self.options.labels == "process" and not task.knows_steps

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample solutions, or take as many labelled ones of the file as would be labelled."""
        if not self.uses_labelled_file(ctx.task):
            return super().rollout(ctx)
        solver = ctx.role("generator")
        assert isinstance(solver, StepSolver)
        problems = ctx.problems(ctx.batch_size * min(self.options.label_budget, self.group_size))
        written = [write_labelled(solver, problem) for problem in problems]
        if None in written:
            ctx.dropped["generator: steps hold marks of the dialect"] += written.count(None)
        return Rollouts(solution for solution in written if solution is not None)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Labels of a file come again with its problems, and are not kept for replay."""
        if not self.uses_labelled_file(ctx.task):
            return super().credit(ctx, rollouts)
        labelled = [self.label_solution(solution) for solution in rollouts]
        return [self.make_value_batch(ctx, labelled, labelled)] if labelled else []

    @property
    def default_aggregate(self) -> Aggregate:
        return "product" if self.options.labels == "process" else "last"

    def label(self, ctx: Context, solutions: Rollouts) -> list[Labelled]:
        return [self.label_solution(solution) for solution in self.select_solutions(ctx, solutions)]

    def select_solutions(self, ctx: Context, solutions: Rollouts) -> Rollouts:
        """Select the solutions to label: convincing wrong ones and uniform others. All of them where the budget suffices."""
        if self.options.label_budget >= self.group_size:
            return solutions
        scores = [0.0] * len(solutions)
        if self.options.convincing_fraction:
            found = {check.target.id: check.verification.rank for check in ctx.judge("verifier", solutions)}
            scores = [found.get(solution.id, 0.0) for solution in solutions]
        rng = ctx.rng("uniform")
        budget, share = self.options.label_budget, self.options.convincing_fraction
        rows = select_convincing_wrong(scores, solutions.correct, solutions.problem_ids, budget, share, rng)
        return Rollouts(solutions[row] for row in rows)

    def label_solution(self, solution: Rollout) -> Labelled:
        """Label a solution by its outcome, or by the truth of each step."""
        if self.options.labels == "outcome":
            return Labelled(solution, end=solution.correct)
        return Labelled(solution, exact_labels(solution, self.options.stop_at_error))

    def sources(self) -> dict[str, float]:
        return {"steps": 1.0} if self.options.labels == "process" else {"answers": 1.0}
