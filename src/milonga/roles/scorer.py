"""Judges that generate no text: they score each token of a solution as the solver wrote it.

`StepScorer` has a value head; `ImplicitScorer` is a language model whose log-ratio to its initial weights is the score. Both
see the solution after the solver's prompt, in their own tokens: verdicts map to steps by index.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Literal

from milonga.roles.base import ROLES, Dialect, JudgeContext, Role
from milonga.roles.solver import StepSolver
from milonga.types import Floats, Parsed, Problem, Prompt, Rollout, Rollouts, Verification

RankBy = Literal["logratio", "loglik", "mean_loglik"]
"""What an implicit scorer orders solutions by: its log-ratio, how likely it finds them, or the same for each token."""
Aggregate = Literal["product", "min", "geometric", "last_step", "last"]


class Scorer(Role):
    """A judge that scores a solution in one forward pass and is never sampled."""

    judges = True

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.solver = StepSolver(dialect)

    def _make_solver(self) -> StepSolver:
        """Make the solver that is asked and read as this role is: with or without an example, by the same steps."""
        solver = copy(self.solver)
        solver.example, solver.thought_steps = self.example, self.thought_steps
        return solver

    @property
    def stop(self) -> tuple[str, ...]:
        """Those of the solver: a solution that one of them ended is scored as it was sampled."""
        return self._make_solver().stop

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        return self._make_solver().prompt(problem)

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        """Parse the solution; scores are looked up where its steps end. Those of a given solution end where it says so."""
        if target is not None and target.origin == "given" and target.text == text and target.parsed.ends:
            return target.parsed
        return self._make_solver().parse(text)

    def judge(self, ctx: JudgeContext, agent: str, solutions: Rollouts, n: int, greedy: bool, tag: str) -> Rollouts:
        """Score each solution once: a scorer is deterministic, whatever `n` says."""
        written = ctx.write(agent, solutions, [solution.text for solution in solutions])
        if self.kind == "implicit":
            live = ctx.compute_logprobs(agent, written, tag)
            numbers = ctx.compute_log_ratios(agent, written, live)
            written = Rollouts(replace(t, logprobs=found) for t, found in zip(written, live, strict=True))
        else:
            numbers = ctx.score_tokens(agent, written, tag)
        return Rollouts(replace(t, parsed=self.make_verdict(t, found)) for t, found in zip(written, numbers, strict=True))

    @abstractmethod
    def make_verdict(self, written: Rollout, numbers: Floats) -> Parsed:
        """Turn per-token numbers into a verification. numbers: float array, one per token of the solution (`written`)."""


@ROLES.register("scorer")
class StepScorer(Scorer):
    """A value head: how likely the step that ends here, or the solution, is right.

    `aggregate` makes one score of a solution out of those of its steps; `last` looks at the end of the solution alone, as an
    outcome model does. The product favours short solutions, the minimum is decided by one outlier, and the last step's
    score is the whole only where scores are values of prefixes.
    """

    name = "scorer"
    kind = "scalar"

    def __init__(self, dialect: Dialect, aggregate: Aggregate = "product") -> None:
        super().__init__(dialect)
        self.aggregate = aggregate

    def make_verdict(self, written: Rollout, numbers: Floats) -> Parsed:
        steps = [sigmoid(float(numbers[end - 1])) for _, end in written.steps]
        whole = aggregate_scores(steps, sigmoid(float(numbers[-1])), self.aggregate)
        return _make_verification(steps, whole, written)


@dataclass(frozen=True)
class Likelihood(Verification):
    """A verification whose verdicts come from a log-ratio, while solutions are ordered by how likely they are."""

    surprise: float = 0.0
    """-log of that likelihood."""

    @property
    def rank(self) -> float:
        """Higher for what is likelier, and never 0, however long a solution is."""
        return 1 / (1 + self.surprise)


@ROLES.register("implicit_scorer")
class ImplicitScorer(Scorer):
    """beta * log(pi / ref), summed over the tokens of a step or of the whole solution, as the logit of being right.

    Solutions are ordered by that, or by their likelihood itself, which favours short ones.
    """

    name = "implicit_scorer"
    kind = "implicit"

    def __init__(self, dialect: Dialect, beta: float = 0.05, rank: RankBy = "logratio") -> None:
        super().__init__(dialect)
        self.beta, self.rank = beta, rank

    def make_verdict(self, written: Rollout, numbers: Floats) -> Parsed:
        rewards = self.beta * numbers
        steps = [sigmoid(float(rewards[start:end].sum())) for start, end in written.steps]
        found = _make_verification(steps, sigmoid(float(rewards.sum())), written)
        if self.rank == "logratio":
            return found
        surprise = -float(written.logprobs.sum()) / (written.length if self.rank == "mean_loglik" else 1)
        return replace(found, value=Likelihood(**vars(found.value), surprise=surprise))


def _make_verification(steps: Sequence[float], whole: float, written: Rollout) -> Parsed:
    """Make a verification from step scores and a solution score; a score of at least 0.5 is judged right."""
    readable = bool(steps) and len(steps) == len(written.solution.steps)
    said = tuple(score >= 0.5 for score in steps) if readable else None
    value = Verification(said, whole >= 0.5, score=whole, step_scores=tuple(steps) if readable else None)
    return Parsed(value, 1.0, None if readable else "the steps of the solution cannot be told apart")


def aggregate_scores(steps: Sequence[float], last: float, how: Aggregate) -> float:
    if how == "last" or not steps:
        return last
    if how == "last_step":
        return steps[-1]
    if how == "min":
        return min(steps)
    product = math.prod(steps)
    return product if how == "product" else product ** (1 / len(steps))


def sigmoid(value: float) -> float:
    """The logistic function, without overflow for logits of any size."""
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))
