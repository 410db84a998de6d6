"""MAPoRL: the influence-aware reward, all transitions of the bonus, debates row by row, and who is paid for what."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import TINY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import normalise
from milonga.errors import ConfigError
from milonga.patterns.debate import Debates, build_debate_prompts, match_replies, sample_debates
from milonga.resolve import resolve
from milonga.roles import Debater
from milonga.systems.maporl.credit import TransitionBonus, influence_rewards
from milonga.systems.maporl.recipe import AGENTS, FORMAT
from milonga.types import Parsed, Problem, Rollout, Rollouts
from short import assert_resumes

# Credit by hand.


def test_a_turn_is_paid_for_its_answer_and_for_what_everybody_answers_later() -> None:
    values = np.array([[0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    rewards = influence_rewards(values, values, 0.3)
    assert rewards[0, 0] == pytest.approx(0.39 / 1.39, abs=1e-9) and rewards[0, 0] == pytest.approx(0.2806, abs=1e-4)
    assert np.delete(rewards.flatten(), 0) == pytest.approx(np.ones(5))
    assert influence_rewards(values, values, 0.0).tolist() == values.tolist()


def test_the_later_mean_includes_oneself_unless_only_the_others_are_shared() -> None:
    values = np.array([[0.0, 0.0], [1.0, 0.0]])
    assert influence_rewards(values, values, 0.5)[0].tolist() == pytest.approx([0.25 / 1.5, 0.25 / 1.5])
    assert influence_rewards(values, values, 0.5, "others")[0].tolist() == pytest.approx([0.0, 0.5 / 1.5])


def test_an_unreadable_answer_is_held_against_its_writer_alone() -> None:
    own = np.array([[1.0, 1.0], [1.0, -0.5]])
    heard_values = np.array([[1.0, 1.0], [1.0, np.nan]])
    rewards = influence_rewards(own, heard_values, 0.3)
    assert rewards[0].tolist() == [1.0, 1.0] and rewards[1].tolist() == [1.0, -0.5]
    nobody = influence_rewards(own, np.full((2, 2), np.nan), 0.3)
    assert nobody.tolist() == own.tolist()


@pytest.mark.parametrize(
    ("before", "after", "others", "expected"),
    [(0, 1, 1, 2.0), (0, 1, 0, 1.0), (1, 0, 0, -2.0), (1, 0, 1, -1.0)],
)
def test_changing_ones_mind(before: int, after: int, others: int, expected: float) -> None:
    """With the others (persuaded, 2) or against them (critical, 1); in the right direction or the wrong one."""
    correct = np.array([[before, others], [after, others]], dtype=float)
    bonus = TransitionBonus(persuaded=2.0, critical=1.0).rewards(correct)
    assert bonus[:, 0].tolist() == [0.0, expected] and not bonus[:, 1].any()


@pytest.mark.parametrize(
    ("mine", "before", "after", "expected"),
    [(1, 0, 1, 2.0), (0, 0, 1, 1.0), (0, 1, 0, -2.0), (1, 1, 0, -1.0)],
)
def test_changing_the_others_minds(mine: int, before: int, after: int, expected: float) -> None:
    """To where I stand (leading, 2) or away from it (provoking, 1). That they go right is never punished. It acts in turn 0 of
    a debate of two turns."""
    correct = np.array([[mine, before], [mine, after]], dtype=float)
    bonus = TransitionBonus(leading=2.0, provoking=1.0).rewards(correct)
    assert bonus[:, 0].tolist() == [expected, 0.0] and not bonus[:, 1].any()


def test_an_unknown_grade_earns_no_bonus_and_costs_none() -> None:
    """A grade that nobody knows is not a wrong one: from unknown to right nobody was persuaded of anything."""
    everything = TransitionBonus(persuaded=1.0, critical=1.0, leading=1.0, provoking=1.0)
    for correct in ([[0.0, np.nan], [1.0, 1.0]], [[1.0, 0.0], [np.nan, np.nan]]):
        assert everything.rewards(np.array(correct)).tolist() == [[0.0, 0.0], [0.0, 0.0]]
    three = np.array([[1.0, np.nan, 0.0], [1.0, np.nan, 1.0]])
    assert TransitionBonus(leading=1.0).rewards(three)[0].tolist() == [1.0, 0.0, 0.0], "of three, the majority of the known"


def test_three_agents_whose_others_are_divided() -> None:
    correct = np.array([[0.0, 1.0, 0.0], [1.0, 1.0, 0.0]])

    def first_agent(tie: Any) -> float:
        return float(TransitionBonus(persuaded=2.0, critical=1.0, tie=tie).rewards(correct)[1, 0])

    assert (first_agent("half"), first_agent("self"), first_agent("none")) == (1.5, 1.0, 0.0)


# Debates.


@cache
def engine(binding: str = "own") -> Any:
    return make_engine(plan(binding))


def plan(binding: str = "own", **options: Any) -> Any:
    return resolve([TINY, {"recipe": "maporl", "binding": binding, "options": {"talk": 3} | options}])


def ctx(p: Any, phase: str = "", binding: str = "own", **sampling: Any) -> Context:
    chosen = p.config.sampling.model_copy(update=sampling)
    return Context(RunContext(engine(binding), p.task, p.roles, p.agents, chosen, 0, 4), 1, "generator", phase)


def spoken(rollout: Rollout, segment: int) -> str:
    span = rollout.segments[segment]
    text: str = engine().policy("generator").codec.decode_ids(rollout.ids[span.start : span.end].tolist())
    return text.removeprefix("<eos>")


def test_each_agent_hears_what_the_other_said_last_in_the_same_debate() -> None:
    p = plan()
    one = ctx(p)
    found = sample_debates(one, AGENTS, one.problems(), 3, 2)
    mine, theirs = (found.talks[agent] for agent in AGENTS)
    assert len(mine) == len(theirs) == 8 and mine.problem_ids == theirs.problem_ids
    for a, b in zip(mine, theirs, strict=True):
        first, second = b.target.target, b.target
        assert spoken(a, 2) == f"?{first.text}\n>{a.problem.text}\n"
        assert spoken(a, 4) == f"?{second.text}\n>{a.problem.text}\n"
        assert [s.producer for s in a.segments] == ["prompt", "generator", "debate", "generator", "debate", "generator"]
        assert [s.trained for s in a.segments] == [False, True] * 3
    assert found.correct.shape == (8, 3, 2)
    assert found.correct[5, 2, 1] == theirs[5].correct and found.correct[5, 0, 0] == mine[5].target.target.correct
    assert len(found.select_turn(0)) == 16 and found.select_turn(0)[0] is mine[0].target.target


def test_a_debate_in_which_one_has_no_room_ends_for_all() -> None:
    p = plan()
    one = ctx(p)
    talks = {agent: one.ask(agent, one.problems(), 2) for agent in AGENTS}
    replies = {agent: one.reply(agent, talks[agent], build_debate_prompts(one, agent, talks)) for agent in AGENTS}
    cut = {"generator": Rollouts([*replies["generator"][:1], *replies["generator"][2:]]), "partner": replies["partner"][:-1]}
    kept = match_replies(talks, cut)
    assert [len(kept[agent]) for agent in AGENTS] == [6, 6]
    assert [t.target.id for t in kept["partner"]] == [t.id for t in (talks["partner"][0], *talks["partner"][2:7])]


def test_what_is_heard_is_foreign_and_tells_nothing_of_who_is_right() -> None:
    problem = Problem("p", "3+4%10", "SECRET")
    other = Rollout.from_text("x", "partner", problem, "<eos>3+4=8\n#8", Parsed(None, 1.0))
    for dialect in ("terse", "tagged"):
        parts = Debater(dialect).render_other_solutions(problem, [other, other])  # type: ignore[arg-type]
        assert sum(part.text == other.text for part in parts) == 2
        assert all(part.foreign for part in parts if other.text in part.text)
        assert "SECRET" not in "".join(part.text for part in parts)


# Who is paid.


def test_every_turn_of_every_agent_has_its_own_group_and_tokens() -> None:
    p = plan(gamma=0.0)
    one = ctx(p)
    rollouts = p.recipe.rollout(one)
    train_batches = p.recipe.credit(one, rollouts)
    assert [train_batch.policy for train_batch in train_batches] == list(AGENTS)
    for train_batch, agent in zip(train_batches, AGENTS, strict=True):
        talks = rollouts.of(agent)
        values = Debates({agent: talks})
        pay = np.where(values.readable == 1.0, values.correct, -0.5)[:, :, 0]
        for turn in range(3):
            expected = normalise(pay[:, turn], talks.problem_ids)
            for talk, array, value in zip(talks, train_batch.advantages, expected, strict=True):
                start, end = talk.turn_spans[turn]
                assert array[start:end] == pytest.approx(np.full(end - start, value))
                assert not array[~talk.mask].any()


def test_the_first_turn_can_be_left_as_it_is() -> None:
    p = plan(train_first=False)
    one = ctx(p)
    for train_batch in p.recipe.credit(one, p.recipe.rollout(one)):
        arrays = list(zip(train_batch.rollouts, train_batch.advantages, strict=True))
        assert not any(array[slice(*talk.turn_spans[0])].any() for talk, array in arrays)
        assert any(array.any() for _, array in arrays)


def test_a_partner_can_stay_as_it_was() -> None:
    p = plan(train="lead")
    one = ctx(p)
    assert [train_batch.policy for train_batch in p.recipe.credit(one, p.recipe.rollout(one))] == ["generator"]
    with pytest.raises(ConfigError, match="share one model"):
        plan("shared", train="lead")


def test_one_model_in_both_agents_learns_from_both_in_one_train_batch() -> None:
    p = plan("shared")
    one = ctx(p, binding="shared")
    rollouts = p.recipe.rollout(one)
    (train_batch,) = p.recipe.credit(one, rollouts)
    assert list(train_batch.rollouts) == list(rollouts) and len(train_batch.advantages) == 32


def test_the_teacher_shows_every_turn_behind_what_the_agents_said() -> None:
    p = plan(format_lines=12)
    shown = p.recipe.rollout(ctx(p, FORMAT))
    depth = [len(rollout.turn_spans) for rollout in shown]
    assert sorted(depth) == [1] * 8 + [2] * 8 + [3] * 8
    for rollout in shown:
        assert [s.trained for s in rollout.segments] == [False] * (len(rollout.segments) - 1) + [True]
    train_batches = p.recipe.credit(ctx(p, FORMAT), shown)
    assert [(train_batch.policy, len(train_batch.rollouts)) for train_batch in train_batches] == [
        ("generator", 12),
        ("partner", 12),
    ]


def test_debates_without_room_teach_nothing() -> None:
    p = plan()
    assert p.recipe.credit(ctx(p), Rollouts([])) == []


def test_a_run_that_was_cut_ends_in_the_same_bits(tmp_path: Path) -> None:
    assert_resumes("maporl", tmp_path, after=1)
