"""Reasoning-gym: any data set by name, the same in every process, graded where hostile answers can do no harm."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milonga.errors import ConfigError, MissingExtra, UserError
from milonga.sandbox import isolation
from milonga.sandbox.executor import try_level
from milonga.tasks import Task, make_task, normalise_text
from milonga.tasks.grading import Grader, get_shared_grader
from milonga.tasks.gym import Gym, is_pure_computation, make_gym_task
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
    made = make_gym_task(dataset, grader)
    assert issubclass(made, Gym)
    return made(made.Options(**options), grader)


def test_by_name_with_its_own_options() -> None:
    task = make_task({"name": "reasoning_gym:chain_sum", "size": 20, "config": {"min_terms": 2, "max_terms": 2}})
    assert task.name == "reasoning_gym:chain_sum"
    problems = task.draw_problems("train", 0, 20)
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
    texts = {split: {normalise_text(p.text) for p in task.draw_problems(split, 0, 100)} for split in SPLITS}
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
    assert [p.text for p in gym(grader, dataset, seed=1).draw_problems("dev", 0, 3)] != [
        p.text for p in first.draw_problems("dev", 0, 3)
    ]


def test_partial_credit_is_not_correct_unless_the_threshold_says_so(grader: Grader) -> None:
    strict, lenient = gym(grader, "chain_sum"), gym(grader, "chain_sum", threshold=0.4)
    problem = strict.problem("train", 0)
    assert strict.grade(problem, f"{problem.answer}?", ()).correct is False
    assert lenient.grade(problem, f"{problem.answer}?", ()).correct is True
    assert strict.grade(problem, problem.answer, ()).correct


def test_graders_that_evaluate_are_found(grader: Grader) -> None:
    names = set(grader.ask_gym("names"))
    assert len(names) > 100
    assert {name for name in names if grader.ask_gym("inspect", name)["evaluates"]} == EVALUATING & names


@pytest.fixture(scope="module")
def isolated() -> None:
    reason = try_level("isolated")
    if reason is not None:
        pytest.skip(f"no isolation here: {reason}")


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("dataset", "other", "wrong"),
    [
        ("countdown", "({})", "1 + 1"),
        ("simple_integration", "({}) + 7", "x"),
        ("bitwise_arithmetic", "+{}", "0x1"),
        ("spiral_matrix", "\n{} ", "[1, 2]"),
    ],
)
def test_graders_that_evaluate_run_in_the_sandbox(grader: Grader, dataset: str, other: str, wrong: str) -> None:
    task = gym(grader, dataset)
    problem = task.problem("train", 0)
    assert task.grade(problem, problem.answer, ()).correct
    assert task.grade(problem, other.format(problem.answer), ()).correct
    assert task.grade(problem, wrong, ()).correct is False
    assert ("gym", True) in grader._workers


def test_without_isolation_they_are_refused_unless_the_weak_level_is_allowed(
    grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation.shutil, "which", lambda _: None)
    with pytest.raises(
        UserError, match=r"evaluates text \(eval in .*bubblewrap is not installed.*allow_weak_isolation = true"
    ) as caught:
        gym(grader, "spiral_matrix")
    assert "\n" not in str(caught.value)
    task = gym(grader, "spiral_matrix", allow_weak_isolation=True)
    problem = task.problem("train", 0)
    assert task.grade(problem, "[1, 2]", ()).correct is False
    assert task.grade(problem, problem.answer, ()).correct


FORGING = [
    "oracle_answer",
    "entry['answer']",
    "[__import__('os').write(d, b'1.0') for d in range(30)]",
    "sin('__import__(1)')",
    "().__class__",
    "f'{entry}'",
    "lambda: 1",
    "1 if x else 2",
    "x := 1",
    "Integral(x, x)",
    "1.real",
    "x.y",
    "'a' * 3",
    "@x",
    "a\\b",
    "1" * 5000,
]


@pytest.mark.parametrize("answer", FORGING)
def test_what_could_do_more_than_compute_is_not_shown_to_a_grader(answer: str) -> None:
    """A grader knows the right answer: evaluated text could find it, or write the verdict itself."""
    assert not is_pure_computation(answer)


@pytest.mark.parametrize(
    "answer", ["94*4 - 61", "-3*x**2/15 + C", "exp(2x)", "0x5b", "['1', '2']", "[[0, 1], [1, 0]]", "_ Q _\nQ _ _", "4!"]
)
def test_plain_answers_are_shown_to_it(answer: str) -> None:
    assert is_pure_computation(answer)


@pytest.mark.usefixtures("isolated")
def test_a_forged_verdict_counts_as_wrong(grader: Grader) -> None:
    task = gym(grader, "spiral_matrix", threshold=0.05)
    problem = task.problem("train", 0)
    assert not any(task.grade(problem, answer, ()).correct for answer in FORGING)
    assert task.grade(problem, f"[{problem.answer.replace(' ', ', ')}]", ()).correct  # a list, for which the grader gives 0.1


HOSTILE = [
    "__import__('os').system('touch {marker}')",
    "__import__('subprocess').run(['touch', '{marker}'])",
    "open('{marker}', 'w')",
    "__import__('os').open('{marker}', 65)",
    "__import__('pathlib').Path('{marker}').touch()",
    "__import__('socket').create_connection(('127.0.0.1', 9))",
    "__import__('os').kill({parent}, 9)",
    "__import__('os').kill(__import__('os').getppid(), 9)",
    "__import__('os')._exit(0)",
    "exit()",
    "[0] * 10 ** 12",
    "9**9**9",
    "(" * 300 + ")" * 300,
    "1\x002",
    "[" * 500_000 + "]" * 500_000,
]


@pytest.mark.parametrize("confined", [False, True])
def test_hostile_answers_reach_nothing(grader: Grader, tmp_path: Path, confined: bool, request: pytest.FixtureRequest) -> None:
    """Evaluated as Python: in a process that can neither write, nor start programs, nor outlive its limit."""
    if confined:
        request.getfixturevalue("isolated")
    marker = tmp_path / "ran"
    answers = [text.replace("{marker}", str(marker)).replace("{parent}", str(os.getpid())) for text in HOSTILE]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grader, "limit", 60.0)  # on the clock: what ends them is their processor time
        scores = grader.score("spiral_matrix", {}, [(1, 0, answer) for answer in answers], alone=True, confined=confined)
    assert all(score is not None and score < 0.5 for score in scores)
    assert not marker.exists()


def test_who_waits_is_ended_by_the_clock(grader: Grader) -> None:
    """No such answer is shown to a grader by its task: it is no computation."""
    before = grader.counts["timeout"]
    assert grader.score("spiral_matrix", {}, [(1, 0, "__import__('time').sleep(60)")], alone=True) == [None]
    assert grader.counts["timeout"] == before + 1


@pytest.mark.usefixtures("isolated")
def test_a_confined_grader_sees_neither_files_nor_network_nor_home(grader: Grader) -> None:
    """Each answer is the right list, for which the grader gives 0.1, if an attempt succeeds, and an error if it does not."""
    attempts = [
        f"open('{Path(__file__)}')",
        "open('/etc/passwd')",
        f"__import__('os').listdir('{Path.home()}')",
        "__import__('_socket').socket()",
    ]
    problem = gym(grader, "spiral_matrix").problem("train", 0)
    answers = [f"[{attempt} and word for word in {problem.answer.split()}]" for attempt in (*attempts, "1")]
    items = [(problem.data["seed"], problem.data["index"], answer) for answer in answers]
    *refused, allowed = grader.score("spiral_matrix", {}, items, alone=True, confined=True)
    assert allowed == 0.1
    assert refused == [0.0] * len(attempts)
    assert grader.score("spiral_matrix", {}, items[1:2], alone=True) == [0.1]  # as it is without the sandbox


def test_an_answer_cannot_change_how_the_next_one_is_graded(grader: Grader) -> None:
    module = "__import__('reasoning_gym.algorithmic.spiral_matrix', fromlist=['x'])"
    patch = f"[setattr({module}.SpiralMatrixDataset, 'score_answer', lambda *a: 1.0)]"
    assert grader.score("spiral_matrix", {}, [(1, 1, patch), (1, 1, "wrong")], alone=True)[1] == 0.0


def test_an_answer_on_which_its_grader_fails_is_wrong(grader: Grader) -> None:
    task = gym(grader, "prime_factorization")
    problem = task.problem("train", 0)
    assert task.grade(problem, "many primes", ()).correct is False
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
        make_gym_task("chain_sum", fresh)


def test_the_shared_grader_is_one() -> None:
    assert get_shared_grader() is get_shared_grader()
