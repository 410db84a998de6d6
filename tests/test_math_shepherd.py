"""Math-Shepherd: labels by completions, their traps, and step rewards that do not pay for steps."""

from __future__ import annotations

from functools import cache
from math import comb
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.context import Context
from milonga.credit import fill_after_zero, find_first_zero, hard_labels, step_reward_advantages
from milonga.engine.local import LocalEngine
from milonga.objectives import make_objective
from milonga.patterns.value_head import NAN, estimate_step_values
from milonga.resolve import Plan, resolve
from milonga.roles.scorer import StepScorer
from milonga.tasks.base import ANSWERS, STEPS
from milonga.types import Grade, Rollouts, TrainBatch


def plan(recipe: str = "math_shepherd", **options: Any) -> Plan:
    more = {"completions": 3, "replay": 0.0} | options
    return resolve([{"recipe": recipe, "options": more}, TINY, {"task": {"ops": 3}}])


@cache
def engine() -> LocalEngine:
    made = make_engine(plan())
    assert isinstance(made, LocalEngine)
    return made


def ctx(p: Plan, learner: str = "verifier") -> Context:
    run_context = p.make_run_context(engine())
    return Context(run_context, 1, learner)


def train_batch_of(p: Plan, one: Context, rollouts: Rollouts) -> TrainBatch:
    (train_batch,) = p.recipe.credit(one, rollouts)
    return train_batch


# Labels.


def test_labels_by_hand() -> None:
    rates = [1.0, 0.25, 0.0, 0.125, NAN]
    assert hard_labels(rates)[:4] == [1.0, 1.0, 0.0, 1.0] and np.isnan(hard_labels(rates)[4])
    assert hard_labels(rates, tau=0.5)[:4] == [1.0, 0.0, 0.0, 0.0]
    assert fill_after_zero(hard_labels(rates), 0.0) == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert fill_after_zero([0.5, 0.2], 0.0) == [0.5, 0.2]
    assert find_first_zero([1.0, 0.0, 0.0]) == 1 and find_first_zero([1.0, 0.5]) == find_first_zero([]) == -1


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.2, 0.3])
@pytest.mark.parametrize("n", [8, 64])
def test_a_hard_label_rises_with_the_number_of_completions(rate: float, n: int) -> None:
    """1 - (1 - v)^n: labels made with different numbers of completions are not comparable."""
    chance = [comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(n + 1)]
    expected = sum(p * hard_labels([k / n])[0] for k, p in enumerate(chance))
    assert expected == pytest.approx(1 - (1 - rate) ** n)


@PROPERTY
@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, NAN]), max_size=8), st.floats(0, 0.9))
def test_cleaned_labels_never_come_back_from_zero(rates: list[float], tau: float) -> None:
    labels = fill_after_zero(hard_labels(rates, tau), 0.0)
    assert len(labels) == len(rates)
    first = find_first_zero(labels)
    assert first == -1 or not any(labels[first:])
    assert first == find_first_zero(hard_labels(rates, tau))


def test_completions_keep_the_prefix_and_the_last_label_is_the_answer() -> None:
    p = plan()
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    rates = estimate_step_values(one, rollouts, 3)
    assert [len(r) for r in rates] == [len(t.steps) for t in rollouts]
    for solution, found in zip(rollouts, rates, strict=True):
        assert found[-1] == solution.correct
        assert all(3 * rate == pytest.approx(round(3 * rate)) for rate in found[:-1])
    # The same completions, asked for one by one from a fresh table: token for token the same prefix and randomness.
    solution = rollouts[0]
    again = ctx(p).complete("generator", [(solution, 2)], 3)
    cut = solution.steps[1][1]
    assert all(np.array_equal(t.ids[:cut], solution.ids[:cut]) for t in again)
    assert rates[0][1] == pytest.approx(float(np.mean(again.correct)))


def test_right_prefixes_are_reached_from_more_often_than_wrong_ones() -> None:
    p = plan()
    one = Context(ctx(p).run, 1, "verifier")
    rollouts = one.ask("generator", one.problems(12), 4)
    rates = estimate_step_values(one, rollouts, 4)
    right = [
        r for t, rate in zip(rollouts, rates, strict=True) for r, k in zip(rate[:-1], prefix_truth(t.grade), strict=False) if k
    ]
    wrong = [
        r
        for t, rate in zip(rollouts, rates, strict=True)
        for r, k in zip(rate[:-1], prefix_truth(t.grade), strict=False)
        if not k
    ]
    assert len(right) > 20 and len(wrong) > 10
    assert np.mean(right) > np.mean(wrong) + 0.3


def prefix_truth(grade: Grade | None) -> list[bool]:
    assert grade is not None and grade.steps is not None
    return [all(grade.steps[: k + 1]) for k in range(len(grade.steps))]


def test_a_solution_without_steps_or_answer_has_no_labels_of_steps() -> None:
    p = plan()
    one = ctx(p)
    bare = make_rollout(2, 3, correct=True)
    assert estimate_step_values(one, Rollouts([bare]), 3) == [[]]


def test_problems_that_nobody_solved_are_left_out() -> None:
    p = plan()
    rollouts = p.recipe.rollout(ctx(p))
    unsolved = rollouts[0].problem.id
    for solution in rollouts:
        assert solution.grade is not None
        solution.grade = Grade(solution.problem.id != unsolved, solution.grade.steps)
    train_batch = train_batch_of(p, ctx(p), rollouts)
    assert {row.problem.id for row in train_batch.rollouts} == set(rollouts.problem_ids) - {unsolved}
    every = train_batch_of(plan(drop_unsolved=False), ctx(p), rollouts)
    assert len(every.rollouts) == len(rollouts)
    for solution in rollouts:
        solution.grade = Grade(False, None)
    assert list(p.recipe.credit(ctx(p), rollouts)) == []


def test_the_truth_of_steps_is_watched_and_never_learned() -> None:
    p = plan()
    rollouts = p.recipe.rollout(ctx(p))
    before = train_batch_of(p, ctx(p), rollouts)
    for solution in rollouts:
        assert solution.grade is not None
        solution.grade = Grade(solution.grade.correct, tuple(not right for right in solution.grade.steps or ()))
    after = train_batch_of(p, ctx(p), rollouts)
    assert before.targets is not None and after.targets is not None
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before.targets, after.targets, strict=True))
    assert before.notes["label_agreement"] != after.notes["label_agreement"]
    assert before.sources == {"answers": 1.0} and before.notes["label_agreement"] > 0.7


def test_exact_labels_need_no_completions_and_say_so() -> None:
    p = plan(labels="truth")
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    before = engine().ledger.policies["generator"].decode
    train_batch = train_batch_of(p, one, rollouts)
    assert engine().ledger.policies["generator"].decode == before
    assert p.recipe.needs == {ANSWERS, STEPS} and plan().recipe.needs == {ANSWERS}
    assert train_batch.sources == {"steps": 1.0} and train_batch.notes["label_agreement"] == 1.0
    assert train_batch.targets is not None
    for row, targets in zip(train_batch.rollouts, train_batch.targets, strict=True):
        grade = row.target.grade
        assert grade is not None and grade.steps is not None
        wanted = grade.steps if all(grade.steps) else grade.steps[: grade.steps.index(False) + 1]
        assert targets[~np.isnan(targets)].tolist() == [float(right) for right in wanted]


def test_soft_labels_are_shares_and_hard_ones_are_not() -> None:
    rollouts = (p := plan()).recipe.rollout(ctx(p))
    soft, hard = plan(labels="soft"), plan()
    values = {x for row in train_batch_of(soft, ctx(soft), rollouts).targets or [] for x in row if not np.isnan(x)}
    assert {0.0, 1.0} < values <= {0.0, 1 / 3, 2 / 3, 1.0}
    assert {x for row in train_batch_of(hard, ctx(hard), rollouts).targets or [] for x in row if not np.isnan(x)} == {0.0, 1.0}


def test_the_minimum_over_steps_ranks() -> None:
    role = plan().roles["verifier"]
    assert isinstance(role, StepScorer) and role.aggregate == "min"


def test_completions_are_charged_to_the_generator() -> None:
    p = plan()
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    before = engine().ledger.policies["generator"].decode
    train_batch_of(p, one, rollouts)
    assert engine().ledger.policies["generator"].decode > before


# Step rewards.

GRPO = make_objective("grpo").estimator


def pair(first: int, second: int) -> Rollouts:
    """Two solutions of one problem with so many steps of two tokens each."""
    ends = [[2 * (k + 1) for k in range(count)] for count in (first, second)]
    made = [make_rollout(1, 2 * len(e), step_ends=e, id=str(i)) for i, e in enumerate(ends)]
    return Rollouts(made)


def test_raw_scores_pay_for_more_steps_and_centred_ones_do_not() -> None:
    rollouts, groups = pair(2, 6), ["p", "p"]
    alike = [[0.9] * 2, [0.9] * 6]
    raw = step_reward_advantages(alike, rollouts, groups, GRPO, "raw")
    assert raw[0][1] == pytest.approx(1.8) and raw[1][1] == pytest.approx(5.4)
    for how in ("centred", "difference"):
        credit = step_reward_advantages(alike, rollouts, groups, GRPO, how)  # type: ignore[arg-type]
        assert all(np.allclose(array, 0) for array in credit)


def test_differences_telescope_by_hand() -> None:
    rollouts = pair(3, 1)
    credit = step_reward_advantages([[0.8, 0.2, 0.6], [0.4]], rollouts, ["p", "p"], GRPO, "difference")
    # p_0 = (0.8 + 0.4) / 2 = 0.6: the first token gets 0.6 - 0.6, after the first step 0.6 - 0.8, after the second 0.6 - 0.2.
    assert credit[0] == pytest.approx([0, 0.0, 0.0, -0.2, -0.2, 0.4, 0.4])
    assert credit[1] == pytest.approx([0, -0.2, -0.2])


SCORES = st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=6), min_size=2, max_size=6)


@PROPERTY
@given(SCORES)
def test_differences_sum_to_the_last_score_less_the_start(scores: list[list[float]]) -> None:
    rollouts = Rollouts(make_rollout(1, len(s), step_ends=range(1, len(s) + 1), id=str(i)) for i, s in enumerate(scores))
    credit = step_reward_advantages(scores, rollouts, ["p"] * len(scores), GRPO, "difference")
    start = np.mean([s[0] for s in scores])
    assert [array[1] for array in credit] == pytest.approx([s[-1] - start for s in scores])


def test_solutions_that_were_not_judged_have_no_step_credit() -> None:
    for how in ("centred", "difference", "raw"):
        credit = step_reward_advantages([None, [0.3, 0.9]], pair(2, 2), ["p", "p"], GRPO, how)  # type: ignore[arg-type]
        assert not credit[0].any() and (how == "difference" or credit[1].any())


def test_the_generator_learns_from_answers_and_scores() -> None:
    p = plan("math_shepherd_rl", alpha=0.5, step_reward="raw")
    one = ctx(p, "generator")
    rollouts = p.recipe.rollout(one)
    train_batch = train_batch_of(p, one, rollouts)
    assert train_batch.policy == "generator" and train_batch.advantages is not None
    assert set(train_batch.sources) == {"answers", "verifier"} and sum(train_batch.sources.values()) == pytest.approx(1)
    assert train_batch.sources["verifier"] > 0 and train_batch.notes["step_score"] == pytest.approx(
        0.5
    )  # a head that knows nothing
    alone = plan("math_shepherd_rl", alpha=0.0)
    outcome = train_batch_of(alone, ctx(alone, "generator"), rollouts)
    assert outcome.sources == {"answers": 1.0, "verifier": 0.0}


def test_the_verifier_comes_first_and_may_be_refreshed() -> None:
    frozen, fresh = (
        plan("math_shepherd_rl", warmup=2).recipe.schedule(),
        plan("math_shepherd_rl", warmup=1, refresh=3).recipe.schedule(),
    )
    assert [phase.learner for phase in frozen.intro] == ["verifier"] and [phase.learner for phase in frozen.cycle] == [
        "generator"
    ]
    assert frozen.count_turns_until("generator", 4) == 6
    assert [(phase.learner, phase.turns) for phase in fresh.cycle] == [("generator", 3), ("verifier", 1)]
