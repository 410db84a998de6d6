"""The base of evaluation suites: one question about a trained pair, answered with confidence intervals.

Add one by subclassing `Suite` and registering it in `SUITES`. Its options are the options of `milonga eval DIR NAME`.

Invariants: a suite opens no weights and writes no file, changes nothing, and draws held-out problems only; the same weights and
options give the same numbers; what could not be read or judged is counted, never left out in silence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from milonga.charts import Series
from milonga.config import EvalSection
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.evals.evaluate import fill_unjudged, judge_metrics
from milonga.evals.metrics import Interval, class_interval, order_interval
from milonga.evals.verdicts import collect_soft_verdicts
from milonga.registry import Registry
from milonga.roles import StepSolver
from milonga.tasks import Task
from milonga.types import Floats, Problem, Rollout, Rollouts, Split

Row = dict[str, Any]
Agent = Literal["solver", "judge"]


class SuiteOptions(BaseModel):
    """Options of a suite. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def ensure_list(value: Any) -> Any:
    """Wrap a single string or path in a list; leave a list as it is."""
    return [value] if isinstance(value, str | Path) else value


class HeldOut(SuiteOptions):
    """Options of suites that measure on held-out problems of a task."""

    split: Literal["dev", "test"] = "test"
    """dev or test."""
    problems: int = Field(EvalSection().problems, ge=1)
    """How many held-out problems."""


@dataclass(frozen=True)
class Subject:
    """What is measured: a run context with weights, and the agents that solve and judge in it."""

    run_context: RunContext
    solver: str
    judge: str
    bare: bool = False
    """Whether it is a model that comes from no run."""
    another: Callable[[str], AbstractContextManager[Subject]] | None = None
    """Opens the generator of another run, or another model, where a suite needs one."""
    list_checkpoints: Callable[[], Mapping[int, Path]] | None = None
    """Lists the intact checkpoints of the run by their turns, where a suite needs others than the newest."""

    def make_context(self, task: Task | None = None, split: Split = "test") -> Context:
        """Make the sampling context. All suites share a random key: with equal sample counts they see the same solutions."""
        run_context = self.run_context if task is None else replace(self.run_context, task=task)
        return Context(run_context, "eval", "", split=split)

    @property
    def is_generative(self) -> bool:
        """Whether the judge is generative and can be sampled repeatedly; a scorer gives the same score every time."""
        return self.run_context.roles[self.judge].kind == "generative"

    def refuse_options(self, options: SuiteOptions, *names: str) -> None:
        """Raise `ConfigError` if one of these options was set but has no effect on a scorer."""
        wrong = next((name for name in names if name in options.model_fields_set), None)
        if wrong is not None and not self.is_generative:
            raise ConfigError(
                f"option '{wrong}' does not apply: this verifier writes nothing, it gives the same numbers each time"
            )

    def verify_all(self, ctx: Context, solutions: Rollouts, checks: int = 1, tag: str = "live") -> Rollouts:
        """Verify solutions: `checks` samples each, or one by a scorer; invalid ones if a solution was too long."""
        n = checks if self.is_generative else 1
        return fill_unjudged(ctx.judge(self.judge, solutions, n, tag=tag), solutions, n)

    def verify_solutions(self, ctx: Context, solutions: Rollouts, checks: int = 1) -> list[list[Rollout]]:
        """Return the verifications of each solution."""
        found: dict[str, list[Rollout]] = {solution.id: [] for solution in solutions}
        for check in self.verify_all(ctx, solutions, checks):
            found[check.target.id].append(check)
        return list(found.values())

    @property
    def is_trained(self) -> bool:
        """Whether the solver's policy was trained: its weights differ from the initial ones."""
        return self.run_context.engine.version(self.run_context.policies[self.solver]) > 0

    def require_step_solver(self) -> None:
        if not isinstance(self.run_context.roles.get(self.solver), StepSolver):
            raise ConfigError("nobody here solves problems by steps: there are no solutions to measure on")


@dataclass(frozen=True)
class Finding:
    """The result of a suite: overall figures (`facts`), and a table (`rows`)."""

    facts: Row
    rows: list[Row]


class Suite(ABC):
    """One evaluation suite. `needs` names the agents whose weights it loads."""

    name: ClassVar[str]
    needs: ClassVar[tuple[Agent, ...]] = ("solver", "judge")
    bare: ClassVar[bool] = False
    """Whether it can measure a model that comes from no run."""
    Options: ClassVar[type[SuiteOptions]] = HeldOut
    columns: ClassVar[Sequence[str]]
    """The columns shown in a terminal; JSON holds all. A column with `_low` and `_high` is shown with its interval."""
    keeps: ClassVar[bool] = False
    """Whether the report stays in the run folder, as NAME.json, where reports and the board find it."""
    percent: ClassVar[bool] = False
    """Whether these are shown in per cent, as in the paper; JSON holds shares."""

    def __init__(self, options: Any = None) -> None:
        self.options = options if options is not None else self.Options()

    @classmethod
    def select_rows(cls, rows: Sequence[Row]) -> Sequence[Row]:
        """Select the rows of the table that a terminal shows, which is narrow."""
        return rows

    @classmethod
    def select_columns(cls, rows: Sequence[Row]) -> Sequence[str]:
        """Select the columns of these rows that it shows."""
        return cls.columns

    def check(self) -> None:
        """Raise what is wrong with the options beyond their types, before any weights are loaded."""
        return None

    @abstractmethod
    def measure(self, subject: Subject) -> Finding: ...

    @abstractmethod
    def chart(self, rows: Sequence[Row]) -> str:
        """Render the rows as an SVG chart."""


SUITES: Registry[type[Suite]] = Registry("suite")


def with_interval(name: str, value: float | None, interval: Interval) -> Row:
    """Return a figure and its 95 % interval as three columns."""
    return {name: value, f"{name}_low": interval[0], f"{name}_high": interval[1]}


def make_series(name: str, rows: Sequence[Row], x: str, y: str) -> Series:
    """Make a chart series of column `y`, with its interval, over column `x`."""
    return Series(name, [r[x] for r in rows], *([r[f"{y}{end}"] for r in rows] for end in ("", "_low", "_high")))


def count_held_out(task: Task, split: Split, count: int) -> int:
    """Count the held-out problems to measure on: `count`, or all there are; none is taken twice."""
    size = task.size(split)
    if size == 0:
        raise ConfigError(
            f"task '{task.name}' has no {split} problems to measure on; give it more of them, or name another by --split"
        )
    return count if size is None else min(count, size)


def group_graded(solutions: Rollouts) -> list[list[Rollout]]:
    """Group samples by problem and keep problems whose grades are all known: a curve over N needs the same problems."""
    groups: dict[str, list[Rollout]] = {}
    for solution in solutions:
        groups.setdefault(solution.problem.id, []).append(solution)
    whole = [group for group in groups.values() if not np.isnan(Rollouts(group).correct).any()]
    if not whole:
        raise ConfigError("the grader could tell of no problem which solutions are right: nothing can be measured")
    return whole


def draw_held_out(subject: Subject, task: Task | None, split: Split, problems: int) -> tuple[Context, list[Problem]]:
    """Draw held-out problems; return the sampling context and the problems."""
    subject.require_step_solver()
    ctx = subject.make_context(task, split)
    return ctx, ctx.problems(count_held_out(ctx.task, split, problems))


def measure_judging(checks: Rollouts) -> Row:
    """Measure the verdicts on some solutions, with intervals over problems."""
    found = judge_metrics(checks)
    known = [check for check in checks if not np.isnan(check.target.correct)]
    right, items = [check.target.correct == 1.0 for check in known], [check.problem.id for check in known]
    hits = [check.verification.final is true for check, true in zip(known, right, strict=True)]
    soft = collect_soft_verdicts(checks)
    ordered = order_interval([s for s, _ in soft], [t.correct == 1.0 for _, t in soft], [t.problem.id for _, t in soft])
    row: Row = {"solutions": len(checks.targets), "right": sum(right), "wrong": len(right) - sum(right)}
    row |= {key: found[key] for key in ("share_right", "positive_rate", "unparsed_rate")}
    row |= with_interval("soft_auroc", found["soft_auroc"], ordered)
    row |= with_interval("balanced_accuracy", found["balanced_accuracy"], class_interval(hits, right, items, _mean_of_two))
    return row | {key: found[key] for key in ("accuracy_on_right", "accuracy_on_wrong")}


def _mean_of_two(a: Floats, b: Floats) -> Floats:
    return (a + b) / 2
