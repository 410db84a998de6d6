"""A bootstrap imitates what can be read, right and wrong in equal numbers, before the turns of the run."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import milonga
from cases import TINY
from milonga.patterns.bootstrap import BOOTSTRAP, select_solutions, select_verifications
from milonga.resolve import resolve
from milonga.runfolder.files import JsonLines
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Solution, Verification


def make_solution(id: str, problem: str, correct: bool | None, form: float = 1.0) -> Rollout:
    parsed = Parsed(Solution(("s",), (1,), "1"), form)
    return Rollout.from_text(id, "generator", Problem(problem, problem, "1"), "x", parsed, Grade(correct))


def make_check(solution: Rollout, final: bool, number: int = 0) -> Rollout:
    parsed = Parsed(Verification((final,), final, (1,)), 1.0)
    check = Rollout.from_text(f"{solution.id}/{number}", "verifier", solution.problem, "x", parsed)
    check.targets = (solution,)
    return check


def test_of_each_problem_the_best_formed_and_then_the_right_solutions_are_kept() -> None:
    rows = [
        make_solution("a", "p", False),
        make_solution("b", "p", True, form=0.5),
        make_solution("c", "p", True),
        make_solution("d", "p", False),
        make_solution("e", "q", None),
    ]
    assert [rollout.id for rollout in select_solutions(Rollouts(rows))] == ["c", "a", "e"]


def test_verdicts_that_agree_with_the_truth_are_kept_in_equal_numbers() -> None:
    right, wrong = [make_solution(f"r{n}", "p", True) for n in range(4)], make_solution("w", "p", False)
    checks = [make_check(solution, True) for solution in right] + [make_check(wrong, True), make_check(wrong, False, 1)]
    kept = select_verifications(Rollouts(checks))
    assert [(check.target.id, check.verification.final) for check in kept] == [("r0", True), ("w", False)]


def test_of_one_solution_only_a_few_verdicts_are_kept() -> None:
    right, wrong = make_solution("r", "p", True), make_solution("w", "p", False)
    checks = [make_check(right, True, n) for n in range(5)] + [make_check(wrong, False, n) for n in range(5)]
    assert [check.id for check in select_verifications(Rollouts(checks))] == ["r/0", "w/0", "r/1", "w/1"]


def test_where_no_truth_is_known_verdicts_are_balanced() -> None:
    unknown = [make_solution(f"u{n}", "p", None) for n in range(3)]
    checks = [make_check(unknown[0], True), make_check(unknown[1], True), make_check(unknown[2], False)]
    assert [check.verification.final for check in select_verifications(Rollouts(checks))] == [True, False]


def test_verdicts_that_are_known_to_be_false_are_never_imitated() -> None:
    right = [make_solution(f"r{n}", "p", True) for n in range(2)]
    assert not select_verifications(Rollouts([make_check(right[0], True), make_check(right[1], False)]))
    assert not select_verifications(Rollouts([make_check(right[0], True), make_check(right[1], True)]))


@pytest.mark.parametrize(
    ("recipe", "agents"), [("tango", ["generator", "verifier"]), ("frozen", ["generator"]), ("verifier_only", ["verifier"])]
)
def test_only_agents_that_learn_are_bootstrapped(recipe: str, agents: list[str]) -> None:
    plan = resolve([{"recipe": recipe, "bootstrap": 1}])
    assert [phase.learner for phase in plan.schedule.intro if phase.name == BOOTSTRAP] == agents


def test_its_turns_come_first_and_do_not_count(tmp_path: Path) -> None:
    settings = {**TINY, "bootstrap": 2, "options": {"warmup": 0, "n_generator": 1}}
    plan = resolve([{"recipe": "tango", "turns": 1, **settings}])
    assert [(phase.learner, phase.turns, phase.counts) for phase in plan.schedule.intro] == [
        ("generator", 2, False),
        ("verifier", 2, False),
    ]
    report = milonga.run("tango", turns=1, out=tmp_path / "run", settings=settings, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()
    assert [row["learner"] for row in rows] == [None, "generator", "generator", "verifier", "verifier", "generator"]
    assert [row["lead_turn"] for row in rows[1:]] == [0, 0, 0, 0, 1]
    assert report["lead_turns"] == 1
    for row in rows[1:5]:
        learner = row["learner"]
        assert row[f"credit/{learner}/imitated"] > 0 and math.isfinite(row[f"learn/{learner}/loss"])
        assert row[f"flow/demonstrations>{learner}"] == 1.0
