"""Tango with a third learner: a proposer chooses the difficulty of the problems, and is rewarded for their learnability.

It is compared with an even mix of all levels and with a hand-made schedule from easy to hard, on the same held-out problems.
The README in this folder is the specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pydantic import Field

from milonga.context import Context
from milonga.credit import outcome_advantages
from milonga.credit.difficulty import learnability, normalised_entropy, scheduled_level
from milonga.errors import ConfigError
from milonga.evals.metrics import mean
from milonga.patterns.imitation import make_imitation_batch
from milonga.recipe import Refused
from milonga.roles import StepSolver, StepVerifier
from milonga.schedule import Schedule, warm_up
from milonga.systems.curriculum.roles import Choice, Chooser, make_level_problem
from milonga.systems.tango.recipe import Tango, TangoOptions
from milonga.tasks.base import LEVELS, Task
from milonga.types import Problem, Rollouts, TrainBatch

FIFTHS = 5
"""Levels of pass rates."""
EXAMPLES = 64
"""Demonstrated choices in a turn of imitation. They are a few tokens each."""


class CurriculumOptions(TangoOptions):
    choose: Literal["learned", "fixed", "easy_to_hard"] = "learned"
    """How levels are chosen: by the proposer; uniformly at random; or by a hand-made schedule from easy to hard, with an equal
    share of the run for each level."""
    levels: Literal["task", "pass_rate"] = "task"
    """What a level is: that of the task, or a fifth of the pass rates that `task.pass_rate` measures, the easiest first."""
    formats: int = Field(0, ge=0)
    """Turns in which the proposer imitates uniform choices in its format, before anything else."""
    explore: float = Field(0.1, ge=0, lt=1)
    """Share of the problems whose level is drawn uniformly, whatever the proposer says."""
    memory: float = Field(0.8, ge=0, lt=1)
    """Decay of the rates of success that the proposer sees."""


class Curriculum(Tango):
    """A proposer, rewarded for problems that are sometimes solved, chooses the difficulty for Tango."""

    name = "curriculum"
    agents = {"generator": StepSolver, "verifier": StepVerifier, "proposer": Chooser}
    published = {}
    overlap = Refused("its proposer chooses problems by what was just solved")
    Options = CurriculumOptions
    options: CurriculumOptions
    embedded_defaults = {"policies": {"proposer": {"lr": 5e-4}}, "options": {"formats": 12}}
    measures = ("chosen_level", "chosen_spread", "readable_choices", "hardest_accuracy", "easiest_accuracy")

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        for agent, objective in self.objectives.items():
            if objective.filter.dynamic_sampling:
                raise ConfigError(
                    f"'{self.name}' lets its proposer choose the problems; "
                    f"set policies.{agent}.objective.dynamic_sampling=false"
                )

    def check(self, task: Task) -> None:
        by_rate = self.options.levels == "pass_rate"
        if not by_rate and LEVELS not in task.offers:
            measured = "options.levels=pass_rate and task.pass_rate=[0,1] measure some"
            raise ConfigError(f"recipe '{self.name}' {LEVELS.missing.format(task=task.name)}; {measured}")
        if by_rate and task.pass_rate is None:
            raise ConfigError("options.levels=pass_rate: nothing measures the pass rates; set task.pass_rate=[0,1]")
        if task.pass_rate is not None and not by_rate:
            raise ConfigError(
                f"task.pass_rate: '{self.name}' chooses among all problems of a level; leave it out, or choose by it: "
                "options.levels=pass_rate"
            )

    def schedule(self) -> Schedule:
        return warm_up("proposer", self.options.formats if self.options.choose == "learned" else 0) + super().schedule()

    def rollout(self, ctx: Context) -> Rollouts:
        """Sample choices of levels, then Tango's rollouts on problems of these levels."""
        if ctx.learner == "proposer":
            return self.write_even_choices(ctx)
        choices = self.sample_choices(ctx)
        problems = self.draw_problems(ctx, choices)
        each, checks = (self.group_size, 1) if ctx.learner == "generator" else (1, self.group_size)
        solutions = ctx.ask("generator", problems, each)
        return Rollouts([*choices, *solutions, *ctx.ask("verifier", solutions, checks)])

    def write_even_choices(self, ctx: Context) -> Rollouts:
        """Write demonstrations of a teacher that chooses levels uniformly, with random solve rates in the prompt."""
        levels, rng = self.list_levels(ctx.task), ctx.rng("even")
        role = ctx.role("proposer")
        assert isinstance(role, Chooser)
        prompts, texts = [], []
        for number in range(EXAMPLES):
            rates = {str(level): rng.random() for level in levels if rng.random() < 0.8}
            prompts.append(make_level_problem(levels, rates, f"rates/{number}"))
            texts.append(role.write(rng.choice(levels)))
        return ctx.write("proposer", prompts, texts)

    def sample_choices(self, ctx: Context) -> Rollouts:
        """Sample one choice for each problem, except those with a uniform level. None where levels are not learned."""
        if self.options.choose != "learned":
            return Rollouts([])
        state = make_level_problem(self.list_levels(ctx.task), self.state.get("rates", {}), "rates")
        return ctx.ask("proposer", [state], ctx.batch_size - round(self.options.explore * ctx.batch_size))

    def draw_problems(self, ctx: Context, choices: Rollouts) -> list[Problem]:
        """Draw the turn's problems. Those that the proposer chose have the id of its choice as `source`. The level of the
        others is uniform, or follows the hand-made schedule."""
        levels, rng = self.list_levels(ctx.task), ctx.rng("mix")
        named: list[tuple[int, str | None]] = []
        for choice in choices:
            level = choice.parsed.get(Choice).level
            named.append((level, choice.id) if level is not None and level in levels else (rng.choice(levels), None))
        while len(named) < ctx.batch_size:
            hand = self.options.choose == "easy_to_hard"
            named.append((scheduled_level(levels, ctx.progress) if hand else rng.choice(levels), None))
        drawn = self.draw_at(ctx, [level for level, _ in named])
        return [
            replace(problem, data={**problem.data, "level": level}, source=source)
            for problem, (level, source) in zip(drawn, named, strict=True)
        ]

    def list_levels(self, task: Task) -> tuple[int, ...]:
        """List the levels to choose among, the easiest first."""
        return task.levels if self.options.levels == "task" else tuple(sorted(group_by_rate(task.kept or {})))

    def draw_at(self, ctx: Context, levels: list[int]) -> list[Problem]:
        """Draw the next train problems, one at each of these levels."""
        if self.options.levels == "task":
            return ctx.draw_problems_at(levels)
        groups = group_by_rate(ctx.task.kept or {})
        places = [
            groups[level][index % len(groups[level])]
            for level, index in zip(levels, ctx.take_indices(len(levels)), strict=True)
        ]
        return [ctx.task.problem(ctx.split, place) for place in places]

    def credit(self, ctx: Context, rollouts: Rollouts) -> list[TrainBatch]:
        if ctx.learner == "proposer":
            return [make_imitation_batch(self, "proposer", rollouts)]
        train_batches = super().credit(ctx, rollouts)
        choices = rollouts.of("proposer")
        if ctx.learner == "generator":
            solutions = rollouts.of("generator")
            self.update_solve_rates(solutions)
            if len(choices) > 1:  # a single choice has no baseline
                train_batches.append(self.credit_proposer(ctx, choices, solutions))
        return train_batches

    def update_solve_rates(self, solutions: Rollouts) -> None:
        """Update the running solve rate of each level, which the proposer's prompt shows."""
        rates, keep = dict(self.state.get("rates", {})), self.options.memory
        found: dict[str, list[float]] = {}
        for rollout in solutions:
            found.setdefault(str(rollout.problem.data["level"]), []).append(rollout.correct)
        for level, correct in found.items():
            rate = mean(correct)
            if rate is not None:
                rates[level] = keep * rates.get(level, rate) + (1 - keep) * rate
        self.state["rates"] = rates

    def credit_proposer(self, ctx: Context, choices: Rollouts, solutions: Rollouts) -> TrainBatch:
        """Make the proposer's train batch: r = 4 p (1 - p) with the solve rate p of the chosen problem; 0 without a level."""
        right: dict[str | None, list[float]] = {}
        for rollout in solutions:
            right.setdefault(rollout.problem.source, []).append(rollout.correct)
        rates = [mean(right[choice.id]) if choice.id in right else 0.0 for choice in choices]
        rewards = np.array([float("nan") if rate is None else learnability(rate) for rate in rates])
        estimator = self.objectives["proposer"].estimator
        credit = outcome_advantages(
            rewards, choices, choices.problem_ids, estimator, ctx.compute_kl_penalties(choices, estimator)
        )
        chosen = [choice.parsed.get(Choice).level for choice in choices if choice.id in right]
        notes = {
            "learnability": mean(rewards) or 0.0,
            "level": mean([float(level) for level in chosen if level is not None]) or 0.0,
        }
        return self.train_batch("proposer", choices, advantages=credit, sources={"generator": 1.0}, notes=notes)

    def measure(self, ctx: Context) -> dict[str, float | None]:
        """Measure what the proposer would choose now, and the accuracy on the easiest and the hardest level of held-out
        problems, which have no pass rates."""
        levels = self.list_levels(ctx.task)
        choices = self.sample_choices(ctx)
        named = [level for choice in choices if (level := choice.parsed.get(Choice).level) is not None and level in levels]
        solved = self.solve_extremes(ctx) if self.options.levels == "task" else {}
        return {
            "chosen_level": mean([float(level) for level in named]),
            "chosen_spread": normalised_entropy(named, len(levels)),
            "readable_choices": len(named) / len(choices) if choices else None,
        } | {f"{name}_accuracy": mean(solutions.correct) for name, solutions in solved.items()}

    def solve_extremes(self, ctx: Context) -> dict[str, Rollouts]:
        """Sample solutions of held-out problems of the hardest and the easiest level that the split has."""
        sizes = {level: ctx.task.at_level(level).size(ctx.split) for level in ctx.task.levels}
        there = [level for level, size in sizes.items() if size != 0]
        counts = {level: ctx.batch_size if sizes[level] is None else min(ctx.batch_size, sizes[level] or 0) for level in there}
        ends = (("hardest", there[-1]), ("easiest", there[0])) if there else ()
        return {name: ctx.ask("generator", ctx.draw_problems_at([level] * counts[level]), 2) for name, level in ends}


def group_by_rate(rates: Mapping[int, float]) -> dict[int, list[int]]:
    """Group problems (index to pass rate) by level: 1 from four fifths on, 5 below one fifth."""
    groups: dict[int, list[int]] = {}
    for index, rate in rates.items():
        groups.setdefault(FIFTHS - min(FIFTHS - 1, int(FIFTHS * rate)), []).append(index)
    return groups
