"""What reaches a reward and what says who paid it: the weight of the format, sources of merged batches, unknown grades."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from cases import TINY
from helpers import make_rollout
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.loop import _rollout_metrics
from milonga.objectives import make_objective
from milonga.patterns.conversation import list_turns
from milonga.patterns.debate import Debates
from milonga.recipe import merge_train_batches
from milonga.resolve import Plan, resolve
from milonga.roles import Role, StepSolver, StepVerifier
from milonga.systems.grpo.recipe import Grpo
from milonga.systems.sweet_rl.roles import Message
from milonga.types import Parsed, Rollouts, TrainBatch

WEIGHT = 0.5


@cache
def plan(recipe: str, weight: float = WEIGHT, agent: str = "generator") -> Plan:
    task = {"task": {"name": "haystack"}} if recipe == "mars" else {}
    return resolve([TINY, {"recipe": recipe, "policies": {agent: {"objective": {"format_weight": weight}}}, **task}])


def make_context(p: Plan, phase: str = "") -> Context:
    engine = make_engine(p)
    if p.config.recipe == "score":
        engine.snapshot("generator", "base")
    run = RunContext(engine, p.task, p.roles, p.agents, p.config.sampling, 0, 2)
    return Context(run, 1, "generator", phase)


def set_formats(rollouts: Rollouts) -> np.ndarray:
    """Give every third rollout no format and the next half of it: the embedded model keeps to its form."""
    formats = np.array([(0.0, 0.5, 1.0)[place % 3] for place in range(len(rollouts))])
    for rollout, score in zip(rollouts, formats, strict=True):
        rollout.parsed = replace(rollout.parsed, format=float(score))
    return formats


def test_both_turns_of_a_correction_are_paid_for_their_format() -> None:
    p, bare = plan("score"), plan("score", 0.0)
    one = make_context(p, "stage2")
    talks = p.recipe.rollout(one)
    second, formats = set_formats(talks), set_formats(Rollouts(reversed([talk.target for talk in talks])))[::-1]
    (paid,), (unpaid,) = p.recipe.credit(one, talks), bare.recipe.credit(one, talks)
    assert paid.notes["reward"] - unpaid.notes["reward"] == pytest.approx(WEIGHT * second.mean())
    spans = [talk.turn_spans[0] for talk in talks]
    first = [a[start:end] - b[start:end] for a, b, (start, end) in zip(paid.advantages, unpaid.advantages, spans, strict=True)]
    others = [(formats[np.array(talks.problem_ids) == t.problem.id].sum() - f) / 3 for f, t in zip(formats, talks, strict=True)]
    assert [d.mean() for d in first] == pytest.approx(list(WEIGHT * (formats - others)), abs=1e-9)


def test_stage_one_pays_the_first_turn_for_nothing() -> None:
    p, bare = plan("score"), plan("score", 0.0)
    one = make_context(p, "stage1")
    talks = p.recipe.rollout(one)
    set_formats(Rollouts(talk.target for talk in talks))
    (paid,), (unpaid,) = p.recipe.credit(one, talks), bare.recipe.credit(one, talks)
    for talk, a, b in zip(talks, paid.advantages, unpaid.advantages, strict=True):
        (start, end), _ = talk.turn_spans
        assert np.array_equal(a[start:end], b[start:end])


def test_a_debater_is_paid_for_its_own_format_in_every_turn() -> None:
    p, bare = plan("maporl"), plan("maporl", 0.0)
    rollouts = p.recipe.rollout(make_context(p))
    set_formats(rollouts)
    found = Debates({agent: rollouts.of(agent) for agent in p.agents})
    gained = p.recipe.compute_rewards(found) - bare.recipe.compute_rewards(found)
    assert gained[:, :, 0] == pytest.approx(WEIGHT * found.formats[:, :, 0]) and gained[:, :, 0].any()
    assert not gained[:, :, 1].any(), "the partner's policy has no such weight"


def test_the_solvers_of_a_workflow_are_paid_for_their_format() -> None:
    p, bare = plan("marti"), plan("marti", 0.0)
    one = make_context(p)
    rollouts = p.recipe.rollout(one)
    set_formats(rollouts)
    turns = p.recipe.workflow.score_turns(one, rollouts, p.recipe.make_rules(one, rollouts))
    for agent in turns:
        gained = p.recipe.compute_turn_reward(agent, 0) - bare.recipe.compute_turn_reward(agent, 0)
        formats = [list_turns(row)[0].parsed.format for row in agent.rows]
        assert gained == pytest.approx(WEIGHT * np.array(formats) if agent.agent == "generator" else np.zeros(len(gained)))


def test_the_planner_is_paid_for_its_format() -> None:
    p, bare = plan("mars"), plan("mars", 0.0)
    one = make_context(p)
    talks = p.recipe.rollout(one).of("generator")
    set_formats(talks)
    paid, unpaid = p.recipe.credit_planner(one, talks), bare.recipe.credit_planner(one, talks)
    assert any(not np.array_equal(a, b) for a, b in zip(paid.advantages, unpaid.advantages, strict=True))


@pytest.mark.parametrize(
    ("recipe", "agent", "hint"),
    [
        ("tango", "verifier", "options.format_weight is its own"),
        ("marti", "verifier", "leave it out"),
        ("prime", "verifier", "leave it out"),
        ("spin", "generator", "leave it out"),
        ("verifier_only", "generator", "leave it out"),
    ],
)
def test_a_weight_that_pays_nobody_is_refused(recipe: str, agent: str, hint: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(recipe, WEIGHT, agent)
    assert str(error.value).startswith(f"policies.{agent}.objective.format_weight: the {agent} of '{recipe}'")
    assert str(error.value).endswith(hint)


def test_merged_train_batches_name_the_sources_of_both_by_their_rows() -> None:
    def made(rows: int, sources: dict[str, float]) -> TrainBatch:
        rollouts = Rollouts(make_rollout(1, 2, id=f"{rows}/{n}") for n in range(rows))
        return TrainBatch("p", make_objective("grpo").loss, rollouts, [np.zeros(3)] * rows, sources=sources)

    merged = merge_train_batches(made(3, {"answers": 1.0}), made(1, {"answers": 0.5, "verifier": 0.5}))
    assert merged.sources == {"answers": 0.75 + 0.125, "verifier": 0.125} and len(merged.rollouts) == 4


def test_unknown_grades_make_no_group_look_mixed() -> None:
    grades = {"unknown": (None, None), "flat": (True, True), "one": (None, True), "mixed": (True, False), "rest": (None, 1, 0)}
    rows = [make_rollout(1, 2, problem=name, correct=grade) for name, group in grades.items() for grade in group]
    assert _rollout_metrics(Rollouts(rows))["rollouts/generator/flat_groups"] == pytest.approx(1 / 3)
    unknown = [make_rollout(1, 2, problem="u") for _ in range(3)]
    assert _rollout_metrics(Rollouts(unknown))["rollouts/generator/flat_groups"] is None


def test_a_dialogue_in_which_nothing_was_handed_in_is_graded_and_has_no_steps() -> None:
    handed = make_rollout(2, 2, problem="a", correct=True)
    said = replace(make_rollout(1, 2, problem="b", correct=False), parsed=Parsed(Message("What is it for?"), 1.0))
    for rows in ([handed, said], [said, handed]):
        found = _rollout_metrics(Rollouts(rows))
        assert (found["rollouts/generator/accuracy"], found["rollouts/generator/steps"]) == (0.5, len(handed.solution.steps))


def test_only_agents_that_take_part_have_roles() -> None:
    class LineUp(Grpo):
        """GRPO with a verifier that its options leave out; never registered."""

        agents = {"generator": StepSolver, "verifier": StepVerifier}

        @classmethod
        def select_agents(cls, options: Any) -> Mapping[str, type[Role]]:
            return {"generator": StepSolver}

    recipe = LineUp(LineUp.Options(), {"generator": make_objective("grpo")}, {"generator": "generator"}, 2)
    assert list(recipe.roles("plain")) == ["generator"]


@pytest.mark.filterwarnings("error")
def test_a_verifier_whose_labels_are_all_unknown_learns_nothing_and_says_so_quietly() -> None:
    p = resolve([TINY, {"recipe": "tango"}])
    one = make_context(p)
    solutions = one.ask("generator", one.problems())
    checks = one.ask("verifier", solutions, 2)
    batch = p.recipe.credit_verifier(one, checks, {t.id: float("nan") for t in solutions})
    assert batch.notes["verifier_reward"] == 0.0 and not any(array.any() for array in batch.advantages)
