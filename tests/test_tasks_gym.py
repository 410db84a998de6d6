"""Reasoning-gym: any data set by name, the same in every process, graded where hostile answers can do no harm."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milonga.errors import ConfigError, MissingExtra
from milonga.tasks import Task, make_task, normalised
from milonga.tasks.grading import Grader, shared_grader
from milonga.tasks.gym import Gym, gym_task
from milonga.types import SPLITS

pytest.importorskip("reasoning_gym")

EVALUATING = {
    "binary_matrix",
    "bitwise_arithmetic",
    "countdown",
    "intermediate_integration",
    "n_queens",
    "number_sorting",
    "polynomial_multiplication",
    "puzzle24",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
}
"""Data sets of reasoning-gym 0.1.25 whose graders call `eval` or sympy's parser."""


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(limit=1.5) as made:
        yield made


def gym(grader: Grader, dataset: str, **options: Any) -> Task:
    made = gym_task(dataset, grader)
    assert issubclass(made, Gym)
    return made(made.Options(**options), grader)


def test_by_name_with_its_own_options() -> None:
    task = make_task({"name": "reasoning_gym:chain_sum", "size": 20, "config": {"min_terms": 2, "max_terms": 2}})
    assert task.name == "reasoning_gym:chain_sum"
    problems = task.draw("train", 0, 20)
    assert all(p.text.count("+") + p.text.count("-") >= 1 and p.answer for p in problems)
    assert task.problem("train", 23) == problems[3]
    right = [(p, p.answer, ()) for p in problems]
    wrong = [(p, p.answer + "1", ()) for p in problems]
    missing = [(p, None, ()) for p in problems]
    correct = [g.correct for g in task.grade_all(right + wrong + missing)]
    assert correct == [True] * 20 + [False] * 40
    assert task.grade(*right[0]).steps is None
    assert task.max_tokens == 512


def test_splits_are_disjoint_and_what_was_left_out_is_counted(grader: Grader) -> None:
    task = gym(grader, "chain_sum", size=100, config={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2})
    texts = {split: {normalised(p.text) for p in task.draw(split, 0, 100)} for split in SPLITS}
    assert all(not texts[a] & texts[b] for a, b in itertools.combinations(SPLITS, 2))
    described = task.describe()
    assert described["sizes"] == {"train": 100, "dev": 100, "test": 100}
    assert all(described["left_to_other_splits"][split] > 0 for split in SPLITS)


@pytest.mark.parametrize("dataset", ["isomorphic_strings", "ransom_note"])
def test_problems_are_the_same_in_every_process(grader: Grader, dataset: str) -> None:
    """These generators iterate over sets of strings, whose order changes with the hash seed of a process."""
    first = gym(grader, dataset)
    with Grader() as other:
        second = gym(other, dataset)
        # Asked in another order, by another worker.
        assert [second.problem("dev", i) for i in (4, 2, 0)] == [first.problem("dev", i) for i in (4, 2, 0)]
    assert [p.text for p in gym(grader, dataset, seed=1).draw("dev", 0, 3)] != [p.text for p in first.draw("dev", 0, 3)]


def test_partial_credit_is_not_correct_unless_the_threshold_says_so(grader: Grader) -> None:
    strict, lenient = gym(grader, "chain_sum"), gym(grader, "chain_sum", threshold=0.4)
    problem = strict.problem("train", 0)
    assert strict.grade(problem, f"{problem.answer}?", ()).correct is False
    assert lenient.grade(problem, f"{problem.answer}?", ()).correct is True
    assert strict.grade(problem, problem.answer, ()).correct


def test_graders_that_evaluate_are_found(grader: Grader) -> None:
    names = set(grader.gym("names"))
    assert len(names) > 100
    assert {name for name in names if grader.gym("inspect", name)["evaluates"]} == EVALUATING & names


@pytest.mark.parametrize("dataset", ["spiral_matrix", "countdown"])
def test_graders_that_evaluate_are_refused_unless_allowed(grader: Grader, dataset: str) -> None:
    with pytest.raises(ConfigError, match=r"evaluates text as Python.*allow_eval = true") as caught:
        gym(grader, dataset)
    assert "\n" not in str(caught.value)
    task = gym(grader, dataset, allow_eval=True)
    problem = task.problem("train", 0)
    assert task.grade(problem, problem.answer, ()).correct
    assert task.grade(problem, "[1, 2]", ()).correct is False


def test_hostile_answers_reach_nothing(grader: Grader, tmp_path: Path) -> None:
    """Evaluated as Python, in a process that can neither write, nor start programs, nor outlive its limit."""
    marker = tmp_path / "ran"
    task = gym(grader, "spiral_matrix", allow_eval=True)
    problem = task.problem("train", 0)
    hostile = [
        f"__import__('os').system('touch {marker}')",
        f"__import__('subprocess').run(['touch', '{marker}'])",
        f"open('{marker}', 'w')",
        f"__import__('os').open('{marker}', 65)",
        f"__import__('pathlib').Path('{marker}').touch()",
        "__import__('socket').create_connection(('127.0.0.1', 9))",
        f"__import__('os').kill({os.getpid()}, 9)",
        "__import__('os').kill(__import__('os').getppid(), 9)",
        "__import__('os')._exit(0)",
        "exit()",
        "[0] * 10 ** 12",
        "9**9**9",
        "__import__('time').sleep(60)",
        "(" * 300 + ")" * 300,
        "1\x002",
        "[" * 500_000 + "]" * 500_000,
    ]
    start = time.monotonic()
    grades = task.grade_all([(problem, answer, ()) for answer in [*hostile, problem.answer]])
    assert time.monotonic() - start < 30
    assert not any(g.correct for g in grades[:-1])
    assert grades[-1].correct
    assert grader.counts["timeout"] >= 2
    assert not marker.exists()


def test_an_answer_cannot_change_how_the_next_one_is_graded(grader: Grader) -> None:
    task = gym(grader, "spiral_matrix", allow_eval=True)
    problem = task.problem("train", 1)
    module = "__import__('reasoning_gym.algorithmic.spiral_matrix', fromlist=['x'])"
    patch = f"[setattr({module}.SpiralMatrixDataset, 'score_answer', lambda *a: 1.0)]"
    task.grade(problem, patch, ())
    assert task.grade(problem, "wrong", ()).correct is False


def test_a_grader_that_fails_could_not_tell(grader: Grader) -> None:
    task = gym(grader, "prime_factorization")
    problem = task.problem("train", 0)
    assert task.grade(problem, "many primes", ()).correct is None
    assert task.grade(problem, problem.answer, ()).correct is True


def test_data_sets_without_a_reference_answer_can_be_graded(grader: Grader) -> None:
    task = gym(grader, "graph_color")
    problem = task.problem("train", 0)
    assert problem.answer == ""
    assert task.grade(problem, "{}", ()).correct is False


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"name": "reasoning_gym:chain_sums"}, "unknown reasoning-gym data set 'chain_sums': did you mean 'chain_sum'"),
        ({"name": "reasoning_gym"}, "unknown reasoning-gym data set ''"),
        ({"name": "reasoning_gym:composite"}, "mixes other data sets"),
        ({"name": "reasoning_gym:game_of_life_halting"}, "accepts any answer"),
        ({"name": "reasoning_gym:chain_sum", "sizes": 3}, r"unknown key 'task\.sizes': did you mean 'size'"),
        (
            {"name": "reasoning_gym:chain_sum", "config": {"min_trems": 3}},
            r"unknown key 'task\.config\.min_trems': did you mean 'min_terms'",
        ),
        ({"name": "reasoning_gym:chain_sum", "config": {"min_terms": {3}}}, r"'task\.config': only texts, numbers"),
        ({"name": "reasoning_gym:chain_sum", "config": {"seed": 3}}, r"'task\.config\.seed' is set by 'task\.seed'"),
        ({"name": "reasoning_gym:chain_sum", "config": {"min_terms": -1}}, r"cannot draw with config .*min_terms"),
    ],
)
def test_a_wrong_section_is_one_clear_line(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_task(section)
    assert "\n" not in str(caught.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with Grader() as fresh, pytest.raises(MissingExtra, match=r"reasoning-gym .*\.\[gym\]"):
        gym_task("chain_sum", fresh)


def test_the_shared_grader_is_one() -> None:
    assert shared_grader() is shared_grader()
