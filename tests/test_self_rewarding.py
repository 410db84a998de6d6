"""Self-Rewarding: one parser of scores, pairs by own points, rounds in which judge and policy move together, and length."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import GRAMMARS, PROPERTY, make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import select_best_worst
from milonga.errors import ConfigError
from milonga.patterns.preference_pairs import BEFORE
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect, StepSolver
from milonga.systems.self_rewarding.recipe import SEED, SelfRewarding, longer_win_rate, mean_points, right_win_metrics
from milonga.systems.self_rewarding.roles import Grader, award_points, parse_points
from milonga.tasks import make_task
from milonga.types import Parsed, Rollout, Rollouts, Solution
from short import short_loop

# The parser.

STRINGS = [
    ("Score: 4", 4.0),
    ("good work\nScore: 3.5", 3.5),
    ("Score: 2\nno, better\nScore: 5", 5.0),
    ("Score:0", 0.0),
    ("Score: 6", None),
    ("Score: -1", None),
    ("Score: four", None),
    ("Score: 4 or 5", None),
    ("I would give it 4", None),
    ("The Score: 4", None),
    ("Score: 3\nScore: none", None),
    ("", None),
]


@pytest.mark.parametrize(("text", "points"), STRINGS)
def test_the_last_score_counts_and_what_is_no_score_is_missing(text: str, points: float | None) -> None:
    found = Grader("tagged").parse(text, solution(0)).value.score
    assert found == (None if points is None else pytest.approx(points / 5))


@pytest.mark.parametrize(("said", "points"), [("=5", 5.0), ("=2.5", 2.5), ("=", None), ("=7", None), ("=+", None), ("5", None)])
def test_terse_points_stand_behind_the_last_mark(said: str, points: float | None) -> None:
    found = Grader("terse").parse(f"7+\n12-\n{said}", solution(2)).value
    assert found.score == (None if points is None else points / 5)
    assert found.steps == (None if points is None else (True, False))


def test_missing_is_never_zero() -> None:
    assert parse_points(None) is None and parse_points("") is None and parse_points("0") == 0.0 and parse_points("nan") is None


def solution(steps: int) -> Rollout:
    read = Parsed(Solution(("s",) * steps, (), "1"), 1.0)
    return Rollout.from_text("solution", "generator", make_rollout(1, 1).problem, "s\n" * steps + "#1", read)


@pytest.mark.parametrize("dialect", GRAMMARS)
@PROPERTY
@given(st.lists(st.booleans(), min_size=1, max_size=6), st.sampled_from([0, 1, 2.5, 4, 5]))
def test_what_is_written_reads_back(dialect: Dialect, marks: list[bool], points: float) -> None:
    grader = Grader(dialect)
    found = grader.parse(grader.write(marks, points, ["12"] * len(marks)), solution(len(marks)))
    assert found.is_valid and found.value.steps == tuple(marks) and found.value.score == pytest.approx(points / 5)
    assert found.value.final == (points >= 4)


def test_points_by_hand() -> None:
    assert [award_points(truth) for truth in ((), (True,), (False,), (True, False), (True,) * 5 + (False,))] == [0, 5, 0, 2, 4]


def test_the_seed_is_balanced_and_as_noisy_as_it_should_be() -> None:
    task, rng = make_task({"name": "chain", "ops": 4}), random.Random(0)
    for noise, low, high in ((0.0, 0.0, 0.0), (0.3, 0.18, 0.32)):
        grader, off, whole = Grader("terse", noise), 0, 0
        for problem in task.draw_problems("train", 0, 400):
            target, text = grader.demonstrate(task, problem, rng)
            assert target is not None and target.grade is not None and target.grade.steps is not None
            value = grader.parse(text, target).value
            off += round(5 * value.score) != award_points(target.grade.steps)
            whole += all(target.grade.steps)
        assert low <= off / 400 <= high and 0.4 < whole / 400 < 0.6


# Pairs.


def test_best_against_worst_by_hand() -> None:
    scores = [3.0, 5.0, 1.0, 5.0, 1.0, 4.0, 4.5, float("nan"), float("nan"), 2.0, 2.0]
    groups = ["a"] * 5 + ["b"] * 3 + ["c"] + ["d"] * 2
    sizes = [9.0, 8.0, 3.0, 5.0, 7.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert select_best_worst(scores, sizes, groups, "best_worst", 1.0) == [(1, 2)]
    assert select_best_worst(scores, sizes, groups, "tier", 1.0) == [
        (3, 4)
    ]  # the shortest of the best, the longest of the worst
    assert select_best_worst(scores, sizes, groups, "best_worst", 0.0) == [(1, 2), (6, 5)]  # equal scores make no pair


@PROPERTY
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=20))
def test_by_tiers_the_winner_is_no_longer_than_by_the_first_seen(rows: list[tuple[str, int, int]]) -> None:
    groups, scores, sizes = [g for g, _, _ in rows], [float(s) for _, s, _ in rows], [float(n) for _, _, n in rows]
    plain, tier = (select_best_worst(scores, sizes, groups, rule, 1.0) for rule in ("best_worst", "tier"))  # type: ignore[arg-type]
    for (best, worst), (short, long) in zip(plain, tier, strict=True):
        assert (scores[best], scores[worst]) == (scores[short], scores[long])
        assert sizes[short] <= sizes[best] and sizes[long] >= sizes[worst] and scores[best] - scores[worst] >= 1.0


def test_watching_pairs_by_hand() -> None:
    right, wrong = make_rollout(1, 3, correct=True), make_rollout(1, 5, correct=False)
    pairs = [("", right, wrong), ("", wrong, right), ("", right, right)]
    assert right_win_metrics(pairs) == {"right_wins": 0.5} and longer_win_rate(pairs) == 0.5 and right_win_metrics([]) == {}
    assert longer_win_rate(pairs[:1]) == 0.0


# A turn.


@cache
def engine() -> Any:
    made = make_engine(plan())
    for tag in (BEFORE, SEED):
        made.snapshot("generator", tag)
    return made


def plan(**settings: Any) -> Plan:
    return resolve([TINY, {"recipe": "self_rewarding", "batch": {"problems": 12, "rollouts": 4}}, settings])


def ctx(p: Plan) -> Context:
    sampling, seed, problems = p.config.sampling, p.config.seed, p.config.batch.problems
    return Context(RunContext(engine(), p.task, p.roles, p.agents, sampling, seed, problems), 1, "generator")


def graded(answers: Rollouts, points: list[list[float | None]]) -> Rollouts:
    """Gradings that somebody else gave."""
    grader, out = Grader("terse"), []
    for answer, given_points in zip(answers, points, strict=True):
        for number, value in enumerate(given_points):
            text = "" if value is None else f"={value:g}"
            one = Rollout.from_text(f"{answer.id}/{number}", "verifier", answer.problem, text, grader.parse(text, answer))
            one.targets = (answer,)
            out.append(one)
    return Rollouts(out)


def test_the_score_is_the_mean_of_what_can_be_read() -> None:
    p = plan()
    answers = p.recipe.rollout(ctx(p)).of("generator")[:3]
    found = mean_points(answers, graded(answers, [[5.0, 4.0, None], [None, None], [0.0, 1.0]]))
    assert found[0] == 4.5 and math.isnan(found[1]) and found[2] == 0.5


def test_the_best_by_own_points_wins_and_the_reason_says_so() -> None:
    p = plan()
    assert isinstance(p.recipe, SelfRewarding)
    one = ctx(p)
    answers = p.recipe.rollout(one).of("generator")
    points = [[float(row % 4), float(row % 4)] for row in range(len(answers))]
    (made,) = p.recipe.credit(one, Rollouts([*answers, *graded(answers, points)]))
    ranks = {t.id: row % 4 for row, t in enumerate(answers)}
    assert made.policy == "generator" and made.sources == {"verifier": 1.0}
    for winner, loser in zip(made.rollouts[::2], made.rollouts[1::2], strict=True):
        assert (ranks[winner.id], ranks[loser.id]) == (3, 0) and winner.problem.id == loser.problem.id
        assert winner.length > 0 and winner.origin == "given"
    assert {kept.reason for kept in one.preferences.kept} == {"3 points against 0"}
    assert made.notes["score"] == pytest.approx(1.5)


@pytest.mark.parametrize("dialect", ["plain", "terse"])
def test_an_answer_in_prose_that_was_cut_is_in_no_pair(dialect: Dialect) -> None:
    p = plan()
    one = ctx(p)
    answers = p.recipe.rollout(one).of("generator")
    answers = Rollouts(replace(t, finish="length" if row % 4 in (0, 3) else "eos") for row, t in enumerate(answers))
    one.run.roles["generator"] = StepSolver(dialect)  # type: ignore[index]
    made = p.recipe.credit(one, Rollouts([*answers, *graded(answers, [[row % 4] for row in range(len(answers))])]))
    ranks = {t.id: row % 4 for row, t in enumerate(answers)}
    assert {ranks[t.id] for one in made for t in one.rollouts} == ({1, 2} if dialect == "plain" else {0, 3})


@pytest.mark.parametrize("dialect", GRAMMARS)
def test_graded_answers_of_a_file_are_refused_outside_prose(dialect: Dialect, tmp_path: Path) -> None:
    path = tmp_path / "graded.jsonl"
    path.write_text(json.dumps({"question": "Why?", "response": "So.", "score": 3, "grading": "It is short."}))
    with pytest.raises(ConfigError, match=f"options.seed_path is for gradings in prose.*'{dialect}'"):
        plan(options={"seed_path": str(path), "seed_turns": 2}, dialect=dialect)


def test_an_oracle_needs_no_gradings_and_is_always_right() -> None:
    p = plan(options={"judge": "oracle"})
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    assert {t.agent for t in rollouts} == {"generator"}
    (made,) = p.recipe.credit(one, rollouts)
    assert made.sources == {"steps": 1.0}
    truth = [sum(t.grade.steps or ()) if t.grade else 0 for t in made.rollouts]
    assert all(w > loss for w, loss in zip(truth[::2], truth[1::2], strict=True))


def test_a_judge_who_loves_length() -> None:
    p = plan(options={"judge": "oracle", "length_bonus": 1.0})
    assert isinstance(p.recipe, SelfRewarding)
    answers = Rollouts(
        [
            make_rollout(1, size, problem=name, correct=False)
            for name, size in (("a", 2), ("a", 3), ("a", 9), ("b", 50), ("b", 50))
        ]
    )
    assert p.recipe.score_answers(answers, Rollouts([])).tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_judge_and_answers_are_of_the_model_that_the_round_began_with() -> None:
    schedule = plan().recipe.schedule()
    assert [(a.policy, a.source) for a in schedule.cycle[0].enter] == [("generator", BEFORE)]
    assert [(a.policy, a.source) for a in schedule.intro[1].enter] == [("generator", SEED), ("generator", BEFORE)]
    assert plan().recipe.objectives["generator"].loss.kl_from == BEFORE
    own = plan(binding="own").recipe.schedule()
    assert [a.policy for a in own.cycle[0].enter] == ["generator", "verifier"]


def test_a_frozen_judge_is_the_one_after_the_seed(tmp_path: Path) -> None:
    """With the judge's live weights ruined it grades as before, since nobody asks them."""
    p = plan(options={"judge": "frozen"})
    expected = [t.text for t in p.recipe.rollout(ctx(p)) if t.agent == "verifier"]
    policy = engine().policy("generator")
    live = policy.clone()
    policy.assign([tensor * 0 for tensor in live])
    found = [t.text for t in p.recipe.rollout(ctx(p)) if t.agent == "verifier"]
    policy.assign(live)
    assert found == expected and expected


def test_one_model_learns_to_grade_and_then_to_answer(tmp_path: Path) -> None:
    with short_loop("self_rewarding", tmp_path / "run") as loop:
        for _ in range(3):
            loop.run_turn()
    assert [row["learner"] for row in loop.rows] == ["verifier", "generator", "generator"]
    assert loop.rows[0]["flow/demonstrations>generator"] == 1.0
    assert isinstance(loop.run_context.roles["generator"], StepSolver) and not np.isnan(loop.rows[0]["learn/generator/loss"])
