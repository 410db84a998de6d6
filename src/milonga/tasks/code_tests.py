"""Tests of a program that are no calls with values: assertions that run as they are, and programs that read and print.

Every test has a process of its own. What a program must print is compared outside. An assertion that runs as it is stands in
the program's process, where a hostile program could meet it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from milonga.sandbox import Outcome, Program, to_canonical
from milonga.tasks.code_data import CHECK
from milonga.types import Problem

PASSED = (to_canonical(True),)


def plan_programs(problem: Problem, source: str) -> list[Program]:
    """Plan what to run for the tests of a problem that are no calls: a program for each."""
    checks = [Program(f"{source}\n\n{check}", CHECK, ((),)) for check in problem.data.get("checks", ())]
    return checks + [Program(source, stdin=given) for given, _ in problem.data.get("printed", ())]


def judge_outcomes(problem: Problem, outcomes: Sequence[Outcome], tolerance: float | None) -> tuple[bool, ...] | None:
    """Judge the outcomes of these programs, in their order; None if the sandbox could not tell."""
    if any(outcome.status == "sandbox_error" for outcome in outcomes):
        return None
    count = len(problem.data.get("checks", ()))
    passed = [outcome.results == PASSED for outcome in outcomes[:count]]
    wanted = [printed for _, printed in problem.data.get("printed", ())]
    passed += [
        outcome.status == "ok" and is_same_output(outcome.stdout, printed, tolerance)
        for outcome, printed in zip(outcomes[count:], wanted, strict=True)
    ]
    return tuple(passed)


def is_same_output(given: str, wanted: str, tolerance: float | None = None) -> bool:
    """Whether a program printed what it must: the same words in the same lines. With a tolerance, numbers may differ by it,
    relatively."""
    lines, others = ([line.split() for line in text.strip().splitlines()] for text in (given, wanted))
    return [len(line) for line in lines] == [len(line) for line in others] and all(
        _is_same_word(one, other, tolerance)
        for line, wanted_line in zip(lines, others, strict=True)
        for one, other in zip(line, wanted_line, strict=True)
    )


def _is_same_word(one: str, other: str, tolerance: float | None) -> bool:
    if one == other or tolerance is None:
        return one == other
    try:
        return math.isclose(float(one), float(other), rel_tol=tolerance)
    except ValueError:
        return False
