"""Let's Verify Step by Step: which labels a head learns, at which tokens, of which solutions."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.context import Context
from milonga.credit import label_agreement, select_convincing_wrong
from milonga.engine.local import LocalEngine
from milonga.errors import ConfigError
from milonga.evals.evaluate import score_vote
from milonga.patterns.value_head import NAN, Labelled, build_value_rows
from milonga.randomness import keyed_rng
from milonga.resolve import Plan, resolve
from milonga.roles import StepSolver
from milonga.roles.scorer import StepScorer, aggregate_scores
from milonga.systems.lets_verify.recipe import LetsVerify
from milonga.tasks import make_task
from milonga.types import Grade, Parsed, Problem, Rollout, Rollouts, Solution, TrainBatch
from test_resume import assert_same, die, finish, whole

ALL = {"label_budget": 4}
"""As many labels as rollouts: nothing is chosen."""


def plan(**options: Any) -> Plan:
    one_step = {"policies": {"verifier": {"minibatches": 1}}}
    return resolve([{"recipe": "lets_verify", "options": ALL | options}, TINY, {"task": {"ops": 3}}, one_step])


@cache
def engine() -> LocalEngine:
    made = make_engine(plan())
    assert isinstance(made, LocalEngine)
    return made


def ctx(p: Plan, turn: int = 1) -> Context:
    run_context = p.make_run_context(engine())
    return Context(run_context, turn, "verifier")


def train_batch_of(p: Plan, one: Context, rollouts: Rollouts) -> TrainBatch:
    (train_batch,) = p.recipe.credit(one, rollouts)
    return train_batch


def same_targets(one: TrainBatch, other: TrainBatch) -> bool:
    assert one.targets is not None and other.targets is not None
    return all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one.targets, other.targets, strict=True))


# Labels.


def test_labels_stand_at_the_ends_of_steps_up_to_the_first_error() -> None:
    p = plan()
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    train_batch = train_batch_of(p, one, rollouts)
    assert train_batch.targets is not None and len(train_batch.rollouts) == len(rollouts) == 16
    errors = 0
    for row, targets in zip(train_batch.rollouts, train_batch.targets, strict=True):
        assert row.target.grade is not None and row.target.grade.steps is not None
        first = row.target.grade.first_error
        labelled = row.steps if first == -1 else row.steps[: first + 1]  # type: ignore[operator]
        expected = np.full(len(row.ids), np.nan)
        for k, (_, end) in enumerate(labelled):
            expected[end - 1] = float(k != first)
        assert np.array_equal(targets, expected, equal_nan=True)
        errors += first != -1
    assert 0 < errors < len(rollouts)
    assert train_batch.sources == {"steps": 1.0} and train_batch.notes["label_agreement"] == 1.0


@pytest.mark.parametrize("stop", [True, False])
def test_what_comes_after_the_first_error_is_learned_only_without_the_mask(stop: bool) -> None:
    """Labels after the first error do not exist: whatever is true there must leave the train batch as it is."""
    p = plan(stop_at_error=stop, replay=0)
    rollouts = p.recipe.rollout(ctx(p))
    before = train_batch_of(p, ctx(p), rollouts)
    changed = 0
    for solution in rollouts:
        assert solution.grade is not None and solution.grade.steps is not None
        first = solution.grade.first_error
        after = () if first == -1 else tuple(not right for right in solution.grade.steps[first + 1 :])  # type: ignore[operator]
        kept = solution.grade.steps[: len(solution.grade.steps) - len(after)]
        solution.grade = Grade(solution.grade.correct, kept + after)
        changed += len(after)
    assert changed and same_targets(before, train_batch_of(p, ctx(p), rollouts)) == stop


def test_steps_of_a_file_after_the_first_error_are_never_learned(tmp_path: Path) -> None:
    rows = [{"problem": f"{n} + 1?", "steps": ["One.", "Two.", "Three."], "label": 0} for n in range(40)]
    (tmp_path / "steps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = make_task({"name": "jsonl", "path": str(tmp_path / "steps.jsonl"), "form": "steps"})
    plan().recipe.check(task)
    plan(stop_at_error=False).recipe.check(plan().task)
    with pytest.raises(ConfigError, match="after the first error"):
        plan(stop_at_error=False).recipe.check(task)


def test_outcome_labels_stand_at_the_last_token_and_know_nothing_of_steps() -> None:
    p = plan(labels="outcome", replay=0)
    rollouts = p.recipe.rollout(ctx(p))
    train_batch = train_batch_of(p, ctx(p), rollouts)
    assert train_batch.targets is not None and train_batch.sources == {"answers": 1.0}
    for row, targets in zip(train_batch.rollouts, train_batch.targets, strict=True):
        assert targets[-1] == row.target.correct and np.isnan(targets[:-1]).all()
    for solution in rollouts:
        assert solution.grade is not None
        solution.grade = Grade(solution.grade.correct, tuple(not right for right in solution.grade.steps or ()))
    assert same_targets(train_batch, train_batch_of(p, ctx(p), rollouts))


def test_a_right_answer_through_wrong_steps_is_right_for_the_outcome_alone() -> None:
    p, q = plan(replay=0), plan(labels="outcome", replay=0)
    rollouts = p.recipe.rollout(ctx(p))[:1]
    rollouts[0].grade = Grade(True, (True, False, True))
    of_steps, of_answer = train_batch_of(p, ctx(p), rollouts), train_batch_of(q, ctx(q), rollouts)
    assert of_steps.targets is not None and of_answer.targets is not None
    assert [x for x in of_steps.targets[0] if not np.isnan(x)] == [1.0, 0.0]
    assert [x for x in of_answer.targets[0] if not np.isnan(x)] == [1.0]


def test_a_head_that_knows_nothing_has_a_loss_of_log_two() -> None:
    """The mean over the labelled steps of -log 1/2, whatever the labels are; tokens without a label have no part in it."""
    p = plan()
    one = ctx(p)
    train_batch = train_batch_of(p, one, p.recipe.rollout(one))
    engine().copy("verifier", "verifier", "ref")
    report = engine().learn(train_batch)
    engine().copy("verifier", "verifier", "ref")
    assert report.tokens == int(train_batch.notes["labels"]) < sum(len(row.ids) for row in train_batch.rollouts)
    assert report.steps == 1 and report.loss == pytest.approx(math.log(2))


def test_the_labels_in_use_decide_how_solutions_are_scored() -> None:
    for options, how in (({}, "product"), ({"labels": "outcome"}, "last"), ({"aggregate": "min"}, "min")):
        role = plan(**options).roles["verifier"]
        assert isinstance(role, StepScorer) and role.aggregate == how


def test_a_product_shrinks_with_the_number_of_steps() -> None:
    twenty = [0.95] * 20
    assert aggregate_scores(twenty, 0.0, "product") == pytest.approx(0.3585, abs=1e-4)
    assert aggregate_scores(twenty, 0.0, "min") == aggregate_scores([0.95], 0.0, "min") == 0.95
    assert aggregate_scores(twenty, 0.0, "geometric") == pytest.approx(0.95)


def test_agreement_of_labels_with_the_truth_by_hand() -> None:
    # The prefix is right, wrong, wrong: the consistent third step does not make it right again.
    assert label_agreement([([1.0, 0.0, 0.0], (True, False, True))]) == 1.0
    assert label_agreement([([1.0, 0.2, 0.9], (True, False, True))]) == pytest.approx(2 / 3)
    assert label_agreement([([1.0, NAN, NAN], (True, False, True)), ([0.0], (True,))]) == 0.5
    assert label_agreement([([1.0], None), ([1.0], (True, True))]) is None


# Selection.


def test_convincing_wrong_solutions_are_chosen_first() -> None:
    scores = [0.9, 0.1, 0.8, 0.7, 0.95, 0.2]
    correct = np.array([0, 0, 0, 1, 1, NAN])
    groups = ["p"] * 6
    assert select_convincing_wrong(scores, correct, groups, 2, 1.0, keyed_rng("a")) == [0, 2]
    assert select_convincing_wrong(scores, correct, groups, 6, 1.0, keyed_rng("a")) == [0, 1, 2, 3, 4, 5]
    for key in range(10):
        rows = select_convincing_wrong(scores, correct, groups, 3, 0.67, keyed_rng(key))
        assert {0, 2} <= set(rows) and len(rows) == 3


def test_a_share_drawn_without_looking_keeps_right_solutions_among_the_labelled() -> None:
    """With convincing wrong ones alone, a verifier would see nothing but errors."""
    correct = np.array([0.0] * 4 + [1.0] * 4)
    alone = {r for key in range(50) for r in select_convincing_wrong([0.5] * 8, correct, ["p"] * 8, 4, 1.0, keyed_rng(key))}
    shared = {r for key in range(50) for r in select_convincing_wrong([0.5] * 8, correct, ["p"] * 8, 4, 0.5, keyed_rng(key))}
    assert alone == {0, 1, 2, 3} and shared == set(range(8))


ROWS = st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.0, 1.0, NAN]), st.integers(0, 3)), max_size=24)


@PROPERTY
@given(ROWS, st.integers(1, 8), st.floats(0, 1))
def test_every_problem_gets_its_share_of_labels(rows: list[tuple[float, float, int]], count: int, share: float) -> None:
    scores, correct, groups = [r[0] for r in rows], np.array([r[1] for r in rows]), [r[2] for r in rows]
    chosen = select_convincing_wrong(scores, correct, groups, count, share, keyed_rng("x"))
    assert len(set(chosen)) == len(chosen)
    for group in set(groups):
        members = [r for r in range(len(rows)) if groups[r] == group]
        taken = [r for r in chosen if r in members]
        assert len(taken) == min(count, len(members))
        wrong = [r for r in members if correct[r] == 0]
        best = sorted(wrong, key=lambda r: -scores[r])[: round(share * min(count, len(members)))]
        assert set(best) <= set(taken)


def test_the_present_verifier_chooses_what_is_labelled() -> None:
    p = plan(label_budget=2, convincing_fraction=1.0, replay=0)
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    scores = {c.target.id: c.parsed.value.score for c in ctx(p).judge("verifier", rollouts)}
    chosen = {row.target.id for row in train_batch_of(p, one, rollouts).rollouts}
    assert len(chosen) == 2 * 4
    for problem in set(rollouts.problem_ids):
        wrong = [t for t in rollouts if t.problem.id == problem and t.correct == 0]
        best = sorted((scores[t.id] for t in wrong), reverse=True)[:2]
        assert sorted((scores[t.id] for t in wrong if t.id in chosen), reverse=True)[: len(best)] == best


# Voting, beside which best-of-k is to be seen.


def test_votes_by_hand() -> None:
    answers = [("7", False, 0.4), ("7", False, 0.4), ("9", True, 0.9), (None, False, 0.99)]
    group = []
    for number, (answer, right, score) in enumerate(answers):
        rollout = make_rollout(1, 2, id=str(number), correct=right)
        value = Solution((), (), answer)
        group.append((score, replace(rollout, parsed=Parsed(value, 1.0))))
    assert score_vote(group) == 1.0  # 0.9 for 9, 0.8 for 7; who gives no answer has no vote
    assert score_vote([(1.0, rollout) for _, rollout in group]) == 0.0  # two against one
    assert score_vote(group[3:]) == 0.0


# What was labelled before.


def test_labelled_solutions_come_back_as_they_were() -> None:
    p = plan(replay=10.0)
    assert isinstance(p.recipe, LetsVerify)
    one = ctx(p)
    first = train_batch_of(p, one, p.recipe.rollout(one))
    again, targets = build_value_rows(ctx(p, 2), p.recipe.sample_replay(ctx(p, 2), 100))
    assert first.targets is not None and len(again) == len(first.rollouts) == 16
    for old, new, wanted, found in zip(first.rollouts, again, first.targets, targets, strict=True):
        assert np.array_equal(old.ids, new.ids) and old.steps == new.steps
        assert np.array_equal(wanted, found, equal_nan=True)
    later = ctx(p, 2)
    second = train_batch_of(p, later, p.recipe.rollout(later))
    assert len(second.rollouts) == 32 and second.notes["solutions"] == 16


def test_memory_keeps_the_newest() -> None:
    p = plan(memory=5, replay=1.0)
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    train_batch_of(p, one, rollouts)
    assert [kept["solution"] for kept in p.recipe.state["labelled"]] == [t.text for t in rollouts[-5:]]
    assert len(train_batch_of(p, ctx(p, 2), rollouts).rollouts) == 16 + 5
    forgetful = plan(memory=0)
    train_batch_of(forgetful, ctx(forgetful), rollouts)
    assert forgetful.recipe.state["labelled"] == []


def test_labels_survive_json() -> None:
    p = plan()
    one = ctx(p)
    (solution,) = p.recipe.rollout(one)[:1]
    solver: Any = p.roles["generator"]
    for labels, end in (([1.0, 0.5, NAN], NAN), ([], 1.0)):
        back = Labelled.from_json(Labelled(solution, labels, end).to_json(), solver, 0)
        assert np.array_equal(back.steps, labels, equal_nan=True) and np.array_equal(back.end, end, equal_nan=True)
        assert back.solution.text == solution.text and back.solution.problem.text == solution.problem.text


@pytest.mark.parametrize("data", [{}, {"form": "open"}, {"form": "program"}, {"reply": "Yes."}])
def test_a_solution_that_comes_back_has_the_prompt_that_it_had(data: dict[str, str]) -> None:
    solver, problem = StepSolver("plain"), Problem("p", "How many?", "3", data | {"worked": "1 + 2"})
    solution = Rollout.from_text("s", "generator", problem, "It is \\boxed{3}.", solver.parse("It is \\boxed{3}."))
    kept = Labelled(solution, [1.0]).to_json()
    again = Labelled.from_json(json.loads(json.dumps(kept)), solver, 0).solution
    assert solver.prompt(again.problem) == solver.prompt(problem)
    assert {"problem", "text", "solution", "finish", "labels"} | set(data) == set(kept)


def test_a_run_that_is_killed_ends_in_the_same_bits(tmp_path: Path) -> None:
    config = TINY | {
        "recipe": "lets_verify",
        "turns": 3,
        "options": {"label_budget": 2, "replay": 1.0},
        "keep": {"checkpoint_every": 1, "rollouts_every": 0},
    }
    expected, _ = whole(tmp_path / "whole", config)
    for moment, count in (("learning", 6), ("a row", 2)):
        die(tmp_path / "run", config, moment, count)
    finish(tmp_path / "run", config)
    assert_same(tmp_path / "run", expected)


# What it needs.


def test_labels_of_steps_need_a_task_that_knows_them_and_labels_of_answers_do_not(tmp_path: Path) -> None:
    file = tmp_path / "data.jsonl"
    file.write_text("".join(f'{{"question": "{i}+1", "answer": "{i + 1}"}}\n' for i in range(40)))
    task = {"name": "jsonl", "path": str(file)}
    with pytest.raises(ConfigError, match="needs solutions with labelled steps"):
        resolve([{"recipe": "lets_verify", "task": task}])
    of_answers = {"options": {"labels": "outcome"}, "policies": {"generator": {"model": "a/model"}}}
    assert resolve([{"recipe": "lets_verify", "task": task}, of_answers]).task.knows_steps is False
