"""Shared base of recipes that train a step verifier with a value head: they differ only in where the step labels come from.

A frozen generator solves the turn's problems; the recipe labels the solutions; the verifier encodes them in its own tokens, and
its head learns the labels at the ends of the steps. Labelled solutions are kept for replay in later turns.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import label_agreement, mask_after_error, outcome_targets, step_targets
from milonga.recipe import ALLOWED, Recipe, RecipeOptions, Refused
from milonga.roles import Dialect, Role, StepScorer, StepSolver
from milonga.roles.scorer import Aggregate
from milonga.schedule import Schedule, always
from milonga.types import Problem, Rollout, Rollouts, TrainBatch

NAN = float("nan")
PROMPTED = ("form", "reply")
"""What a solver's prompt depends on in a problem's data."""


def pick_prompt_data(source: Mapping[str, Any]) -> dict[str, Any]:
    """Pick what a prompt depends on out of a problem's data, or of the row that was kept of it; mostly there is nothing."""
    return {key: source[key] for key in PROMPTED if key in source}


@dataclass(frozen=True)
class Labelled:
    """A solution with the head's target at the end of each step, or at the end of the solution; NaN where there is no label."""

    solution: Rollout
    steps: Sequence[float] = ()
    end: float = NAN

    def to_json(self) -> dict[str, Any]:
        problem, finish = self.solution.problem, self.solution.finish
        known = [None if math.isnan(x) else x for x in (*self.steps, self.end)]
        asked = {"problem": problem.id, "text": problem.text, **pick_prompt_data(problem.data)}
        return {**asked, "solution": self.solution.text, "finish": finish, "labels": known}

    @classmethod
    def from_json(cls, kept: dict[str, Any], solver: StepSolver, number: int) -> Labelled:
        *steps, end = [NAN if x is None else float(x) for x in kept["labels"]]
        problem = Problem(kept["problem"], kept["text"], "", pick_prompt_data(kept))
        again = Rollout.from_text(f"again/{number}", "generator", problem, kept["solution"], solver.parse(kept["solution"]))
        return cls(replace(again, finish=kept["finish"]), steps, end)


class ScoringOptions(RecipeOptions):
    aggregate: Literal["auto"] | Aggregate = "auto"
    """How a solution's score follows from those of its steps; auto: what fits the labels."""
    replay: float = Field(1.0, ge=0)
    """Solutions of earlier turns that are learned from again, for each one that is labelled now."""
    memory: int = Field(2000, ge=0)
    """Labelled solutions that are kept, the newest."""


class Scoring(Recipe):
    """Base class: a subclass says how it labels solutions."""

    granularity = "step"
    agents: ClassVar[dict[str, type[Role]]] = {"generator": StepSolver, "verifier": StepScorer}
    lead = "verifier"
    overlap = Refused("its verifier has a value head, and learns from labels that are kept from turn to turn")
    bindings = {
        "own": ALLOWED,
        "lora": ALLOWED,
        "shared": Refused("the generator stays as it is while the verifier learns, so they cannot be the same weights"),
    }
    learns = {"verifier": ("value_bce", "value_mse")}
    defaults = {"policies": {"verifier": {"objective": {"preset": "value_bce"}, "lr": 1e-5, "minibatches": 4}}}
    embedded_defaults = {"policies": {"verifier": {"lr": 3e-4}}}
    Options = ScoringOptions
    options: Any

    @property
    @abstractmethod
    def default_aggregate(self) -> Aggregate:
        """The aggregation of step scores that fits the labels: the last score for values, a product or minimum for
        correctness."""

    @abstractmethod
    def label(self, ctx: Context, solutions: Rollouts) -> list[Labelled]: ...

    @abstractmethod
    def sources(self) -> dict[str, float]:
        """Where the labels come from."""

    def roles(self, dialect: Dialect) -> dict[str, Role]:
        how = self.default_aggregate if self.options.aggregate == "auto" else self.options.aggregate
        return super().roles(dialect) | {"verifier": StepScorer(dialect, how)}

    def schedule(self) -> Schedule:
        return always("verifier")

    def rollout(self, ctx: Context) -> Rollouts:
        return ctx.ask("generator", ctx.problems(), self.group_size)

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        """Return a train batch of the newly labelled solutions and some replayed ones; none where nothing was labelled."""
        labelled = self.label(ctx, rollouts)
        if not labelled:
            return []
        everything = [*labelled, *self.sample_replay(ctx, len(labelled))]
        self.add_to_replay(labelled)
        return [self.make_value_batch(ctx, everything, labelled)]

    def make_value_batch(self, ctx: Context, labelled: Sequence[Labelled], new: Sequence[Labelled]) -> TrainBatch:
        """Make the verifier's train batch of labelled solutions; its notes are about the new ones."""
        rows, targets = build_value_rows(ctx, labelled)
        notes = _compute_label_metrics(new)
        return self.train_batch("verifier", rows, targets=targets, sources=self.sources(), notes=notes)

    def add_to_replay(self, labelled: list[Labelled]) -> None:
        """Add labelled solutions to the replay memory; the newest are kept."""
        kept = [*self.state.get("labelled", []), *(one.to_json() for one in labelled)]
        self.state["labelled"] = kept[max(0, len(kept) - self.options.memory) :]

    def sample_replay(self, ctx: Context, count: int) -> list[Labelled]:
        """Sample labelled solutions of earlier turns."""
        kept, solver = self.state.get("labelled", []), ctx.role("generator")
        assert isinstance(solver, StepSolver)
        rng = ctx.rng("recall")
        chosen = rng.sample(range(len(kept)), min(len(kept), round(self.options.replay * count)))
        return [Labelled.from_json(kept[i], solver, i) for i in sorted(chosen)]


def exact_labels(solution: Rollout, stop_at_error: bool = True) -> list[float]:
    """Return the truth of each step, where the task knows it; steps after the first error have no label unless `stop_at_error`
    is False."""
    truth = solution.grade.steps if solution.grade else None
    labels = [float(right) for right in truth or ()]
    return mask_after_error(labels) if stop_at_error else labels


def estimate_step_values(ctx: Context, solutions: Rollouts, n: int) -> list[list[float]]:
    """Estimate the value of each step of each solution: the share of n completions from it that arrive at the right answer.

    The last step needs none: its value is the correctness of the solution's own answer. Unknown grades (NaN) are left out.
    """
    prefixes = [(solution, k) for solution in solutions for k in range(1, len(solution.steps))]
    arrived = ctx.complete("generator", prefixes, n).correct.reshape(len(prefixes), n)
    known = (~np.isnan(arrived)).sum(1)
    rates = iter(np.where(known > 0, np.nansum(arrived, 1) / np.maximum(known, 1), np.nan))
    return [[*(float(next(rates)) for _ in t.steps[1:]), *([t.correct] if t.steps else [])] for t in solutions]


def build_value_rows(ctx: Context, labelled: Sequence[Labelled]) -> tuple[Rollouts, list[np.ndarray]]:
    """Return the labelled solutions as rows in the verifier's tokens, and the targets of its head. Labels map to steps by
    index.

    Targets: one float array per row, aligned with its ids; NaN where there is no target.
    """
    found = {one.solution.id: one for one in labelled}
    rows = ctx.write("verifier", [one.solution for one in labelled], [one.solution.text for one in labelled])
    of_steps = step_targets([found[row.target.id].steps for row in rows], rows)
    of_ends = outcome_targets([found[row.target.id].end for row in rows], rows)
    return rows, [np.where(np.isnan(end), steps, end) for steps, end in zip(of_steps, of_ends, strict=True)]


def _compute_label_metrics(labelled: Sequence[Labelled]) -> dict[str, float]:
    """Return metrics of the labels: how many there are, the share that is right, and their agreement with the truth of the
    steps where it is known."""
    pairs = [(one.steps, None if one.solution.grade is None else one.solution.grade.steps) for one in labelled]
    values = np.array([x for one in labelled for x in (*one.steps, one.end) if not math.isnan(x)])
    notes = {"solutions": float(len(labelled)), "labels": float(len(values))}
    if len(values):
        notes["labels_right"] = float(np.mean(values >= 0.5))
    agreement = label_agreement(pairs)
    return notes if agreement is None else notes | {"label_agreement": agreement}
