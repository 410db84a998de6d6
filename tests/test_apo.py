"""APO: terms that do not dilute each other, pairs, halves of the problems, rounds, and the two losses by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import FAST, TINY
from helpers import PROPERTY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import mark_best_rows, term_weights
from milonga.objectives import make_objective
from milonga.objectives.losses import Denominators, Rows, compute_pair_loss
from milonga.patterns.preference_pairs import align_pairs, assign_learner, is_cut_prose, make_human_pair, write_solution
from milonga.resolve import Plan, resolve
from milonga.roles import StepSolver
from milonga.runfolder.files import JsonLines
from milonga.systems.apo.recipe import Apo
from milonga.types import Rollouts, TrainBatch


@cache
def engine() -> Any:
    return make_engine(plan())


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "apo"}, TINY, settings])


def ctx(p: Plan, turn: int = 1, learner: str = "verifier") -> Context:
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), turn, learner)


def train_batch(p: Plan, learner: str = "verifier") -> tuple[TrainBatch, Rollouts]:
    one = ctx(p, learner=learner)
    rollouts = p.recipe.rollout(one)
    (made,) = p.recipe.credit(one, rollouts)
    return made, rollouts


def names(rollouts: Rollouts) -> set[str]:
    return {t.id for t in rollouts}


# The loss of the reward model.


def reward_loss(kinds: Sequence[str], margins: Sequence[float], factors: dict[str, float], how: str = "ranking") -> float:
    """As the learner has it: two rows for each pair, weighed, divided by all pairs."""
    loss = make_objective("bradley_terry", {"pair_loss": how}).loss
    weights = term_weights([kind for kind in kinds for _ in range(2)], factors)
    scores = torch.tensor([side for margin in margins for side in (margin, 0.0)])
    pairs = torch.tensor([(2 * i, 2 * i + 1) for i in range(len(kinds))])
    rows = Rows(torch.ones(len(scores)), weights=torch.tensor(weights), pairs=pairs)
    return float(compute_pair_loss(loss, scores, rows, Denominators(1, len(scores), len(kinds)))[0])


FACTORS = {"human": 1.0, "own": 0.1}


def test_equal_scores_cost_log_two() -> None:
    assert reward_loss(["human"], [0.0], FACTORS) == pytest.approx(math.log(2))
    assert reward_loss(["human", "own", "own"], [0.0, 0.0, 0.0], FACTORS) == pytest.approx(1.1 * math.log(2))


def test_pairs_of_the_other_kind_do_not_change_a_term() -> None:
    """The trap of the public code, where both terms are divided by all pairs: each shrinks with the other's share."""
    human = reward_loss(["human", "human"], [0.5, -1.0], FACTORS)
    for others in (1, 3, 17):
        own = reward_loss(["own"] * others, [0.3] * others, FACTORS)
        together = reward_loss(["human", "human"] + ["own"] * others, [0.5, -1.0] + [0.3] * others, FACTORS)
        assert together == pytest.approx(human + own)
        assert own == pytest.approx(0.1 * math.log(1 + math.exp(-0.3)))


def test_a_quarter_of_the_weight_for_each_of_four_samples_is_the_whole_for_their_mean() -> None:
    """(c_a / 4) * sum over j of the mean over prompts, with margins of two prompts by four samples."""
    margins = np.array([[0.1, -0.2, 0.7, 1.5], [0.0, 2.0, -1.0, 0.4]])
    expected = 0.1 / 4 * sum(np.log1p(np.exp(-margins[:, j])).mean() for j in range(4))
    assert reward_loss(["own"] * 8, margins.ravel().tolist(), FACTORS) == pytest.approx(expected, rel=1e-5)


@PROPERTY
@given(st.floats(-5, 5))
def test_the_gradient_of_the_difference_is_constant(margin: float) -> None:
    scores = torch.tensor([margin, 0.0], requires_grad=True)
    rows = Rows(torch.ones(2), pairs=torch.tensor([(0, 1)]))
    loss = make_objective("bradley_terry", {"pair_loss": "difference"}).loss
    compute_pair_loss(loss, scores, rows, Denominators(1, 2, 1))[0].backward()  # type: ignore[no-untyped-call]
    assert scores.grad is not None and scores.grad.tolist() == [-1.0, 1.0]


# Selection.


def test_the_best_of_each_problem_by_hand() -> None:
    scores = [0.2, 0.9, 0.9, float("nan"), 0.1, float("nan")]
    groups = ["a", "a", "a", "b", "b", "c"]
    assert mark_best_rows(scores, groups).tolist() == [False, True, False, False, True, False]
    assert mark_best_rows(-np.array(scores), groups).tolist() == [True, False, False, False, True, False]


@PROPERTY
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 1)), min_size=1, max_size=20))
def test_every_problem_has_one_best(rows: list[tuple[str, float]]) -> None:
    groups, scores = [g for g, _ in rows], [s for _, s in rows]
    best = mark_best_rows(scores, groups)
    for group in set(groups):
        members = [i for i, g in enumerate(groups) if g == group]
        chosen = [i for i in members if best[i]]
        assert len(chosen) == 1 and scores[chosen[0]] == max(scores[i] for i in members)


# Pairs.


def test_human_pairs_slip_where_they_should_and_flip_as_often_as_they_should() -> None:
    p = plan(task={"name": "chain", "ops": 4})
    one = ctx(p)
    flipped = total = late = 0
    for problem in one.problems(400):
        pair = make_human_pair(one, problem, "first", 0.15)
        if pair is None:
            continue
        good, bad = pair if pair[0].correct == 1.0 else pair[::-1]
        assert good.correct == 1.0 and bad.correct == 0.0
        assert good.grade is not None and bad.grade is not None
        assert all(good.grade.steps or ()) and bad.grade.first_error == 0
        flipped += pair[0] is bad
        total += 1
        anywhere = make_human_pair(one, problem, "any")
        late += anywhere is not None and anywhere[1].grade is not None and (anywhere[1].grade.first_error or 0) > 0
    assert total > 300 and 0.10 < flipped / total < 0.20 and late > 100


def test_winners_and_losers_stand_side_by_side_and_a_pair_is_whole_or_not_there() -> None:
    p = plan()
    one = ctx(p)
    first, second = one.problems(2)
    golds = [write_solution(one, problem, set(), "gold") for problem in (first, second)]
    wrongs = [write_solution(one, problem, {0}, "bad") for problem in (first, second)]
    rows = one.write("verifier", [golds[0], wrongs[0], golds[1]], [t.text for t in (golds[0], wrongs[0], golds[1])])
    pairs = [("own", golds[0], wrongs[0]), ("own", golds[1], wrongs[1]), ("human", golds[0], wrongs[0])]
    found, kept = align_pairs(rows, pairs)
    assert [t.target.id for t in found] == [golds[0].id, wrongs[0].id] * 2
    assert kept == [pairs[0], pairs[2]]


def test_the_train_batch_of_the_reward_model() -> None:
    p = plan(batch={"problems": 8, "rollouts": 4})
    made, own = train_batch(p)
    assert made.labels is not None and made.units is not None and made.weights is not None
    wrong = [t for t in own if t.correct != 1.0]
    kinds = ["own" if loser.target.id in names(own) else "human" for loser in made.rollouts.items[1::2]]
    assert kinds.count("own") == len(wrong) < len(own)
    assert made.labels == [1.0, 0.0] * len(kinds) and made.units == [n // 2 for n in range(len(made.rollouts))]
    # Each term carries its factor, whatever the number of its pairs.
    sums = {
        kind: sum(w for w, k in zip(made.weights[::2], kinds, strict=True) if k == kind) / len(kinds) for kind in set(kinds)
    }
    assert sums == pytest.approx({"human": 1.0, "own": 0.1})
    for number, kind in enumerate(kinds):
        winner, loser = made.rollouts[2 * number].target, made.rollouts[2 * number + 1].target
        assert winner.problem.id == loser.problem.id
        if kind == "own":
            assert winner.correct == 1.0 and loser.correct == 0.0
            # Gold is written as the solver writes: nothing but the work tells them apart.
            assert winner.parsed.is_valid and winner.text.count("\n") == len(winner.parsed.value.steps)


def test_an_own_answer_that_was_cut_does_not_lose_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    p = plan(options={"drop_correct": False}, batch={"problems": 8, "rollouts": 4})
    one = ctx(p)
    own = Rollouts(replace(t, finish="length" if row % 4 else "eos") for row, t in enumerate(p.recipe.rollout(one)))
    plain: Any = SimpleNamespace(role=lambda _: StepSolver("plain"))
    monkeypatch.setattr("milonga.systems.apo.recipe.is_cut_prose", lambda _, t: is_cut_prose(plain, t))
    (made,) = p.recipe.credit(one, own)
    assert {t.target.id for t in made.rollouts} & names(own) == names(own[::4])
    assert not any(is_cut_prose(one, t) for t in own), "the terse grammar has its own way"


def test_right_own_answers_lose_only_if_asked_for() -> None:
    made, own = train_batch(plan(options={"drop_correct": False, "human_weight": 0.0}, batch={"problems": 8, "rollouts": 4}))
    losers = [t.target for t in made.rollouts[1::2] if t.target.id in names(own)]
    assert len(losers) == len(own) and made.notes["dropped_correct"] == 0.0
    assert made.sources == {"answers": 0.0, "demonstrations": 1.0}


def test_a_reward_model_of_human_pairs_never_sees_the_policy() -> None:
    for rm in ("human", "fixed"):
        made, own = train_batch(plan(options={"rm": rm}))
        assert not any(t.target.id in names(own) for t in made.rollouts)
        assert made.sources == {"answers": 1.0, "demonstrations": 0.0}


def test_gold_may_be_what_people_preferred() -> None:
    made, own = train_batch(plan(options={"gold_source": "human_chosen", "flip": 0.5}, batch={"problems": 16, "rollouts": 4}))
    golds = [
        made.rollouts[2 * n].target for n in range(len(made.rollouts) // 2) if made.rollouts[2 * n + 1].target.id in names(own)
    ]
    assert {gold.correct for gold in golds} == {0.0, 1.0}  # people are wrong, and so is what they chose


# Who learns from what, and when.


@PROPERTY
@given(st.text(max_size=20))
def test_a_problem_belongs_to_one_half(text: str) -> None:
    assert assign_learner(text) in ("generator", "verifier") and assign_learner(text) == assign_learner(text)


def test_the_two_learn_on_different_problems() -> None:
    p = plan(batch={"problems": 16})
    assert isinstance(p.recipe, Apo)
    seen = {learner: {q.text for q in p.recipe.draw_problems(ctx(p, learner=learner))} for learner in ("generator", "verifier")}
    assert all(len(texts) == 16 for texts in seen.values()) and not seen["generator"] & seen["verifier"]


def test_the_policy_learns_the_best_by_the_reward_model() -> None:
    made, rollouts = train_batch(plan(), "generator")
    assert made.weights is not None and len(made.rollouts) == len(rollouts) == 16
    assert [w > 0 for w in made.weights] == mark_best_rows(scores_of(rollouts), rollouts.problem_ids).tolist()
    assert sum(w > 0 for w in made.weights) == 4 and made.sources == {"verifier": 1.0}


def scores_of(rollouts: Rollouts) -> list[float]:
    p = plan()
    judged = ctx(p, learner="generator").judge("verifier", rollouts)
    return [t.parsed.value.rank for t in judged]


def test_dpo_prefers_the_best_to_the_worst() -> None:
    p = plan(policies={"generator": {"objective": {"preset": "dpo"}}})
    engine().learn(train_batch(p)[0])  # a head that has learned nothing says the same of all
    made, rollouts = train_batch(p, "generator")
    scores = dict(zip([t.id for t in rollouts], scores_of(rollouts), strict=True))
    assert made.labels is not None and made.units is not None and len(made.rollouts) == 8
    for unit in set(made.units):
        pair = [(t, label) for t, label, u in zip(made.rollouts, made.labels, made.units, strict=True) if u == unit]
        (winner, _), (loser, _) = sorted(pair, key=lambda side: -side[1])
        group = [scores[t.id] for t in rollouts if t.problem.id == winner.problem.id]
        assert winner.problem.id == loser.problem.id
        assert (scores[winner.id], scores[loser.id]) == (max(group), min(group))


def test_rounds_and_what_the_reward_model_starts_from(tmp_path: Path) -> None:
    settings = TINY | {"options": {"rm_turns": 2, "llm_turns": 1}, "policies": {"generator": FAST, "verifier": FAST}}
    milonga.run("apo", turns=2, out=tmp_path / "run", settings=settings, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[1:]
    assert [row["learner"] for row in rows] == ["verifier", "verifier", "generator"] * 2
    assert all(row[f"learn/{row['learner']}/grad_norm"] > 0 for row in rows)
    assert {"eval/verifier/human_accuracy", "eval/verifier/length_alone", "eval/generator/late_errors"} <= set(rows[-1])


@pytest.mark.parametrize(("restart", "anew"), [("base", True), ("continue", False)])
def test_a_round_starts_the_reward_model_anew_unless_told_otherwise(restart: str, anew: bool) -> None:
    schedule = plan(options={"rm_restart": restart}).recipe.schedule()
    assert [phase.learner for phase in schedule.cycle] == ["verifier", "generator"]
    assert bool(schedule.cycle[0].enter) == anew
    fixed = plan(options={"rm": "fixed"}).recipe.schedule()
    assert [p.learner for p in fixed.intro] == ["verifier"] and [p.learner for p in fixed.cycle] == ["generator"]


def test_own_answers_are_those_of_the_policy_as_it_is_now() -> None:
    p = plan()
    engine().publish("generator")
    made, own = train_batch(p)
    assert {t.segments[-1].version for t in own} == {engine().version("generator")}
    assert any(t.target.id in names(own) for t in made.rollouts)
