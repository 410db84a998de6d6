"""V-STaR: its pool and its pairs, who starts from where, likelihood as a rank, and best of k by the formula."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.engine.local import LocalEngine
from milonga.errors import ConfigError
from milonga.evals.subsets import best_of_n_accuracy
from milonga.resolve import Plan, resolve
from milonga.roles import ImplicitScorer
from milonga.roles.scorer import RankBy
from milonga.systems.v_star.recipe import VStar, correlation, drop_duplicates
from milonga.tasks.base import normalise_text
from milonga.types import Rollouts
from short import short_loop

# Best of k, as the paper reports it.


def test_best_of_k_by_hand() -> None:
    ranks, right = [4.0, 3.0, 2.0, 1.0], [1.0, 0.0, 1.0, 0.0]
    assert [best_of_n_accuracy(ranks, right, k) for k in (1, 2, 3, 4)] == pytest.approx([1 / 2, 2 / 3, 3 / 4, 1])


@pytest.mark.parametrize("rounded", [False, True])
def test_best_of_k_is_what_drawing_at_random_gives(rounded: bool) -> None:
    rng = np.random.default_rng(3)
    ranks, right = rng.random(20), rng.integers(0, 2, 20).astype(float)
    ranks = np.round(ranks * 4) / 4 if rounded else ranks
    drawn = rng.random((40_000, 20)).argpartition(5, axis=1)[:, :5]
    keys = ranks[drawn] + 1e-9 * rng.random(drawn.shape)  # ties by the toss of a coin
    best = drawn[np.arange(len(drawn)), keys.argmax(1)]
    assert best_of_n_accuracy(ranks.tolist(), right.tolist(), 5) == pytest.approx(right[best].mean(), abs=0.01)


# Likelihood as a rank.


def read(rank: RankBy, logprobs: list[float], ratios: list[float]) -> Any:
    rollout = make_rollout(1, len(logprobs), [len(logprobs)], logprobs=logprobs)
    return ImplicitScorer("terse", 1.0, rank).make_verdict(rollout, np.array([0.0, *ratios])).value


def test_the_rank_is_the_likelihood_and_the_verdict_the_ratio() -> None:
    likely, unlikely = read("loglik", [-0.5, -0.5], [-1.0, -1.0]), read("loglik", [-1.0, -1.0], [2.0, 2.0])
    assert likely.rank > unlikely.rank and (likely.final, unlikely.final) == (False, True)
    assert likely.score == pytest.approx(1 / (1 + math.exp(2))) and likely.surprise == pytest.approx(1.0)
    by_ratio = [read("logratio", *one).rank for one in (([-0.5, -0.5], [-1.0, -1.0]), ([-1.0, -1.0], [2.0, 2.0]))]
    assert by_ratio[0] < by_ratio[1]


def test_likelihood_favours_short_solutions_and_its_mean_does_not() -> None:
    long, short = ([-0.5] * 6, [0.0] * 6), ([-0.6] * 3, [0.0] * 3)
    assert read("loglik", *long).rank < read("loglik", *short).rank
    assert read("mean_loglik", *long).rank > read("mean_loglik", *short).rank


@PROPERTY
@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_however_unlikely_two_solutions_are_their_order_is_kept(one: float, other: float) -> None:
    ranks = [read("loglik", [-value], [0.0]).rank for value in (one, other)]
    assert all(0 < rank <= 1 for rank in ranks)
    if abs(one - other) > 1e-3:
        assert (ranks[0] > ranks[1]) == (one < other)


# The pool and the pairs.


@cache
def engine() -> Any:
    return make_engine(plan())


def plan(**settings: Any) -> Plan:
    return resolve([TINY, {"recipe": "v_star", "batch": {"problems": 8, "rollouts": 8}}, settings])


def ctx(p: Plan, turn: int = 1, phase: str = "collect", learner: str = "generator", **more: Any) -> Context:
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), turn, learner, phase, **more)


def collected(**settings: Any) -> tuple[VStar, Context, Rollouts]:
    p = plan(**settings)
    assert isinstance(p.recipe, VStar)
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    assert list(p.recipe.credit(one, rollouts)) == []
    return p.recipe, one, rollouts


def test_truncated_solutions_are_in_no_pair_and_are_not_imitated() -> None:
    recipe, one, rollouts = collected(sampling={"max_tokens": 4})
    assert {t.finish for t in rollouts} == {"length"}
    assert one.preferences.kept == [] and all(kept["right"] for kept in recipe.state["solutions"])


def test_pairs_are_all_right_against_all_wrong_solutions_of_a_problem_each_once() -> None:
    recipe, one, rollouts = collected(options={"demonstrations": False, "max_pairs": 1000})
    for problem in dict.fromkeys(rollouts.problem_ids):
        mine = [t for t in rollouts if t.problem.id == problem]
        right, wrong = ({normalise_text(t.text) for t in mine if t.correct == label} for label in (1.0, 0.0))
        kept = [
            (normalise_text(p.winner.text), normalise_text(p.loser.text)) for p in one.preferences.kept if p.problem == problem
        ]
        assert sorted(kept) == sorted((a, b) for a in right for b in wrong)
    pool = recipe.state["solutions"]
    assert len(pool) == len({(s["problem"], normalise_text(s["text"])) for s in pool}) < len(rollouts)


def test_few_problems_cannot_have_most_of_the_pairs() -> None:
    _, one, _ = collected(options={"max_pairs": 2})
    counts = [sum(p.problem == name for p in one.preferences.kept) for name in {p.problem for p in one.preferences.kept}]
    assert counts and max(counts) <= 2


def test_the_tasks_own_solutions_are_right_ones() -> None:
    recipe, one, rollouts = collected()
    problems = {t.problem.id for t in rollouts}
    assert {s["problem"] for s in recipe.state["solutions"] if s["right"]} == problems
    without, _, _ = collected(options={"demonstrations": False})
    assert {s["problem"] for s in without.state["solutions"] if s["right"]} <= problems
    assert {p.problem for p in one.preferences.kept} == {t.problem.id for t in rollouts if t.correct == 0.0}


def test_the_generator_learns_the_right_ones_by_the_ids_that_were_sampled() -> None:
    recipe, one, rollouts = collected(options={"demonstrations": False, "rows": 1000})
    (made,) = recipe.credit(ctx(plan(), 2, "train"), Rollouts([]))
    assert made.weights is not None
    right = {t.ids.tobytes() for t in rollouts if t.correct == 1.0}
    assert {t.ids.tobytes() for t, w in zip(made.rollouts, made.weights, strict=True) if w} == right
    sizes = [t.length for t in made.rollouts]
    # The mean over the tokens of the right ones alone, whatever else is in the batch.
    assert sum(w * s for w, s in zip(made.weights, sizes, strict=True)) == pytest.approx(sum(sizes))
    assert made.notes["right"] == pytest.approx(len(right) / len(made.rollouts)) and one.preferences.kept


def test_the_verifier_learns_from_pairs_of_all_rounds() -> None:
    recipe, one, _ = collected(options={"rows": 6})
    later = ctx(plan(), 3, "", "verifier", preferences=one.preferences)
    (made,) = recipe.credit(later, Rollouts([]))
    assert made.policy == "verifier" and made.loss.kind == "dpo" and len(made.rollouts) == 12
    kept = {p.winner.ids for p in one.preferences.kept}
    assert all(tuple(t.ids.tolist()) in kept for t in made.rollouts[::2])


def test_texts_that_differ_in_white_space_alone_are_one() -> None:
    one, other, third = make_rollout(1, 2), make_rollout(1, 2), make_rollout(1, 3)
    one.text, other.text, third.text = "1+1=2\n#2", "1+1=2 #2", "1+1=3\n#3"
    assert drop_duplicates([one, other, third]) == [one, third]


def test_correlation_by_hand() -> None:
    assert correlation([(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]) == pytest.approx(1.0)
    assert correlation([(1.0, 2.0), (1.0, 3.0)]) is None and correlation([]) is None


# Who starts from where.


def test_a_round_trains_the_generator_from_the_base_again(tmp_path: Path) -> None:
    settings = {"options": {"rounds": 2, "train": 1, "rows": 8}, "policies": {"generator": {"lr": 1e-3}}}
    with short_loop("v_star", tmp_path / "run", settings) as loop:
        engine = loop.engine
        assert isinstance(engine, LocalEngine)
        start = engine.policy("generator").clone()
        for _ in range(3):
            loop.run_turn()
        assert not same(engine.policy("generator").clone(), start)
        loop.enter_phase(loop.schedule.intro[3], loop.next_cursor())
        assert same(engine.policy("generator").clone(), start) and same(engine.policy("verifier").clone(), start)


def same(left: list[torch.Tensor], right: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def test_the_verifier_learns_after_the_last_round_alone() -> None:
    schedule = plan(options={"rounds": 3, "collect": 2, "train": 5}).recipe.schedule()
    assert [(p.learner, p.turns) for p in schedule.intro] == [("generator", 2), ("generator", 5)] * 3
    assert [p.learner for p in schedule.cycle] == ["verifier"]
    going_on = plan(options={"restart": "continue"}).recipe.schedule()
    assert not any(p.enter for p in going_on.intro)


def test_a_task_without_worked_solutions_is_refused_unless_they_are_not_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f'{{"question": "What is {n} + {n}?", "answer": "{2 * n}"}}\n' for n in range(60)))
    task = {"task": {"name": "jsonl", "path": str(path)}, "policies": {"generator": {"model": "a/model"}}}
    with pytest.raises(ConfigError, match="needs worked solutions"):
        resolve([TINY | task, {"recipe": "v_star"}])
    assert resolve([TINY | task, {"recipe": "v_star", "options": {"demonstrations": False}}])
