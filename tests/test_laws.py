"""Laws of the design where the parts meet, at the context, with the embedded model: token ids, like with like, keyed draws."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from milonga.api import make_engine
from milonga.context import Context
from milonga.credit import normalise
from milonga.resolve import Plan, resolve
from milonga.types import Grade, Rollouts

TASK = {"name": "chain", "ops": 3}


@cache
def engine() -> Any:
    return make_engine(plan())


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "tango", "task": TASK, "device": "cpu", "threads": 1}, settings])


def ctx(turn: int = 1, learner: str = "generator", seed: int = 0, **settings: Any) -> Context:
    p = plan(seed=seed, batch={"problems": 4, "rollouts": 6}, **settings)
    shared = p.make_run_context(engine())
    return Context(shared, turn, learner)


def spelt(ids: np.ndarray) -> str:
    text: str = engine().policy("generator").codec.decode_ids(ids.tolist())
    return text


def everything(one: Context) -> Rollouts:
    solutions = one.ask("generator", one.problems(), 4)
    return Rollouts([*solutions, *one.ask("verifier", solutions)])


def test_a_rollout_is_its_prompt_and_what_was_sampled() -> None:
    one = ctx()
    for rollout in everything(one):
        prompt, output = rollout.segments
        role = one.run.roles[rollout.agent]
        asked = engine().encode(rollout.agent, role.prompt(rollout.problem, rollout.targets[0] if rollout.targets else None))
        assert rollout.ids[: prompt.end].tolist() == asked.tolist()
        assert (prompt.trained, output.trained) == (False, True)
        assert (output.start, output.end, output.policy, output.version) == (prompt.end, len(rollout.ids), rollout.agent, 0)
        assert rollout.mask.tolist() == [False] * prompt.end + [True] * (output.end - output.start)
        assert len(rollout.logprobs) == len(rollout.ids)
        assert not rollout.logprobs[~rollout.mask].any() and (rollout.logprobs[rollout.mask] <= 0).all()


def test_the_end_of_sequence_is_trained_and_not_in_the_text() -> None:
    ended = everything(ctx()).select(lambda t: t.finish == "eos")
    assert len(ended) > 20
    for rollout in ended:
        assert rollout.ids[-1] in engine().policy(rollout.agent).eos
        assert rollout.mask[-1]
        assert spelt(rollout.ids[rollout.mask][:-1]) == rollout.text


def test_step_spans_decode_back_to_the_steps() -> None:
    rollouts = everything(ctx())
    for rollout in rollouts:
        start = rollout.segments[1].start
        assert [begin for begin, _ in rollout.steps] == [start, *(end for _, end in rollout.steps)][: len(rollout.steps)]
        ends = rollout.parsed.value.ends
        assert [spelt(rollout.ids[start:end]) for _, end in rollout.steps] == [rollout.text[:end] for end in ends]
    solutions = rollouts.of("generator")
    assert sum(len(t.steps) for t in solutions) > 30
    for rollout in solutions:
        assert tuple(spelt(rollout.ids[a:b]) for a, b in rollout.steps) == tuple(f"{s}\n" for s in rollout.parsed.value.steps)


def test_a_cut_answer_is_flagged_and_only_whole_steps_have_spans() -> None:
    one = ctx(sampling={"max_tokens": 9})
    solutions = one.ask("generator", one.problems(), 2)
    assert {t.finish for t in solutions} == {"length"}
    for rollout in solutions:
        assert rollout.length == 9 and rollout.ids[-1] not in engine().policy("generator").eos
        assert not rollout.parsed.is_valid and rollout.correct == 0.0
        assert len(rollout.steps) == rollout.text.count("\n") <= 1


def test_rollouts_are_what_the_weights_give_at_the_temperature_used() -> None:
    one = ctx(sampling={"temperature": 0.7})
    solutions = one.ask("generator", one.problems(2), 2)
    scored = engine().score("generator", solutions)
    assert max(np.abs(a - t.logprobs).max() for a, t in zip(scored, solutions, strict=True)) < 1e-5


def test_draws_do_not_depend_on_who_else_is_asked() -> None:
    problems = ctx().problems()
    together, alone = ctx().ask("generator", problems, 4), ctx().ask("generator", problems[2:3], 3)
    assert [t.ids.tolist() for t in alone] == [t.ids.tolist() for t in together[8:11]]
    assert [t.id for t in alone] == [t.id for t in together[8:11]]
    checks, check = ctx().ask("verifier", together, 2), ctx().ask("verifier", together[9:10])
    assert check[0].ids.tolist() == checks[18].ids.tolist()


def test_draws_depend_on_seed_turn_agent_problem_and_rollout() -> None:
    problems = ctx().problems()

    def outputs(one: Context) -> list[str]:
        return [t.text for t in one.ask("generator", problems, 4)]

    first = outputs(ctx())
    assert first == outputs(ctx())
    assert first != outputs(ctx(turn=2)) and first != outputs(ctx(seed=1))
    assert len(set(first[:4])) > 1


def test_asking_again_gives_new_rollouts_not_the_same_ones() -> None:
    one = ctx()
    problems = one.problems()
    twice = [*one.ask("generator", problems, 2), *one.ask("generator", problems, 2)]
    four = ctx().ask("generator", problems, 4)
    assert len({t.id for t in twice}) == len(twice)
    assert sorted(t.text for t in twice) == sorted(t.text for t in four)


def scalar(advantages: list[np.ndarray], rollouts: Rollouts) -> np.ndarray:
    """The one value that all trained tokens of each rollout share."""
    for array, rollout in zip(advantages, rollouts, strict=True):
        assert len(set(array[rollout.mask])) <= 1 and not array[~rollout.mask].any()
    return np.array([array[rollout.mask][0] for array, rollout in zip(advantages, rollouts, strict=True)])


@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "rloo", "reinforce_pp"])
@pytest.mark.parametrize("reweight", [True, False])
def test_verifications_are_compared_among_those_of_the_same_solution(preset: str, reweight: bool) -> None:
    settings = {
        "options": {"reweight": reweight},
        "policies": {"verifier": {"objective": {"preset": preset}}},
        "batch": {"problems": 6, "rollouts": 6},
    }
    recipe: Any = plan(**settings).recipe
    one = ctx(learner="verifier")
    # Two solutions of each problem: their verifications share a problem, and still are not compared with each other.
    solutions = one.ask("generator", one.problems(), 2)
    checks = one.ask("verifier", solutions, recipe.group_size)
    (train_batch,) = recipe.credit(one, Rollouts([*solutions, *checks]))
    assert train_batch.policy == "verifier" and list(train_batch.rollouts) == list(checks)
    advantages = scalar(train_batch.advantages, checks)
    assert np.abs(advantages).max() > 0
    for target in checks.targets:
        rows = [i for i, name in enumerate(checks.target_ids) if name == target.id]
        assert advantages[rows].sum() == pytest.approx(0.0, abs=1e-9)
        # The solution's own checks decide, up to the weight of its class: other solutions change nothing.
        rewards = [recipe.verifier_reward(checks[i], checks[i].target.correct) for i in rows]
        how = {"dr_grpo": "centre", "rloo": "leave_one_out"}.get(preset, "zscore")
        expected = normalise(rewards, ["same"] * len(rows), how)  # type: ignore[arg-type]
        weight = np.dot(advantages[rows], expected) / max(np.dot(expected, expected), 1e-9)
        assert advantages[rows] == pytest.approx(expected * (weight if reweight else 1.0))


def test_solutions_are_compared_among_those_of_the_same_problem() -> None:
    recipe: Any = resolve([{"recipe": "grpo", "task": TASK, "batch": {"problems": 4, "rollouts": 6}}]).recipe
    one = ctx()
    solutions = recipe.rollout(one)
    (train_batch,) = recipe.credit(one, solutions)
    advantages = scalar(train_batch.advantages, solutions)
    assert np.abs(advantages).max() > 0
    for problem in set(solutions.problem_ids):
        assert advantages[[p == problem for p in solutions.problem_ids]].sum() == pytest.approx(0.0, abs=1e-9)


def test_an_unreadable_verdict_is_counted_and_earns_nothing() -> None:
    recipe: Any = plan().recipe
    one = ctx(learner="verifier", sampling={"max_tokens": 4})
    full = ctx(learner="verifier")
    cut = one.ask("verifier", full.ask("generator", full.problems()), 2)
    unreadable = cut.select(lambda t: t.parsed.value.final is None)
    assert len(unreadable) and all(t.parsed.invalid for t in unreadable)
    assert {recipe.verifier_reward(t, t.target.correct) for t in unreadable} == {0.0}


def test_a_solution_nobody_could_grade_moves_nobody() -> None:
    recipe: Any = plan(batch={"problems": 4, "rollouts": 6}).recipe
    one = ctx(learner="verifier")
    rollouts = recipe.rollout(one)
    lost = rollouts[0]
    lost.grade = Grade(None)
    (train_batch,) = recipe.credit(one, rollouts)
    rows = [i for i, rollout in enumerate(train_batch.rollouts) if rollout.target is lost]
    assert len(rows) == 6 and not any(train_batch.advantages[i].any() for i in rows)
    assert all(np.isfinite(array).all() for array in train_batch.advantages)
