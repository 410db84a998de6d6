"""Tango with a balanced verifier: each piece by hand, and Tango to the bit where all are off."""

from __future__ import annotations

import copy
import json
import random
import runpy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import FAST, TINY
from helpers import make_rollout
from hidden import learned, same_after_a_cut
from milonga.api import make_engine
from milonga.comparing.study import read_studies
from milonga.context import Context, RunContext
from milonga.credit.balance import ClassBalance
from milonga.errors import ConfigError
from milonga.evals.evaluate import judge_metrics
from milonga.objectives import make_objective
from milonga.patterns.value_head import Labelled
from milonga.resolve import Plan, resolve
from milonga.roles import StepSolver
from milonga.systems.tango.recipe import Tango
from milonga.systems.tango_balanced.claim import CLAIM
from milonga.systems.tango_balanced.credit import (
    Skill,
    Soundness,
    StepLabels,
    credit_step_verdicts,
    place_on_verdicts,
    soften_signs,
)
from milonga.systems.tango_balanced.pool import PairPool, find_contrasts, find_pairs
from milonga.systems.tango_balanced.recipe import ON_START, START_SAMPLES, TangoBalanced, is_contrast, label_steps
from milonga.tasks import make_task
from milonga.tasks.chain import Chain
from milonga.types import Problem, Rollout, Rollouts, Verification

torch.set_num_threads(1)
NAN = float("nan")
OFF: dict[str, Any] = {"soft": False, "class_weights": "root", "pool": 0, "step_credit": 0, "corruptions": 0, "gate": False}
ON: dict[str, Any] = {
    "soft": True,
    "class_weights": "inverse",
    "pool": 64,
    "step_credit": 1.0,
    "corruptions": 0.5,
    "gate": True,
}
OPTIONS: dict[str, Any] = {"warmup": 1, "n_generator": 1} | ON
MOVING = TINY | {"policies": {"generator": FAST, "verifier": FAST}}


def plan(**options: Any) -> Plan:
    return resolve([{"recipe": "tango_balanced", "options": OPTIONS | options}, TINY])


def ctx(p: Plan, learner: str = "generator", turn: int = 1, progress: float = 0.0) -> Context:
    run_context = RunContext(make_engine(p), p.task, p.roles, p.agents, p.config.sampling, 0, p.config.batch.problems)
    return Context(run_context, turn, learner, progress=progress)


def write_solution(one: Context, problem: Problem, steps: Sequence[str], answer: str) -> Rollout:
    solver = one.role("generator")
    assert isinstance(solver, StepSolver)
    text = solver.write(steps, answer)
    return Rollout.from_text("s", "generator", problem, text, solver.parse(text), one.task.grade(problem, answer, steps))


def judged(target: Rollout, steps: tuple[bool, ...] | None, final: bool | None, **soft: Any) -> Rollout:
    check = make_rollout(2, 4, (2, 4), id=f"check of {target.id}")
    parsed = replace(check.parsed, value=Verification(steps, final, **soft))
    return replace(check, agent="verifier", targets=(target,), parsed=parsed)


# Soft verdicts.


def test_soft_verdicts_by_hand() -> None:
    assert soften_signs([1.0, -1.0, NAN], (0.9, 0.25)) == pytest.approx([0.8, -0.5, NAN], nan_ok=True)
    assert soften_signs([1.0, -1.0], None) == [1.0, -1.0], "what has no probabilities stays hard"
    assert soften_signs(None, (0.5,)) is None


def test_the_generator_is_paid_by_probabilities_and_a_unanimous_group_by_little() -> None:
    recipe = plan().recipe
    assert isinstance(recipe, TangoBalanced)
    solutions = Rollouts(make_rollout(2, 4, (2, 4), id=name) for name in "ab")
    said = {"a": (0.9, 0.98), "b": (0.94, 0.98)}
    checks = Rollouts(judged(t, (True, True), True, soft=0.9, soft_steps=said[t.id]) for t in solutions)
    verdicts = recipe.collect_verdicts(solutions, checks)
    assert verdicts[0] == pytest.approx([0.8, 0.96]) and verdicts[1] == pytest.approx([0.88, 0.96])
    # Their mean is 0.9; each is divided by two steps. The first token of a solution has the sum of both, the third the last.
    found = recipe.credit_steps(verdicts, solutions, make_objective("grpo").estimator)
    assert found[0][[2, 4]] == pytest.approx([(-0.1 + 0.06) / 2, 0.06 / 2])
    assert found[1][[2, 4]] == pytest.approx([(-0.02 + 0.06) / 2, 0.06 / 2])
    hard = plan(soft=False).recipe
    assert isinstance(hard, TangoBalanced) and hard.collect_verdicts(solutions, checks) == [[1.0, 1.0]] * 2
    flat = hard.credit_steps([[1.0, 1.0]] * 2, solutions, make_objective("grpo").estimator)
    assert not any(array.any() for array in flat)


def test_soft_verdicts_are_refused_where_the_batch_is_whitened() -> None:
    for preset in ("reinforce_pp", "reinforce_pp_baseline"):
        own = {"policies": {"generator": {"objective": {"preset": preset}}}}
        with pytest.raises(ConfigError, match=r"options\.soft.*whiten"):
            resolve([{"recipe": "tango_balanced", "options": {"soft": True}}, TINY, own])
        assert resolve([{"recipe": "tango_balanced"}, TINY, own]).recipe.options.soft is False  # type: ignore[attr-defined]


# Class weights.


def test_class_weights_by_hand() -> None:
    correct = np.array([1.0] + [0.0] * 4)
    for inverse, expected in ((False, [5 / 3, *[5 / 6] * 4]), (True, [2.5, *[0.625] * 4])):
        balance = ClassBalance(0.8, inverse=inverse)
        balance.update(correct)
        assert balance.weights(correct) == pytest.approx(expected)
    weights = balance.weights(correct)
    assert weights[0] == pytest.approx(weights[1:].sum()), "1 / count: both classes count alike"


# Credit of step verdicts.


def test_a_right_answer_credits_every_step_apart() -> None:
    """Three checks of two steps: on the first two say right, on the second all do. Unbiased std of (1, 1, 0) is .57735."""
    known = [StepLabels.from_answer(1.0, 2, 0.5)] * 3
    found = credit_step_verdicts([(True, True), (True, True), (False, True)], known, ["s"] * 3, "zscore")
    assert [list(row) for row in found] == [
        pytest.approx([0.5 * (1 / 3) / 0.57735, 0], abs=1e-5),
        pytest.approx([0.5 * (1 / 3) / 0.57735, 0], abs=1e-5),
        pytest.approx([-0.5 * (2 / 3) / 0.57735, 0], abs=1e-5),
    ]


def test_a_wrong_answer_credits_a_check_that_finds_any_wrong_step() -> None:
    known = [StepLabels.from_answer(0.0, 2, 0.5)] * 3
    found = credit_step_verdicts([(True, True), (False, True), None], known, ["s"] * 3, "centre")
    assert [list(row) for row in found] == [[-0.5, -0.5], [0.5, 0.5], [0, 0]]


def test_a_corruption_credits_its_step_fully_and_those_before_as_much_as_answers_are_sound() -> None:
    known = [StepLabels.from_corruption((1.0, 0.0), 0.5)] * 2
    found = credit_step_verdicts([(True, False), (False, True)], known, ["s"] * 2, "centre")
    assert [list(row) for row in found] == [[0.25, 0.5], [-0.25, -0.5]]


def test_verdicts_that_stop_early_have_credit_for_what_they_said() -> None:
    known = [StepLabels.from_answer(1.0, 3, 1.0)] * 2
    found = credit_step_verdicts([(False,), (True, True, True)], known, ["s"] * 2, "centre")
    assert [list(row) for row in found] == [[-0.5, 0, 0], [0.5, 0, 0]]
    unknown = [StepLabels.from_answer(NAN, 3, 1.0)] * 2
    assert not any(row.any() for row in credit_step_verdicts([(False,), (True,)], unknown, ["s"] * 2, "centre"))


def test_the_credit_of_a_verdict_is_on_its_tokens_alone() -> None:
    check = make_rollout(2, 5, (2, 4))
    assert place_on_verdicts(np.array([0.5, -1.0]), check).tolist() == [0, 0, 0.5, 0.5, -1, -1, 0]
    assert not place_on_verdicts(np.array([0.5, -1.0]), replace(check, steps=())).any()


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=6), st.sampled_from([0.0, 1.0]))
def test_the_credit_of_one_step_sums_to_zero_over_the_checks(said: list[tuple[bool, bool]], correct: float) -> None:
    known = [StepLabels.from_answer(correct, 2, 1.0)] * len(said)
    found = np.array(credit_step_verdicts(said, known, ["s"] * len(said), "zscore"))
    assert found.sum(0) == pytest.approx([0, 0], abs=1e-9)


# Soundness and skill.


def test_soundness_by_hand() -> None:
    """One problem: two right answers, three wrong, two of which agree. 2 of 6 ordered pairs agree: g = 1/3, so that three wrong
    ones stand for a lucky one, and half of the right is sound."""
    found = Soundness(0.5)
    found.update([0, 0, 1, 1, 2, None], np.array([1, 1, 0, 0, 0, 0.0]), ["p"] * 6)
    assert found.share == pytest.approx(0.5)
    found.update([0, 0], np.array([1.0, 1.0]), ["q"] * 2)  # 1.5 wrong, 1 + 2 right: half a lucky one
    assert found.share == pytest.approx(1 - 0.5 / 3)
    assert Soundness().share == 1.0
    nowhere = Soundness(pairs=4, agree=4, right=1, wrong=2)
    assert nowhere.share == 0.0


def test_soundness_of_guesses_on_a_known_chance() -> None:
    """One way in 51 is sound, the others end at one of fifty answers by chance: one in 51 is right that way too, so that half
    of the right answers are sound. The wrong ones are spread over 49 answers, so that g is 1/49 and the estimate
    1 - (50/51 * 49/50 / 49) / (2/51) = 1/2. About 784 right ones are drawn; their number moves it by 0.018 (one sigma)."""
    rng, found = random.Random(0), Soundness()
    drawn = [0 if rng.random() < 1 / 51 else rng.randrange(50) for _ in range(20_000)]
    found.update(drawn, np.array([float(a == 0) for a in drawn]), [n // 200 for n in range(20_000)])
    assert found.share == pytest.approx(0.5, abs=0.054)


@pytest.mark.parametrize("answers", [2, 3, 5])
def test_soundness_of_guesses_among_few_answers(answers: int) -> None:
    """A fifth is sound, the rest ends at one of a few answers, all as likely: 0.2 / (0.2 + 0.8 / answers) is sound. With 40,000
    drawn the shares of right and wrong answers move by 0.0025, and the estimate by less than 0.02 (four sigma)."""
    rng, found = random.Random(1), Soundness()
    drawn = [0 if rng.random() < 0.2 else rng.randrange(answers) for _ in range(40_000)]
    found.update(drawn, np.array([float(a == 0) for a in drawn]), [n // 200 for n in range(40_000)])
    assert found.share == pytest.approx(0.2 / (0.2 + 0.8 / answers), abs=0.02)


def test_soundness_is_too_high_where_luck_prefers_the_right_answer() -> None:
    """What the estimate assumes: no solution is sound here, but three in ten end at the right answer, the rest at one of 99
    others each as often. The estimate is 1 - 0.7 / 99 / 0.3 = 0.976, and 0 is true."""
    rng, found = random.Random(0), Soundness()
    drawn = [0 if rng.random() < 0.3 else rng.randrange(1, 100) for _ in range(20_000)]
    found.update(drawn, np.array([float(a == 0) for a in drawn]), [n // 200 for n in range(20_000)])
    assert found.share == pytest.approx(0.976, abs=0.005)


@pytest.mark.parametrize("piece", ["step_credit", "corruptions"])
def test_soundness_is_estimated_where_it_is_used_with_or_without_pairs(piece: str) -> None:
    for pool in (0, 64):
        p = plan(**OFF | {piece: ON[piece], "pool": pool})
        one = ctx(p)
        rollouts = p.recipe.rollout(one)
        p.recipe.credit(one, rollouts)
        solutions = rollouts.of("generator")
        own = p.recipe.state["soundness"]
        assert own["right"] == (solutions.correct == 1).sum() and own["wrong"] > 0 and own["pairs"] > 0
    unused = plan(**OFF | {piece: ON[piece], "soundness": False}), plan(**OFF | {"pool": 64})
    for p in unused:
        one = ctx(p)
        p.recipe.credit(one, p.recipe.rollout(one))
        assert "soundness" not in p.recipe.state


def test_answers_are_compared_within_their_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grader is asked about a limited number of pairs: over a whole turn it would be used up by those of other problems."""
    counts, group = list[int](), Chain.group_equal_answers

    def count(self: Chain, answers: Sequence[str | None]) -> list[int | None]:
        counts.append(len(answers))
        return group(self, answers)

    monkeypatch.setattr(Chain, "group_equal_answers", count)
    p = plan()
    one = ctx(p)
    p.recipe.credit(one, p.recipe.rollout(one))
    assert counts == [p.config.batch.rollouts] * p.config.batch.problems


def test_skill_by_hand() -> None:
    skill = Skill(0.5)
    assert skill.factor == 0.0
    skill.update([True, False, None], np.array([1, 1, NAN]))
    assert skill.factor == 0.0, "it was never seen on wrong ones"
    skill.update([False, False, None], np.array([0, 0, 0]))
    assert skill.factor == pytest.approx(0.5 + 2 / 3 - 1)
    skill.update([True], np.array([1.0]))
    assert skill.right == pytest.approx(0.75)
    skill.update([True] * 4, np.array([0.0] * 4))
    assert skill.factor == pytest.approx(0.75 + 1 / 3 - 1)
    assert Skill(right=0.2, wrong=0.3).factor == 0.0


def test_alpha_is_the_skill_and_not_the_progress() -> None:
    recipe = plan(alpha=0.4).recipe
    assert isinstance(recipe, TangoBalanced)
    recipe.state["skill"] = {"right": 0.9, "wrong": 0.6}
    assert recipe.compute_alpha(0.0) == recipe.compute_alpha(1.0) == pytest.approx(0.2)
    assert plan(alpha=0.4, gate=False).recipe.compute_alpha(0.0) == pytest.approx(0.4)  # type: ignore[attr-defined]


# The pool.


def drawn(pool: PairPool, count: int, replay: float) -> list[str]:
    return [str(right["problem"]) for right, _ in pool.draw(count, replay, random.Random(0))]


def test_the_pool_is_bounded_and_replays_a_share_of_old_pairs() -> None:
    def named(*problems: str) -> list[tuple[Labelled, Labelled]]:
        made = [make_rollout(1, 1, problem=problem) for problem in problems]
        return [(Labelled(t, end=1.0), Labelled(t, end=0.0)) for t in made]

    pool = PairPool(5)
    pool.add(named("a", "b", "c"))
    assert pool.fresh == 3 and len(drawn(pool, 2, 0.5)) == 2 and len(drawn(pool, 9, 0.5)) == 3
    pool.fresh = 0
    pool.add(named("d", "e", "f"))
    assert [right["problem"] for right, _ in pool.pairs] == ["b", "c", "d", "e", "f"] and pool.fresh == 3
    assert len({*drawn(pool, 4, 0.25)} & {"b", "c"}) == 1, "a quarter of four is old"
    assert {*drawn(pool, 4, 0.0)} > {"d", "e", "f"}, "the old fill up"
    assert {*drawn(pool, 4, 1.0)} > {"b", "c"}, "and so do the new"
    pool.add(named(*"ghijkl"))
    assert pool.fresh == 5


def test_pairs_and_contrasts_of_real_solutions() -> None:
    one = ctx(plan())
    solutions = one.ask("generator", one.problems(16), 6)
    found = find_pairs(one, solutions)
    both = [p for p in {t.problem.id for t in solutions} if {t.correct for t in solutions if t.problem.id == p} == {0.0, 1.0}]
    assert len(found) == len(both) > 2
    for right, wrong in found:
        assert right.solution.problem.id == wrong.solution.problem.id and (right.end, wrong.end) == (1.0, 0.0)
        assert (right.solution.correct, wrong.solution.correct) == (1.0, 0.0)
    contrasts = find_contrasts(one, solutions, 5)
    assert len(contrasts) == 5
    for kept, flawed in contrasts:
        before = kept.solution.solution.steps[:-1]
        assert flawed.solution.solution.steps[:-1] == before and len(kept.steps) == len(before) + 1
        assert kept.solution.solution.steps[-1] != flawed.solution.solution.steps[-1]
        assert list(flawed.steps) == [1.0] * len(before) + [0.0] and set(kept.steps) == {1.0}
        assert np.isnan(kept.end) and np.isnan(flawed.end)
        steps = kept.solution.solution.steps
        whole = [t for t in solutions if t.correct == 1.0 and t.solution.steps[: len(steps)] == steps]
        assert whole, "it is the beginning of a right solution"
        for side in (kept.solution, flawed.solution):  # closed as solutions are, by a result that it does not hide
            assert side.parsed.is_valid and side.solution.answer == side.solution.steps[-1].partition("=")[2]


def test_a_step_too_many_is_not_corrupted() -> None:
    """An answer may be right behind more steps than the problem has operations."""
    one = ctx(plan())
    (problem,) = one.problems(1)
    shown = one.task.demonstrate(problem, random.Random(0))
    long = write_solution(one, problem, [*shown.steps, "1+1=2"], shown.answer)
    assert long.correct == 1.0 and len(long.solution.steps) == 3
    for family in one.task.families:
        assert one.task.corrupt_step(problem, long.solution.steps, 2, family, random.Random(0)) is None
        assert one.task.corrupt_step(problem, long.solution.steps, 1, family, random.Random(0)) is not None
    found = [find_contrasts(replace(one, turn=turn), Rollouts([long]), 1) for turn in range(12)]
    assert {len(pairs) for pairs in found} == {0, 1}
    assert {len(kept.steps) for pairs in found for kept, _ in pairs} == {1, 2}


def test_a_contrast_is_never_the_same_text_twice() -> None:
    """A right answer may have a wrong step, and a corruption may write the very same."""
    one = ctx(plan())
    (problem,) = one.problems(1)
    shown = one.task.demonstrate(problem, random.Random(0))
    wrong = one.task.corrupt_step(problem, shown.steps, 0, "sign_flip", random.Random(0))
    assert wrong is not None
    unsound = write_solution(one, problem, [wrong, *shown.steps[1:]], shown.answer)
    assert unsound.correct == 1.0
    found = [pair for turn in range(60) for pair in find_contrasts(replace(one, turn=turn), Rollouts([unsound]), 1)]
    assert 30 < len(found) < 60, "those that were the same are left out"
    assert all(kept.solution.text != flawed.solution.text for kept, flawed in found)


def test_a_verifier_turn_is_about_pairs_and_contrasts() -> None:
    p = plan()
    recipe = p.recipe
    assert isinstance(recipe, TangoBalanced)
    first = ctx(p, "verifier")
    rollouts = recipe.rollout(first)
    targets = rollouts.of("verifier").targets
    contrasts = [t for t in targets if is_contrast(t)]
    pairs = [t for t in targets if not is_contrast(t)]
    assert len(contrasts) == 2 and len(targets) == 4
    assert sorted(t.correct for t in pairs) == [0.0, 1.0] and len({t.problem.id for t in pairs}) == 1
    assert label_steps(contrasts[1], 0.5, False).labels[-1] == 0.0
    assert np.isnan(label_steps(pairs[0], 0.5, False).labels).all()
    (taught,) = recipe.credit(first, rollouts)
    assert taught.sources == {"answers": 0.5, "construction": 0.5}
    assert (taught.notes["contrasts"], taught.notes["targets"]) == (0.5, 4.0) and "soundness" in taught.notes
    assert any(array.any() for array in taught.advantages or [])
    assert recipe.state["pairs"]["fresh"] == 0


def test_contrasts_are_credited_alike_whatever_other_steps_are_worth() -> None:
    one, other = plan(step_credit=0.0), plan(step_credit=0.05)
    first = ctx(one, "verifier")
    rollouts = one.recipe.rollout(first)
    other.recipe.state = copy.deepcopy(one.recipe.state)
    both = [p.recipe.credit(ctx(p, "verifier"), rollouts)[0].advantages or [] for p in (one, other)]
    made = [is_contrast(check.target) for check in rollouts.of("verifier")]
    assert any(made) and any(not alike for alike in made)
    for is_made, a, b in zip(made, *both, strict=True):
        assert not is_made or np.array_equal(a, b)


def test_checks_of_contrasts_can_be_read() -> None:
    """A verifier that has only seen whole solutions stumbles over one that breaks off: then half of the checks were lost."""
    one = ctx(plan())
    contrasts = find_contrasts(one, one.ask("generator", one.problems(24), 4), 16)
    closed = Rollouts([side.solution for pair in contrasts for side in pair])
    text = {t.id: t.text.rpartition("#")[0] for t in closed}
    solver = one.role("generator")
    cut = Rollouts([Rollout.from_text(t.id, t.agent, t.problem, text[t.id], solver.parse(text[t.id], None)) for t in closed])
    unread = [sum(not check.parsed.is_valid for check in one.ask("verifier", targets, 2)) for targets in (closed, cut)]
    assert len(closed) > 20 and 2 * unread[0] < unread[1]


def test_what_generator_turns_graded_is_used_without_new_solutions() -> None:
    p = plan()
    recipe = p.recipe
    one = ctx(p, "generator")
    recipe.credit(one, recipe.rollout(one))
    assert recipe.state["pairs"]["fresh"] > 0 and recipe.state["skill"]["wrong"] is not None
    again = recipe.rollout(ctx(p, "verifier", 2))
    assert not again.of("generator") and len(again.of("verifier")) == 4 * p.config.batch.rollouts


def test_without_any_pair_one_solution_of_each_problem_is_judged() -> None:
    p = plan(corruptions=0.0)
    recipe = p.recipe
    assert isinstance(recipe, TangoBalanced)
    one = ctx(p, "verifier")
    solutions = one.ask("generator", one.problems(4), 2)
    found = recipe.draw_targets(one, solutions)
    assert [t.id for t in found] == [t.id for t in solutions][::2]


def test_few_pairs_are_filled_up_with_the_solutions_that_were_sampled() -> None:
    p = plan(corruptions=0.0)
    recipe = p.recipe
    assert isinstance(recipe, TangoBalanced)
    one = ctx(p, "verifier")
    solutions = one.ask("generator", one.problems(4), 2)
    pool = PairPool(64)
    pool.add([(Labelled(solutions[2], end=1.0), Labelled(solutions[3], end=0.0))])
    recipe.state["pairs"] = {"pairs": pool.pairs, "fresh": pool.fresh}
    found = recipe.draw_targets(one, solutions)
    assert [t.text for t in found[:2]] == [solutions[2].text, solutions[3].text]
    assert [t.id for t in found[2:]] == [solutions[0].id, solutions[4].id], "of problems that no pair is about"
    assert len(recipe.draw_targets(one, Rollouts([]))) == 2, "nothing was sampled"


# Measured.


def test_the_verifier_is_measured_on_the_first_generator() -> None:
    """Before the first update it is the live generator; with the same keys, its solutions are the same ones."""
    p = plan(measured=6)
    one = ctx(p, "", turn=0)
    held_out = Context(one.run, "eval/more", "", split="dev")
    found = p.recipe.measure(held_out)
    again = Context(one.run, "eval/more", "", split="dev")
    solutions = again.ask("generator", again.problems(6), START_SAMPLES)
    assert len(solutions) == 24 and len(set(solutions.problem_ids)) == 6
    live = judge_metrics(again.ask("verifier", solutions))
    assert found == {name: live[name.removeprefix("verifier/start_")] for name in ON_START}
    assert found["verifier/start_soft_auroc"] is not None
    assert plan(measured=0).recipe.measure(held_out) == {}


def test_no_held_out_problem_is_measured_twice(tmp_path: Path) -> None:
    rows = [json.dumps({"question": f"{n}+1", "answer": str(n + 1)}) for n in range(30)]
    (tmp_path / "sums.jsonl").write_text("\n".join(rows))
    p = plan(measured=6)
    task = make_task({"name": "jsonl", "path": str(tmp_path / "sums.jsonl"), "dev": 3, "max_tokens": 16})
    one = Context(replace(ctx(p).run, task=task), "eval/more", "", split="dev")
    p.recipe.measure(one)
    assert (task.size("dev"), one.drawn) == (3, 3)


# Sequential.


def test_sequential_trains_the_verifier_first_and_freezes_it_then() -> None:
    p = resolve([{"recipe": "sequential", "options": {"warmup": 2}}])
    phases = [p.schedule.get_phase(number) for number in range(4)]
    assert [(phase.learner, phase.turns) for phase in phases if phase] == [("verifier", 2), *[("generator", 1)] * 3]
    assert p.schedule.count_turns_until("generator", 5) == 7
    with pytest.raises(ConfigError, match="n_verifier"):
        resolve([{"recipe": "sequential", "options": {"n_verifier": 1}}])
    tango = resolve([{"recipe": "tango"}]).schedule.count_turns_until("generator", 30)
    assert tango is not None and resolve([{"recipe": "sequential"}]).recipe.options.warmup == tango - 30  # type: ignore[attr-defined]


def test_the_claim_trains_the_verifier_of_every_arm_for_as_many_turns() -> None:
    def count(arm: str) -> int:
        name, _, options = arm.partition(":")
        chosen = dict(part.split("=") for part in options.split(",") if part)
        schedule = resolve(
            [{"recipe": name}, {"options": {"warmup": int(chosen["options.warmup"])} if chosen else {}}]
        ).schedule
        turns = schedule.count_turns_until("generator", CLAIM.turns)
        assert turns is not None
        return turns - CLAIM.turns

    judged = [arm for arm in (*CLAIM.arms, *CLAIM.more) if arm != "grpo"]
    assert len(judged) == 3 and {count(arm) for arm in judged} == {13}


# The study.


def test_the_study_is_one_and_its_table_is_of_its_runs() -> None:
    root = Path(__file__).parents[1]
    arms = read_studies([root / "docs" / "results" / "tango_balanced" / "study.toml"], {})
    switched = {name for arm in arms for name, value in arm.asked.get("options", {}).items() if OFF.get(name, value) == value}
    assert set(OFF) <= switched and {arm.asked["task"]["ops"] for arm in arms} == {6, 10}
    script = runpy.run_path(str(root / "scripts" / "study_table.py"))

    def line(name: str, hash: str, end: float, finished: bool = True) -> dict[str, Any]:
        first, last = {"eval/verifier/f1": 0.5}, {"eval/verifier/f1": end, "compute/tokens": 2e6}
        return {"name": name, "hash": hash, "finished": finished, "first": first, "last": last}

    runs = [line("a-0/x/seed-0", "x", 0.7), line("a-1/x/seed-1", "x", 0.4), line("a-0/y/seed-0", "y", 0.9, False)]
    head, _, *rows = script["write_table"](runs, ["verifier/f1", "verifier/auroc"])
    assert head == "| arm | seeds | verifier/f1 | verifier/auroc | tokens |"
    assert rows == ["| a-0/x | 2 | 0.50 → 0.55 (1/2) | – | 2.00M |"]
    # One of the seeds has no start: neither its end nor its place in the count says anything of a change.
    runs[0]["first"] = {}
    assert list(script["write_table"](runs, ["verifier/f1"]))[2] == "| a-0/x | 2 | 0.50 → 0.40 (0/1) | 2.00M |"
    runs[1]["last"] = {"compute/tokens": 2e6}
    assert list(script["write_table"](runs, ["verifier/f1"]))[2] == "| a-0/x | 2 | – | 2.00M |"


def make_run(seed: int, end: float | None, **options: Any) -> dict[str, Any]:
    """A finished run of block a with these options that ended so; None: nothing was measured."""
    name, last = ",".join(f"{key}={value}" for key, value in options.items()), None if end is None else {"eval/f1": end}
    settings = {"options": options, "turns": 2}
    return {"name": f"a/{name}/seed-{seed}", "seed": seed, "settings": settings, "finished": True, "last": last}


def test_effects_of_settings_that_were_switched_together() -> None:
    """Two seeds with all four combinations: of pool 0.2 and 0.4, of step_credit 0.1 in both; a third that misses one."""
    script = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "study_table.py"))

    def run(seed: int, pool: int, credit: float, end: float | None) -> dict[str, Any]:
        return make_run(seed, end, pool=pool, step_credit=credit)

    runs = [run(s, p, c, (0.2 + 0.2 * s) * (p > 0) + 0.1 * c + 0.3) for s in (0, 1) for p in (0, 256) for c in (0.0, 1.0)]
    head, _, row = script["write_effects"]([*runs, run(2, 0, 0.0, 0.9)], ["f1"])
    assert head == "| block | metric | seeds | all low | `options.pool` | `options.step_credit` |"
    # 0.3 +- 0.1 * 12.706 for two values.
    assert row == "| a | `f1` | 2 | 0.300 | +0.300 [-0.971, +1.571] | **+0.100 [+0.100, +0.100]** |"
    # Seeds of which a run is at work, was not measured, or has not this metric, are left out too.
    more = [run(seed, pool, credit, 0.9) for seed in (2, 3, 4) for pool in (0, 256) for credit in (0.0, 1.0)]
    more[0] |= {"finished": False, "last": None}
    more[4]["last"], more[8]["last"] = None, {}
    assert list(script["write_effects"]([*more, *runs], ["f1"]))[2] == row


def test_settings_may_be_lists() -> None:
    script = runpy.run_path(str(Path(__file__).parents[1] / "scripts" / "study_table.py"))
    runs = [make_run(0, 0.1 * (len(sizes) + pool), pool=pool, sizes=sizes) for sizes in ([8, 4], [8]) for pool in (0, 1)]
    row = list(script["write_effects"](runs, ["f1"]))[2]
    assert row == "| a | `f1` | 1 | 0.100 | +0.100 | +0.100 |"


FOUR = [make_run(0, 0.5, pool=pool, gate=gate) for pool in (0, 256) for gate in (False, True)]


@pytest.mark.parametrize(
    ("runs", "said"),
    [
        ([], "no run has begun"),
        ([make_run(seed, 0.5, pool=0) for seed in (0, 1)], "no setting has two values among the runs of block a"),
        (
            [make_run(0, 0.5, pool=pool, step_credit=credit) for credit in (0.0, 0.5, 1.0) for pool in (0, 256)],
            "a/pool=0,step_credit=0.0/seed-0 and a/pool=0,step_credit=0.5/seed-0 have the same seed and differ in "
            "options.step_credit, not only in options.pool",
        ),
        (  # one of three values at each of two levels: what it does would be taken for the effect of the pool
            [make_run(0, 0.5, pool=0, ema=0.1), make_run(0, 0.5, pool=1, ema=0.2), make_run(1, 0.5, pool=0, ema=0.3)],
            "differ in options.ema, not only in options.pool",
        ),
        ([*FOUR, make_run(0, 0.9, pool=0, gate=True)], "have the same seed and settings"),
        ([make_run(0, 0.5), make_run(0, 0.6, pool=256)], "options.pool has no low and high value: it is unset and 256"),
        ([make_run(0, 0.5, pool="all"), make_run(0, 0.6, pool=1)], "options.pool has no low and high value: it is 'all' and 1"),
    ],
)
def test_effects_that_cannot_be_told_are_refused_in_one_line(
    runs: list[dict[str, Any]], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is printed before."""
    script = Path(__file__).parents[1] / "scripts" / "study_table.py"
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))
    monkeypatch.setattr("sys.argv", [str(script), str(tmp_path), "--effects", "f1"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(script), run_name="__main__")
    out, err = capsys.readouterr()
    assert out == "" and said in err.splitlines()[-1]


# The whole.


def test_with_all_pieces_off_it_is_tango_to_the_bit(tmp_path: Path) -> None:
    own = {"warmup": 1, "n_generator": 1}
    found = learned("tango_balanced", 2, MOVING | {"options": own | OFF}, tmp_path / "off")
    assert found == learned("tango", 2, MOVING | {"options": own}, tmp_path / "tango")
    assert found != learned("tango_balanced", 2, MOVING | {"options": own | ON}, tmp_path / "on")
    assert issubclass(TangoBalanced, Tango)


@pytest.mark.parametrize("piece", ["soft", "class_weights", "pool", "step_credit", "corruptions", "gate"])
def test_each_piece_changes_something(piece: str, tmp_path: Path) -> None:
    own: dict[str, Any] = {"warmup": 1, "n_generator": 1}
    alone = own | OFF | {piece: ON[piece]}
    found = learned("tango_balanced", 2, MOVING | {"options": alone}, tmp_path / "piece")
    assert found != learned("tango_balanced", 2, MOVING | {"options": own | OFF}, tmp_path / "off")


def test_a_run_goes_on_in_the_same_bits(tmp_path: Path) -> None:
    assert same_after_a_cut("tango_balanced", 2, MOVING | {"options": OPTIONS}, tmp_path / "run")
