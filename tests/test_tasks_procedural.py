"""Procedural tasks: demonstrations grade as they claim, splits are disjoint, and everything follows from the key."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.errors import ConfigError
from milonga.tasks import Chain, LastLetter, Task, assign_split, make_task, normalise_text
from milonga.types import SPLITS

TASKS: list[Task] = [
    make_task({"name": "chain"}),
    make_task({"name": "chain", "ops": 12, "min_ops": 2, "mod": 20}),
    make_task({"name": "last_letter"}),
    make_task({"name": "last_letter", "min_words": 1, "max_words": 3, "test_max_words": 5}),
    make_task({"name": "haystack", "kinds": "both"}),
]
tasks = st.sampled_from(TASKS)
splits = st.sampled_from(SPLITS)
indices = st.integers(0, 10_000)
seeds = st.integers(0, 2**32)


@PROPERTY
@given(tasks, splits, indices, seeds, st.data())
def test_a_demonstration_is_wrong_exactly_where_it_was_told(
    task: Task, split: Any, index: int, seed: int, data: st.DataObject
) -> None:
    problem = task.problem(split, index)
    count = task.step_count(problem)
    errors = data.draw(st.sets(st.integers(0, count - 1)))
    shown = task.demonstrate(problem, random.Random(seed), errors)
    assert len(shown.steps) == len(shown.truth) == len(shown.checks) == count
    assert shown.truth == tuple(k not in errors for k in range(count))
    grade = task.grade(problem, shown.answer, shown.steps)
    assert (grade.correct, grade.steps) == (shown.correct, shown.truth)
    assert grade.first_error == shown.first_error == min(errors, default=-1)
    if not errors:
        assert grade.is_sound
        assert shown.answer == problem.answer


@PROPERTY
@given(tasks, indices, seeds)
def test_what_is_left_out_or_added_is_wrong(task: Task, index: int, seed: int) -> None:
    problem = task.problem("train", index)
    shown = task.demonstrate(problem, random.Random(seed))
    longer = task.grade(problem, shown.answer, [*shown.steps, shown.steps[-1]])
    assert longer.steps == (*shown.truth, False)
    if len(shown.steps) > 1:
        shorter = task.grade(problem, shown.answer, shown.steps[:-1])
        assert shorter.steps == (*shown.truth[:-2], False)
        assert shorter.is_sound is False
    assert task.grade(problem, None, ()).correct is False
    assert task.grade(problem, None, ()).steps == ()


@PROPERTY
@given(tasks, indices, st.lists(st.text(max_size=20), max_size=15), st.none() | st.text(max_size=20))
def test_no_text_breaks_the_grader(task: Task, index: int, steps: list[str], answer: str | None) -> None:
    problem = task.problem("dev", index)
    grade = task.grade(problem, answer, steps)
    assert grade.correct is (answer == problem.answer)
    assert grade.steps is not None and len(grade.steps) == len(steps)


@PROPERTY
@given(st.sampled_from([20, 97, 100, 1000]), st.integers(2, 12), indices, seeds)
def test_compensated_errors_give_the_right_answer_by_wrong_steps(mod: int, ops: int, index: int, seed: int) -> None:
    task = Chain(Chain.Options(ops=ops, mod=mod))
    problem = task.problem("train", index)
    shown = task.demonstrate_compensated(problem, random.Random(seed))
    assert shown is not None
    grade = task.grade(problem, shown.answer, shown.steps)
    assert shown.correct and grade.correct
    assert grade.steps == shown.truth
    assert 1 <= shown.truth.count(False) <= 2
    assert grade.is_sound is False


def test_one_operation_cannot_be_compensated() -> None:
    task = Chain(Chain.Options(ops=1))
    assert task.demonstrate_compensated(task.problem("train", 0), random.Random(0)) is None


@pytest.mark.parametrize("task", TASKS, ids=lambda t: f"{t.name}-{t.max_tokens}")
def test_splits_are_disjoint(task: Task) -> None:
    texts = {split: {normalise_text(p.text) for p in task.draw_problems(split, 0, 300)} for split in SPLITS}
    for a, b in itertools.combinations(SPLITS, 2):
        assert not texts[a] & texts[b]
    assert all(assign_split(text) == split for split in SPLITS for text in texts[split])


@pytest.mark.parametrize("name", ["chain", "last_letter"])
def test_problems_are_functions_of_options_split_and_index(name: str) -> None:
    first, second = make_task({"name": name}), make_task({"name": name})
    forward = [first.problem("train", i) for i in range(50)]
    backward = [second.problem("train", i) for i in reversed(range(50))]
    assert forward == backward[::-1]
    assert [p.text for p in make_task({"name": name, "seed": 1}).draw_problems("train", 0, 50)] != [p.text for p in forward]
    rng = [random.Random(3), random.Random(3)]
    assert first.demonstrate(forward[0], rng[0], {0}) == second.demonstrate(forward[0], rng[1], {0})


@PROPERTY
@given(tasks, splits, indices)
def test_grading_many_is_grading_each(task: Task, split: Any, index: int) -> None:
    problems = task.draw_problems(split, index, 3)
    items = [(p, p.answer, task.demonstrate(p, random.Random(0), {0}).steps) for p in problems]
    assert task.grade_all(items) == [task.grade(*item) for item in items]


def test_last_letter_goes_further_than_it_trains() -> None:
    task = LastLetter()
    assert max(len(p.data["words"]) for p in task.draw_problems("train", 0, 300)) == 10
    assert max(len(p.data["words"]) for p in task.draw_problems("dev", 0, 300)) == 12


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({}, "needs a name"),
        ({"name": "chian"}, "unknown task 'chian': did you mean 'chain'"),
        ({"name": "chain", "opps": 3}, r"unknown key 'task\.opps': did you mean 'ops'"),
        ({"name": "chain", "ops": 0}, r"'task\.ops'"),
        ({"name": "chain", "ops": 2, "min_ops": 3}, "min_ops=3 is larger than ops=2"),
        ({"name": "last_letter", "min_words": 11}, "min_words=11 is larger"),
    ],
)
def test_a_wrong_section_is_one_clear_line(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_task(section)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", [Chain(), LastLetter()], ids=lambda task: task.name)
def test_a_bare_answer_is_right_but_not_sound(task: Task) -> None:
    """Where answers can be guessed, an answer without steps is a guess."""
    problem = task.problem("train", 0)
    grade = task.grade(problem, problem.answer, [])
    assert grade.correct is True and grade.is_sound is False
