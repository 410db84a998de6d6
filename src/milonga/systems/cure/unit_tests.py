"""Programs and unit tests of one task, run against each other: the pass matrix, and the results of the hidden tests.

Hidden tests and written ones run in processes of their own, and a call that goes beyond a limit takes no other with it: what a
tester writes never changes what a program earns. A program that the sandbox could not run is missing, neither right nor wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from milonga.context import Context
from milonga.evals.metrics import mean
from milonga.systems.cure.credit import Booleans
from milonga.systems.cure.roles import UnitTest
from milonga.tasks.code import get_code_task
from milonga.types import Floats, Problem, Rollout, Rollouts

Passed = tuple[bool, ...] | None
"""Which tests a program passes; None if the sandbox could not tell."""


@dataclass(frozen=True)
class Bench:
    """One task: its programs, its tests, and the pass matrix."""

    programs: list[Rollout]
    tests: list[Rollout]
    passes: Booleans
    """Shape (programs, tests); a column stays where a test could not be parsed, and no program passes it."""
    shares: Floats
    """The share of the hidden tests that each program passes; NaN where the sandbox could not tell. Shape (programs,)."""
    known: Booleans
    """Mask over programs: False where the sandbox could not tell about one of the tests, hidden or written."""
    valid: Booleans | None = None
    """Whether the reference program passes each test; None where there is no reference."""

    @property
    def labelled(self) -> tuple[Booleans, Booleans]:
        """The pass matrix of the programs that are not missing, and whether all hidden tests pass for each of them."""
        return self.passes[self.known], np.asarray(self.shares[self.known] == 1.0)

    @property
    def readable_mask(self) -> Booleans:
        """Mask over tests: True where the test could be parsed."""
        return np.array([test.parsed.is_valid for test in self.tests], dtype=bool)


def sample_tests(ctx: Context, problems: Sequence[Problem], count: int, share: float) -> Rollouts:
    """Sample `count` tests of each problem, a share of which has a public example. What is no test of its problem (a call of
    another function, say) is invalid."""
    tests = ctx.ask("tester", add_public_examples(ctx, problems, share), count)
    for test in tests:
        if test.parsed.is_valid and not test.parsed.get(UnitTest).fits(test.problem):
            test.parsed = replace(test.parsed, invalid="not a test of this task")
    return tests


def add_public_examples(ctx: Context, problems: Sequence[Problem], share: float) -> list[Problem]:
    """Return the tester's problems: a random share of them gets one public example, where there is one."""
    opening = "" if get_code_task(ctx.task).tiny else "For example: "
    out = []
    for problem in problems:
        example = problem.data["public"] if ctx.rng("public", problem.id).random() < share else ""
        out.append(replace(problem, text=f"{problem.text}\n{opening}{example}") if example else problem)
    return out


def run_benches(ctx: Context, rollouts: Rollouts, reference: bool = False) -> list[Bench]:
    """Run the programs and tests of each task: all programs of a turn on all hidden and all written tests, in one batch."""
    groups: dict[str, tuple[list[Rollout], list[Rollout]]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout.problem.id, ([], []))[rollout.agent == "tester"].append(rollout)
    groups = {id: pair for id, pair in groups.items() if pair[0]}
    items: list[tuple[Problem, str | None]] = []
    for programs, tests in groups.values():
        problem = programs[0].problem
        written = make_written_problem(problem, tests)
        items += [(asked, program.solution.answer) for asked in (problem, written) for program in programs]
        items += [(written, problem.answer)] if reference else []
    results = iter(get_code_task(ctx.task).run_hidden_tests(items, apart=True))
    benches = []
    for programs, tests in groups.values():
        hidden, ran = ([next(results) for _ in programs] for _ in range(2))
        benches.append(build_bench(programs, tests, hidden, ran, next(results) if reference else None))
    if missing := sum(int((~bench.known).sum()) for bench in benches):
        ctx.dropped["generator: the sandbox could not tell"] += missing
    return benches


def make_written_problem(problem: Problem, tests: Sequence[Rollout]) -> Problem:
    """Make the problem whose hidden tests are the written ones, in their order."""
    found = [test.parsed.get(UnitTest) for test in tests if test.parsed.is_valid]
    written: dict[str, Any]
    if problem.data.get("printed"):
        written = {"printed": [(test.stdin, test.printed) for test in found]}
    else:
        written = {"inputs": [test.arguments for test in found], "outputs": [test.expected for test in found], "checks": ()}
    return replace(problem, data={**problem.data, **written})


def build_bench(
    programs: list[Rollout], tests: list[Rollout], hidden: Sequence[Passed], written: Sequence[Passed], reference: Passed
) -> Bench:
    """Build the pass matrix of one task from what its programs, and the reference program, pass."""
    readable = [column for column, test in enumerate(tests) if test.parsed.is_valid]

    def columns(passed: Passed) -> Booleans:
        """With a column for each test, whether it could be read or not."""
        out = np.zeros(len(tests), dtype=bool)
        out[readable] = False if passed is None else passed
        return out

    passes = np.array([columns(passed) for passed in written])
    shares = np.array([float("nan") if passed is None else float(np.mean(passed)) for passed in hidden])
    known = np.array([None not in pair for pair in zip(hidden, written, strict=True)])
    is_there = reference is not None and bool(programs[0].problem.answer)
    return Bench(programs, tests, passes, shares, known, columns(reference) if is_there else None)


def score_best_program(bench: Bench) -> float:
    """Return 1.0 if the program that passes most of the written tests is right, else 0.0; the first on a tie. NaN where all are
    missing."""
    passes, right = bench.labelled
    return float(right[int(passes.sum(axis=1).argmax())]) if len(right) else float("nan")


def label_noise(ctx: Context, found: Sequence[Bench], more: int = 32) -> float | None:
    """Return the share of the programs labelled right by the hidden tests that differ from the reference on further calls; None
    where the task cannot make any. What the sandbox could not run differs from nothing."""
    task, items = get_code_task(ctx.task), []
    for one in found:
        problem = one.programs[0].problem
        for program in [t for t, share in zip(one.programs, one.shares, strict=True) if share == 1.0] if problem.answer else []:
            calls = task.draw_extra_calls(problem, more)
            items += [(problem, str(program.solution.answer), calls), (problem, problem.answer, calls)] if calls else []
    results = task.run_programs(items, apart=True)
    pairs = [pair for pair in zip(results[::2], results[1::2], strict=True) if None not in pair]
    return mean([float(one != other) for one, other in pairs])
