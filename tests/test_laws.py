"""Laws of the design where the parts meet, at the table, with the embedded model: token ids, like with like, keyed draws."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from milonga.api import make_engine
from milonga.credit import normalise
from milonga.resolve import Plan, resolve
from milonga.table import Setting, Table
from milonga.types import Grade, Traces

TASK = {"name": "chain", "ops": 3}


@cache
def engine() -> Any:
    return make_engine(plan())


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "tango", "task": TASK, "device": "cpu", "threads": 1}, settings])


def table(turn: int = 1, learner: str = "generator", seed: int = 0, **settings: Any) -> Table:
    p = plan(seed=seed, batch={"problems": 4, "rollouts": 6}, **settings)
    shared = Setting(engine(), p.task, p.roles, p.seats, p.config.sampling, p.config.seed, p.config.batch.problems)
    return Table(shared, turn, learner)


def spelt(ids: np.ndarray) -> str:
    text: str = engine().policy("generator").codec.text(ids.tolist())
    return text


def everything(one: Table) -> Traces:
    solutions = one.ask("generator", one.problems(), 4)
    return Traces([*solutions, *one.ask("verifier", solutions)])


def test_a_trace_is_its_prompt_and_what_was_sampled() -> None:
    one = table()
    for trace in everything(one):
        prompt, output = trace.segments
        role = one.setting.roles[trace.seat]
        asked = engine().encode(trace.seat, role.prompt(trace.problem, trace.about[0] if trace.about else None))
        assert trace.ids[: prompt.end].tolist() == asked.tolist()
        assert (prompt.trained, output.trained) == (False, True)
        assert (output.start, output.end, output.policy, output.version) == (prompt.end, len(trace.ids), trace.seat, 0)
        assert trace.mask.tolist() == [False] * prompt.end + [True] * (output.end - output.start)
        assert len(trace.logprobs) == len(trace.ids)
        assert not trace.logprobs[~trace.mask].any() and (trace.logprobs[trace.mask] <= 0).all()


def test_the_end_of_sequence_is_trained_and_not_in_the_text() -> None:
    ended = everything(table()).select(lambda t: t.finish == "eos")
    assert len(ended) > 20
    for trace in ended:
        assert trace.ids[-1] in engine().policy(trace.seat).eos
        assert trace.mask[-1]
        assert spelt(trace.ids[trace.mask][:-1]) == trace.text


def test_step_spans_decode_back_to_the_steps() -> None:
    traces = everything(table())
    for trace in traces:
        start = trace.segments[1].start
        assert [begin for begin, _ in trace.steps] == [start, *(end for _, end in trace.steps)][: len(trace.steps)]
        ends = trace.reading.value.ends
        assert [spelt(trace.ids[start:end]) for _, end in trace.steps] == [trace.text[:end] for end in ends]
    solutions = traces.select(lambda t: t.seat == "generator")
    assert sum(len(t.steps) for t in solutions) > 30
    for trace in solutions:
        assert tuple(spelt(trace.ids[a:b]) for a, b in trace.steps) == tuple(f"{s}\n" for s in trace.reading.value.steps)


def test_a_cut_answer_is_flagged_and_only_whole_steps_have_spans() -> None:
    one = table(sampling={"max_tokens": 9})
    solutions = one.ask("generator", one.problems(), 2)
    assert {t.finish for t in solutions} == {"length"}
    for trace in solutions:
        assert trace.length == 9 and trace.ids[-1] not in engine().policy("generator").eos
        assert not trace.reading.is_valid and trace.correct == 0.0
        assert len(trace.steps) == trace.text.count("\n") <= 1


def test_rollouts_are_what_the_weights_give_at_the_temperature_used() -> None:
    one = table(sampling={"temperature": 0.7})
    solutions = one.ask("generator", one.problems(2), 2)
    scored = engine().score("generator", solutions)
    assert max(np.abs(a - t.logprobs).max() for a, t in zip(scored, solutions, strict=True)) < 1e-5


def test_draws_do_not_depend_on_who_else_is_asked() -> None:
    problems = table().problems()
    together, alone = table().ask("generator", problems, 4), table().ask("generator", problems[2:3], 3)
    assert [t.ids.tolist() for t in alone] == [t.ids.tolist() for t in together[8:11]]
    assert [t.id for t in alone] == [t.id for t in together[8:11]]
    checks, check = table().ask("verifier", together, 2), table().ask("verifier", together[9:10])
    assert check[0].ids.tolist() == checks[18].ids.tolist()


def test_draws_depend_on_seed_turn_seat_problem_and_rollout() -> None:
    problems = table().problems()

    def outputs(one: Table) -> list[str]:
        return [t.text for t in one.ask("generator", problems, 4)]

    first = outputs(table())
    assert first == outputs(table())
    assert first != outputs(table(turn=2)) and first != outputs(table(seed=1))
    assert len(set(first[:4])) > 1


def test_asking_again_gives_new_rollouts_not_the_same_ones() -> None:
    one = table()
    problems = one.problems()
    twice = [*one.ask("generator", problems, 2), *one.ask("generator", problems, 2)]
    four = table().ask("generator", problems, 4)
    assert len({t.id for t in twice}) == len(twice)
    assert sorted(t.text for t in twice) == sorted(t.text for t in four)


def scalar(advantages: list[np.ndarray], traces: Traces) -> np.ndarray:
    """The one value that all trained tokens of each trace share."""
    for array, trace in zip(advantages, traces, strict=True):
        assert len(set(array[trace.mask])) <= 1 and not array[~trace.mask].any()
    return np.array([array[trace.mask][0] for array, trace in zip(advantages, traces, strict=True)])


@pytest.mark.parametrize("preset", ["grpo", "dr_grpo", "rloo", "reinforce_pp"])
@pytest.mark.parametrize("reweight", [True, False])
def test_verifications_are_compared_among_those_of_the_same_solution(preset: str, reweight: bool) -> None:
    settings = {
        "options": {"reweight": reweight},
        "policies": {"verifier": {"objective": {"preset": preset}}},
        "batch": {"problems": 6, "rollouts": 6},
    }
    recipe: Any = plan(**settings).recipe
    one = table(learner="verifier")
    # Two solutions of each problem: their verifications share a problem, and still are not compared with each other.
    solutions = one.ask("generator", one.problems(), 2)
    checks = one.ask("verifier", solutions, recipe.rollouts)
    (lesson,) = recipe.credit(one, Traces([*solutions, *checks]))
    assert lesson.policy == "verifier" and list(lesson.traces) == list(checks)
    advantages = scalar(lesson.advantages, checks)
    assert np.abs(advantages).max() > 0
    for subject in checks.about:
        rows = [i for i, name in enumerate(checks.subjects) if name == subject.id]
        assert advantages[rows].sum() == pytest.approx(0.0, abs=1e-9)
        # The solution's own checks decide, up to the weight of its class: other solutions change nothing.
        rewards = [recipe.verifier_reward(checks[i], checks[i].subject.correct) for i in rows]
        how = {"dr_grpo": "centre", "rloo": "leave_one_out"}.get(preset, "zscore")
        expected = normalise(rewards, ["same"] * len(rows), how)  # type: ignore[arg-type]
        weight = np.dot(advantages[rows], expected) / max(np.dot(expected, expected), 1e-9)
        assert advantages[rows] == pytest.approx(expected * (weight if reweight else 1.0))


def test_solutions_are_compared_among_those_of_the_same_problem() -> None:
    recipe: Any = resolve([{"recipe": "grpo", "task": TASK, "batch": {"problems": 4, "rollouts": 6}}]).recipe
    one = table()
    solutions = recipe.play(one)
    (lesson,) = recipe.credit(one, solutions)
    advantages = scalar(lesson.advantages, solutions)
    assert np.abs(advantages).max() > 0
    for problem in set(solutions.problems):
        assert advantages[[p == problem for p in solutions.problems]].sum() == pytest.approx(0.0, abs=1e-9)


def test_an_unreadable_verdict_is_counted_and_earns_nothing() -> None:
    recipe: Any = plan().recipe
    one = table(learner="verifier", sampling={"max_tokens": 4})
    full = table(learner="verifier")
    cut = one.ask("verifier", full.ask("generator", full.problems()), 2)
    unreadable = cut.select(lambda t: t.reading.value.final is None)
    assert len(unreadable) and all(t.reading.invalid for t in unreadable)
    assert {recipe.verifier_reward(t, t.subject.correct) for t in unreadable} == {0.0}


def test_a_solution_nobody_could_grade_moves_nobody() -> None:
    recipe: Any = plan(batch={"problems": 4, "rollouts": 6}).recipe
    one = table(learner="verifier")
    played = recipe.play(one)
    lost = played[0]
    lost.grade = Grade(None)
    (lesson,) = recipe.credit(one, played)
    rows = [i for i, trace in enumerate(lesson.traces) if trace.subject is lost]
    assert len(rows) == 6 and not any(lesson.advantages[i].any() for i in rows)
    assert all(np.isfinite(array).all() for array in lesson.advantages)
