"""SCoRe: the reward table, per-turn credit without a way back, KL accounts by turn, and the words between the turns."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import TINY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit import progress_reward
from milonga.errors import ConfigError
from milonga.patterns.conversation import compute_change_metrics, compute_turn_costs, filter_comparable
from milonga.resolve import resolve
from milonga.systems.score.recipe import FORMAT, STAGE1, STAGE2
from milonga.systems.score.roles import Corrector
from milonga.types import Grade, Problem, Rollouts
from short import assert_resumes


@cache
def engine() -> Any:
    made = make_engine(plan())
    made.snapshot("generator", "base")
    return made


def plan(**options: Any) -> Any:
    return resolve([TINY, {"recipe": "score", "options": options}])


def ctx(p: Any, phase: str = STAGE2) -> Context:
    run_context = RunContext(engine(), p.task, p.roles, p.agents, p.config.sampling, 0, 4)
    return Context(run_context, 1, "generator", phase)


def graded(talks: Rollouts, first: Any, second: Any) -> Rollouts:
    """The conversations with other grades."""
    out = []
    for talk, a, b in zip(talks, first, second, strict=True):
        before = replace(talk.target, grade=Grade(bool(a)))
        out.append(replace(talk, grade=Grade(bool(b)), targets=(before,)))
    return Rollouts(out)


def credit(p: Any, talks: Rollouts, phase: str) -> list[np.ndarray]:
    (train_batch,) = p.recipe.credit(ctx(p, phase), talks)
    return train_batch.advantages


def test_the_four_cells_of_the_second_turns_reward() -> None:
    first, second = np.array([0.0, 1.0, 0.0, 1.0]), np.array([1.0, 1.0, 0.0, 0.0])
    assert progress_reward(first, second, 10.0).tolist() == [11.0, 1.0, 0.0, -10.0]
    assert np.isnan(progress_reward(np.array([np.nan]), second[:1], 10.0)).all()


def test_each_stage_pays_its_turns() -> None:
    recipe = plan().recipe
    first, second = np.array([0.0, 1.0]), np.array([1.0, 0.0])
    assert [r.tolist() for r in recipe.compute_turn_rewards(STAGE1, first, second)] == [[0.0, 0.0], [1.0, 0.0]]
    assert [r.tolist() for r in recipe.compute_turn_rewards(STAGE2, first, second)] == [[0.0, 1.0], [11.0, -10.0]]
    assert [r.tolist() for r in plan(first_only=True).recipe.compute_turn_rewards(STAGE2, first, second)] == [[0.0, 1.0]]
    assert recipe.select_betas(STAGE1) == (0.1, 0.01) and recipe.select_betas(STAGE2) == (0.01, 0.01)
    assert plan(stage2_beta_turn1=0.5).recipe.select_betas(STAGE2) == (0.5, 0.01)


@pytest.mark.parametrize("stage", [STAGE1, STAGE2])
def test_what_the_second_turn_earns_never_reaches_the_first(stage: str) -> None:
    """Else a wrong first answer would pay: wrong and then right earns 11, right twice earns 2."""
    p = plan()
    talks = p.recipe.rollout(ctx(p))
    first = np.arange(len(talks)) % 2
    one = credit(p, graded(talks, first, first), stage)
    other = credit(p, graded(talks, first, np.arange(len(talks)) // 2 % 2), stage)
    moved = False
    for talk, a, b in zip(talks, one, other, strict=True):
        (start, end), (again, last) = talk.turn_spans
        assert a[start:end].tolist() == b[start:end].tolist()
        assert (abs(a[start]) > 0.1) == (stage == STAGE2)
        assert not a[end:again].any() and not a[:start].any()
        moved = moved or a[again:last].tolist() != b[again:last].tolist()
    assert moved


def test_turns_have_baselines_of_their_own() -> None:
    p = plan(beta1=0.0, beta2=0.0)
    talks = p.recipe.rollout(ctx(p))
    rights = np.array([0, 0, 1, 1] * 4), np.array([1, 0, 1, 0] * 4)
    advantages = credit(p, graded(talks, *rights), STAGE2)[:4]
    starts = [[start for start, _ in talk.turn_spans] for talk in talks[:4]]
    # Leave one out: 4/3 of the distance to the mean, 0.5 in the first turn and 0.5 in the second (11, 0, 1, -10).
    assert [a[s[0]] for a, s in zip(advantages, starts, strict=True)] == pytest.approx([-2 / 3, -2 / 3, 2 / 3, 2 / 3])
    assert [a[s[1]] for a, s in zip(advantages, starts, strict=True)] == pytest.approx([14.0, -2 / 3, 2 / 3, -14.0])


def test_costs_have_a_factor_for_each_turn_and_none_between() -> None:
    p = plan()
    talks = p.recipe.rollout(ctx(p))
    costs = compute_turn_costs(talks, [np.ones(len(talk.ids)) for talk in talks], (0.1, 0.01))
    for talk, cost in zip(talks, costs, strict=True):
        (start, end), (again, last) = talk.turn_spans
        assert cost.sum() == pytest.approx(0.1 * (end - start) + 0.01 * (last - again))


def test_the_words_between_the_turns_tell_nothing_about_the_first() -> None:
    problem = Problem("p", "3+4%10", "7")
    for dialect in ("terse", "tagged"):
        said = "".join(part.text for part in Corrector(dialect).render_second_turn(problem))  # type: ignore[arg-type]
        assert "7" not in said
    p = plan()
    talks = p.recipe.rollout(ctx(p))
    words = {}
    for talk in talks:
        between = talk.segments[2]
        text = engine().policy("generator").codec.decode_ids(talk.ids[between.start : between.end].tolist())
        words.setdefault(talk.problem.id, set()).add(text.removeprefix("<eos>"))
    assert all(len(texts) == 1 for texts in words.values())


def test_the_format_is_shown_behind_the_models_own_first_turns() -> None:
    p = plan(format_lines=8)
    shown = p.recipe.rollout(ctx(p, FORMAT))
    replies = [t for t in shown if t.targets]
    assert len(shown) == 8 and len(replies) == 4
    assert all(t.target.origin == "sampled" and t.segments[1].trained is False and t.segments[-1].trained for t in replies)
    (train_batch,) = p.recipe.credit(ctx(p, FORMAT), shown)
    assert train_batch.loss.kind == "cross_entropy"


def test_first_attempts_of_the_start_are_mended_and_not_trained() -> None:
    p = plan(offline_first_attempts=0.5)
    talks = p.recipe.rollout(ctx(p))
    assert sorted(t.segments[1].trained for t in talks) == [False] * 8 + [True] * 8
    (train_batch,) = p.recipe.credit(ctx(p), talks)
    for talk, array in zip(talks, train_batch.advantages, strict=True):
        start, end = talk.turn_spans[0]
        assert talk.segments[1].trained or not array[start:end].any()


def test_the_schedule_keeps_the_start_before_anything_is_rewarded() -> None:
    phases = plan(formats=2, stage1=3).recipe.schedule()
    assert [(p.name, p.turns) for p in phases.intro] == [(FORMAT, 2), (STAGE1, 1), (STAGE1, 2)]
    assert [len(p.enter) for p in phases.intro] == [0, 1, 0] and phases.cycle[0].name == STAGE2
    naive = plan(stage1=0).recipe.schedule()
    assert [p.name for p in naive.intro if p.turns] == [FORMAT, STAGE2]


def test_figures_of_a_change() -> None:
    p = plan()
    talks = p.recipe.rollout(ctx(p))[:4]
    made = graded(talks, [0, 0, 1, 1], [1, 0, 1, 0])
    figures = compute_change_metrics(Rollouts(t.target for t in made), made)
    assert figures["first_accuracy"] == figures["last_accuracy"] == 0.5 and figures["gain"] == 0.0
    assert figures["fixed"] == figures["broken"] == 0.25
    copied = Rollouts(replace(t, text=t.target.text + " ") for t in made)
    assert compute_change_metrics(Rollouts(t.target for t in copied), copied)["copy_rate"] == 1.0


def test_a_conversation_that_is_left_alone_has_no_baseline_and_goes() -> None:
    p = plan()
    talks = p.recipe.rollout(ctx(p))
    assert [t.problem.id for t in filter_comparable(talks[3:])] == [t.problem.id for t in talks[4:]]


def test_a_task_that_cannot_demonstrate_needs_a_model_that_can_talk(tmp_path: Path) -> None:
    bare = tmp_path / "bare.jsonl"
    bare.write_text("".join(f'{{"question": "{n} and {n}?", "answer": "{2 * n}"}}\n' for n in range(40)))
    task = {"task": {"name": "jsonl", "path": str(bare)}}
    bound = TINY | {"recipe": "score", "policies": {"generator": {"model": "a/model"}}} | task
    with pytest.raises(ConfigError, match="needs worked solutions, which task 'jsonl'"):
        resolve([bound | {"options": {"formats": 1}}])
    assert resolve([bound]).recipe.needs == set()


@pytest.mark.parametrize("gib", [4.0, 1e-4], ids=["histories", "histories that leave"])
def test_a_run_that_was_cut_in_stage_one_ends_in_the_same_bits(tmp_path: Path, gib: float) -> None:
    assert_resumes("score", tmp_path, after=2, sampling={"history_gib": gib})


def test_conversations_without_room_teach_nothing() -> None:
    p = plan()
    assert p.recipe.credit(ctx(p), Rollouts([])) == []
