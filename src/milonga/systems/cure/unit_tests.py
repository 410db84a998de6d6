"""Programs and unit tests of one task, run against each other: the pass matrix, and the results of the hidden tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.systems.cure.credit import Booleans
from milonga.systems.cure.roles import UnitTest
from milonga.tasks.code import Code, get_code_task
from milonga.types import Floats, Problem, Rollout, Rollouts


@dataclass(frozen=True)
class Bench:
    """One task: its programs, its tests, and the pass matrix. Programs that could not be run are missing."""

    programs: list[Rollout]
    tests: list[Rollout]
    passes: Booleans
    """Shape (programs, tests); a column stays where a test could not be parsed, and no program passes it."""
    shares: Floats
    """The share of the hidden tests that each program passes; NaN where the sandbox could not tell. Shape (programs,)."""
    valid: Booleans | None = None
    """Whether the reference program passes each test; None where there is no reference."""

    @property
    def right_mask(self) -> Booleans:
        """Mask over programs: True where all hidden tests pass."""
        return np.asarray(self.shares == 1.0)

    @property
    def readable_mask(self) -> Booleans:
        """Mask over tests: True where the test could be parsed."""
        return np.array([test.parsed.is_valid for test in self.tests], dtype=bool)


def add_public_examples(ctx: Context, problems: Sequence[Problem], share: float) -> list[Problem]:
    """Return the tester's problems: a random share of them gets one public example."""
    out = []
    for problem in problems:
        has_example = ctx.rng("public", problem.id).random() < share
        out.append(replace(problem, text=f"{problem.text}\n{problem.data['public']}") if has_example else problem)
    return out


def run_benches(ctx: Context, rollouts: Rollouts, reference: bool = False) -> list[Bench]:
    """Run the programs and tests of each task: all programs of a turn on all hidden and all written tests, in one batch."""
    task = get_code_task(ctx.task)
    groups: dict[str, tuple[list[Rollout], list[Rollout]]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.problem.id, ([], []))[rollout.agent == "tester"].append(rollout)
    groups = {id: pair for id, pair in groups.items() if pair[0]}
    items: list[tuple[Problem, str, list[Any]]] = []
    for programs, tests in groups.values():
        problem = programs[0].problem
        calls = [*problem.data["inputs"], *(test.parsed.get(UnitTest).arguments for test in tests if test.parsed.is_valid)]
        items += [(problem, program.solution.answer or "", calls) for program in programs]
        items += [(problem, problem.answer, calls)] if reference else []
    results = iter(task.run_programs(items))
    return [
        build_bench(task, programs, tests, [next(results) for _ in programs], next(results) if reference else None)
        for programs, tests in groups.values()
    ]


def build_bench(task: Code, programs: list[Rollout], tests: list[Rollout], ran: list[Any], reference: Any) -> Bench:
    """Build the pass matrix of one task from the outputs of its programs for all calls."""
    hidden = programs[0].problem.data["outputs"]
    readable = [column for column, test in enumerate(tests) if test.parsed.is_valid]
    wanted = [*hidden, *(tests[column].parsed.get(UnitTest).expected for column in readable)]

    def equal(found: Any) -> Booleans:
        return np.array([task.is_equal(one, other) for one, other in zip(found, wanted, strict=True)], dtype=bool)

    def columns(row: Booleans) -> Booleans:
        """With a column for each test, whether it could be read or not."""
        out = np.zeros(len(tests), dtype=bool)
        out[readable] = row[len(hidden) :]
        return out

    rows = [None if found is None else equal(found) for found in ran]
    passes = [np.zeros(len(tests), dtype=bool) if row is None else columns(row) for row in rows]
    shares = [float("nan") if row is None else float(row[: len(hidden)].mean()) for row in rows]
    known = reference is not None and bool(programs[0].problem.answer)
    return Bench(programs, tests, np.array(passes), np.array(shares), columns(equal(reference)) if known else None)


def score_best_program(bench: Bench) -> float:
    """Return 1.0 if the program that passes most of the written tests is right, else 0.0; the first on a tie."""
    return float(bench.right_mask[int(bench.passes.sum(axis=1).argmax())])


def label_noise(ctx: Context, found: Sequence[Bench], more: int = 32) -> float | None:
    """Return the share of the programs labelled right by the hidden tests that differ from the reference on further calls; None
    where the task cannot make any."""
    task, items = get_code_task(ctx.task), []
    for one in found:
        problem = one.programs[0].problem
        for program in [t for t, right in zip(one.programs, one.right_mask, strict=True) if right] if problem.answer else []:
            calls = task.draw_extra_calls(problem, more)
            items += [(problem, str(program.solution.answer), calls), (problem, problem.answer, calls)] if calls else []
    results = task.run_programs(items)
    return mean([float(one != other) for one, other in zip(results[::2], results[1::2], strict=True)])
