"""Self-play on repositories: rewards in closed form, what is posed and to whom it counts, and who learns from what."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.context import Context, RunContext
from milonga.credit import normalise
from milonga.randomness import keyed_rng
from milonga.resolve import Plan, resolve
from milonga.systems.self_play_swe.credit import INVALID, expected_injector_reward, injector_reward, learnability_reward
from milonga.systems.self_play_swe.injection import judge_injections, sample_injections
from milonga.systems.self_play_swe.recipe import SelfPlaySwe
from milonga.tasks.bugs import Bugs
from milonga.tasks.bugs_checks import Bug, Injection, NoVerdict, Requirements, Verdict, check_bug
from milonga.tasks.bugs_tiny import WAYS, draw_edits, find_removed_tests, hide_bug, render_lines, render_test_ids
from milonga.types import Problem, Rollout, Rollouts, Segment, Solution
from short import assert_resumes

torch.set_num_threads(1)
Texts = Callable[[Problem, int], str]
ALPHA = 0.8


# Rewards.


def test_the_injectors_reward_by_hand() -> None:
    assert injector_reward(0.25, ALPHA) == pytest.approx(1 - 1.8 * 0.25) == pytest.approx(0.55)
    assert injector_reward(0.125, ALPHA) == pytest.approx(0.775) and injector_reward(0.875, ALPHA) == pytest.approx(-0.575)
    assert injector_reward(0.0, ALPHA) == injector_reward(1.0, ALPHA) == -ALPHA > INVALID
    assert math.isnan(injector_reward(float("nan"), ALPHA))


@PROPERTY
@given(st.floats(0, 0.99), st.integers(1, 8))
def test_it_is_learnability_stretched_and_moved(alpha: float, solved: int) -> None:
    rate = solved / 8
    assert injector_reward(rate, alpha) == pytest.approx((1 + alpha) * learnability_reward(rate) - alpha)
    invalid = (INVALID + alpha) / (1 + alpha)  # where an invalid artifact sits on the scale of learnability
    assert invalid <= 0 and (alpha != 0.8 or invalid == pytest.approx(-1 / 9))


def test_among_valid_bugs_alpha_changes_nothing() -> None:
    rates, group = [0.0, 0.125, 0.5, 0.75, 1.0], ["one"] * 5
    found = [normalise(np.array([injector_reward(rate, alpha) for rate in rates]), group, "zscore") for alpha in (0.1, 0.8)]
    assert np.allclose(*found, atol=1e-4)


@PROPERTY
@given(st.floats(0, 1), st.integers(2, 12), st.floats(0, 0.99))
def test_the_expected_reward_is_the_mean_over_attempts(rate: float, attempts: int, alpha: float) -> None:
    chance = [math.comb(attempts, k) * rate**k * (1 - rate) ** (attempts - k) for k in range(attempts + 1)]
    mean = sum(p * injector_reward(k / attempts, alpha) for k, p in enumerate(chance))
    assert expected_injector_reward(rate, attempts, alpha) == pytest.approx(mean, abs=1e-9)


def test_it_peaks_where_the_paper_says() -> None:
    best = 1 - 8 ** (-1 / 7)
    assert best == pytest.approx(0.257, abs=5e-4)
    peak = expected_injector_reward(best, 8, ALPHA)
    assert all(expected_injector_reward(p / 100, 8, ALPHA) <= peak for p in range(101))
    assert all(peak - expected_injector_reward(p / 100, 8, ALPHA) < 0.105 for p in range(16, 39))
    assert peak - expected_injector_reward(0.12, 8, ALPHA) > 0.105 < peak - expected_injector_reward(0.42, 8, ALPHA)


# A turn by hand: agents that write what they are told to.


@dataclass
class Scripted(Context):
    """A context at which nobody is sampled: what each agent writes follows from the problem and the rollout's number."""

    texts: dict[str, Texts] | None = None

    def ask(
        self, agent: str, targets: Sequence[Problem] | Rollouts, n: int = 1, greedy: bool = False, tag: str = "live"
    ) -> Rollouts:
        rollouts, role = [], self.run.roles[agent]
        for problem in targets:
            assert isinstance(problem, Problem) and self.texts is not None
            for number in range(n):
                text = self.texts[agent](problem, number)
                made = Rollout.from_text(f"{self.turn}/{agent}/{problem.id}/{number}", agent, problem, text, role.parse(text))
                segment = Segment(agent, 0, 4, agent, 0, trained=True)
                rollouts.append(replace(made, ids=np.arange(4), logprobs=np.zeros(4), segments=(segment,), origin="sampled"))
        solved = [t for t in rollouts if isinstance(t.parsed.value, Solution)]
        grades = self.run.task.grade_all([(t.problem, t.parsed.value.answer, ()) for t in solved])
        for rollout, grade in zip(solved, grades, strict=True):
            rollout.grade = grade
        return Rollouts(rollouts)


def plan(**options: Any) -> Plan:
    more = {"injections": 4, "order2_prob": 0.0} | options
    binding = more.pop("binding", "shared")
    return resolve([{"recipe": "self_play_swe", "options": more, "binding": binding, "batch": {"problems": 1, "rollouts": 4}}])


def sample_rollouts(
    p: Plan, injector: Texts, solver: Texts, turn: int = 1, start: int = 0
) -> tuple[Scripted, Rollouts, SelfPlaySwe]:
    run_context = RunContext(None, p.task, p.roles, p.agents, p.config.sampling, 0, p.config.batch.problems)  # type: ignore[arg-type]
    at = Scripted(run_context, turn, "generator", start=start, texts={"injector": injector, "generator": solver})
    assert isinstance(p.recipe, SelfPlaySwe)
    return at, p.recipe.rollout(at), p.recipe


def artifacts(problem: Problem, count: int) -> list[str]:
    """Different valid artifacts for the repository of a problem, none of them of a held-out split."""
    repository, rng, found = (
        problem.data["bug"].repository,
        keyed_rng("artifacts", problem.id.split("/")[2]),
        dict[str, str](),
    )
    while len(found) < count:
        edits = draw_edits(repository, rng.choice(sorted(WAYS)), 1, rng)
        artifact = hide_bug(repository, edits, rng)
        train = Bugs().repositories.find_split({**repository.code, **edits}) == "train"
        if train and check_bug(repository, artifact, Bugs().repositories.runner, Requirements()).failed is None:
            found[render_lines(edits)] = (
                f"{render_lines(edits)}\n-{render_test_ids(list(find_removed_tests(repository.tests, artifact.weaken)))}"
            )
    return list(found.values())


def right(problem: Problem, number: int) -> str:
    return f"work\n#{problem.answer}"


def sometimes(times: int) -> Texts:
    """Right so many times; then a readable patch that changes something else, and is wrong."""

    def text(problem: Problem, number: int) -> str:
        bug: Bug = problem.data["bug"]
        other = next(name for name in bug.repository.code if name not in bug.artifact.bug)
        return right(problem, number) if number < times else f"work\n#{other}={bug.repository.code[other]}+7"

    return text


def rewards(p: Plan, injector: Texts, solver: Texts) -> list[float]:
    _, rollouts, recipe = sample_rollouts(p, injector, solver)
    attempts = rollouts.of("generator")
    return [recipe.reward_artifact(t.id, attempts) for t in rollouts if t.agent == "injector"]


def test_an_artifact_earns_what_became_of_it() -> None:
    def injector(problem: Problem, number: int) -> str:
        good = artifacts(problem, 1)[0]
        name, line = next(iter(problem.data["bug"].repository.code.items()))
        return [good, "no artifact", f"{name}={line}\n-{name}0", good][number]

    assert rewards(plan(), injector, sometimes(1)) == pytest.approx([0.55, -1, -1, 0.55])  # s = 1/4, and the same bug again
    assert rewards(plan(), injector, sometimes(4)) == pytest.approx([-ALPHA, -1, -1, -ALPHA])  # always repaired
    assert rewards(plan(), injector, sometimes(0)) == pytest.approx([-ALPHA, -1, -1, -ALPHA])  # never
    assert rewards(plan(reward="consistency"), injector, sometimes(0)) == pytest.approx([1, -1, -1, 1])


def test_the_same_bug_is_attempted_once_and_one_of_an_earlier_turn_is_of_no_more_use() -> None:
    p = plan()
    one: Texts = lambda problem, number: artifacts(problem, 1)[0]  # noqa: E731
    _, first, recipe = sample_rollouts(p, one, sometimes(2))
    assert len({t.problem.id for t in first if t.agent == "generator"}) == 1
    _, again, recipe = sample_rollouts(p, one, sometimes(2), turn=2)  # the same repository
    assert not again.of("generator")
    assert {recipe.reward_artifact(t.id, Rollouts([])) for t in again} == {-ALPHA}


def test_a_bug_that_a_held_out_problem_could_show_is_left_out() -> None:
    task = Bugs()

    def injector(problem: Problem, number: int) -> str:
        repository, rng = problem.data["bug"].repository, keyed_rng("held", problem.id)
        while True:
            edits = draw_edits(repository, "direct", 1, rng)
            artifact = hide_bug(repository, edits, rng)
            found = check_bug(repository, artifact, task.repositories.runner, Requirements())
            if found.failed is None and task.repositories.find_split({**repository.code, **edits}) != "train":
                return f"{render_lines(edits)}\n-{render_test_ids([sorted(found.broken)[0]])}"

    _, rollouts, recipe = sample_rollouts(plan(), injector, right)
    assert not rollouts.of("generator")
    assert all(math.isnan(recipe.reward_artifact(t.id, Rollouts([]))) for t in rollouts)
    shares = {
        name: share for name, share in recipe.compute_metrics(rollouts, Rollouts([])).items() if name.startswith("check/")
    }
    assert shares["check/held_out"] == sum(shares.values()) == 1


def test_failed_patches_become_bugs_of_the_second_order_and_no_further() -> None:
    injector: Texts = lambda problem, number: artifacts(problem, 1)[0]  # noqa: E731
    for chance, orders in ((0.0, {1}), (1.0, {1, 2})):
        _, rollouts, recipe = sample_rollouts(plan(order2_prob=chance), injector, sometimes(1))
        attempts = rollouts.of("generator")
        assert {t.problem.data["order"] for t in attempts} == orders
        assert [recipe.reward_artifact(t.id, attempts) for t in rollouts if t.agent == "injector"] == pytest.approx([0.55] * 4)
    second = [t for t in attempts if t.problem.data["order"] == 2]
    assert len(second) == 4 and all(t.correct == 0 for t in second), "the first repair alone leaves the patch's own damage"
    first = next(t for t in attempts if t.problem.data["order"] == 1)
    assert second[0].problem.text.split("|")[1] == first.problem.text.split("|")[1], "the same specification"
    assert second[0].problem.text != first.problem.text
    _, rollouts, recipe = sample_rollouts(plan(order2_prob=1.0, order2_to_injector=True), injector, sometimes(1))
    attempts = rollouts.of("generator")
    assert recipe.reward_artifact(rollouts[0].id, attempts) == pytest.approx(injector_reward(1 / 8, ALPHA))


def mixed(problem: Problem, number: int) -> str:
    return artifacts(problem, 1)[0] if number % 2 else "no artifact"


def test_one_policy_learns_to_break_and_to_repair_in_one_step() -> None:
    for binding, agents in (("shared", [{"injector", "generator"}]), ("own", [{"injector"}, {"generator"}])):
        at, rollouts, recipe = sample_rollouts(plan(binding=binding), mixed, sometimes(2))
        train_batches = recipe.credit(at, rollouts)
        assert [{t.agent for t in train_batch.rollouts} for train_batch in train_batches] == agents
        assert all(sum(train_batch.sources.values()) == pytest.approx(1) for train_batch in train_batches)
        assert train_batches[0].notes["check/valid"] == train_batches[0].notes["check/unreadable"] == 0.5
        for train_batch in train_batches:
            signs = {t.id: float(a.sum()) for t, a in zip(train_batch.rollouts, train_batch.advantages or [], strict=True)}
            for rollout in train_batch.rollouts:
                assert (signs[rollout.id] > 0) == (
                    rollout.correct == 1 or (rollout.agent == "injector" and rollout.parsed.is_valid)
                )


def test_a_shared_policy_never_learns_from_artifacts_alone() -> None:
    bad: Texts = lambda problem, number: "no artifact"  # noqa: E731
    at, rollouts, recipe = sample_rollouts(plan(), bad, right)
    assert len(rollouts) == 4 and recipe.credit(at, rollouts) == []
    at, rollouts, recipe = sample_rollouts(plan(learn="inject"), mixed, sometimes(2))  # unless that is what is asked for
    assert [{t.agent for t in train_batch.rollouts} for train_batch in recipe.credit(at, rollouts)] == [{"injector"}]


def test_repair_alone_goes_on_with_the_bugs_of_the_first_turns() -> None:
    p = plan(learn="repair", gather=2, injections=2)
    several: Texts = lambda problem, number: artifacts(problem, 2)[number]  # noqa: E731
    texts = set()
    for turn in (1, 2):
        at, rollouts, recipe = sample_rollouts(p, several, sometimes(2), turn, start=turn)
        assert [{t.agent for t in train_batch.rollouts} for train_batch in recipe.credit(at, rollouts)] == [{"generator"}]
        texts |= {t.problem.text for t in rollouts if t.agent == "generator"}
    at, rollouts, recipe = sample_rollouts(p, several, sometimes(2), 3, start=3)
    assert {t.agent for t in rollouts} == {"generator"} and {t.problem.text for t in rollouts} == texts
    assert len(texts) == 4 and len(recipe.credit(at, rollouts)) == 1


def test_a_bug_of_the_pool_that_cannot_be_checked_again_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    p = plan(learn="repair", gather=1, injections=2)
    several: Texts = lambda problem, number: artifacts(problem, 2)[number]  # noqa: E731
    sample_rollouts(p, several, sometimes(2))
    calls = iter(range(100))

    def not_at_first(*given: Any) -> Verdict:
        if not next(calls):
            raise NoVerdict("the sandbox was ended from outside")
        return Bugs().check_artifact(*given)

    monkeypatch.setattr(p.task, "check_artifact", not_at_first)
    at, rollouts, _ = sample_rollouts(p, several, sometimes(2), 2)
    assert len({t.problem.id for t in rollouts}) == 1 and at.dropped == {"pool: the checks could not be made": 1}


def test_prompts_are_drawn_and_artifacts_compared_within_one_repository_and_prompt() -> None:
    p = plan()
    run_context = RunContext(None, p.task, p.roles, p.agents, p.config.sampling, 0, 12)  # type: ignore[arg-type]
    at = Scripted(run_context, 1, "generator", texts={"injector": lambda problem, number: "no artifact"})
    asked = sample_injections(at, ["removal", "history"], 2)
    kinds = [rollout.problem.text.split()[0] for rollout in asked]
    assert set(kinds) == {"removal", "history"} and kinds[0::2] == kinds[1::2] and len(set(asked.problem_ids)) == 12
    assert {one.end for one in judge_injections(at, asked, Requirements(), []).values()} == {"unreadable"}


def test_artifacts_are_read_as_texts_of_the_repository() -> None:
    task = Bugs()
    repository = task.problem("train", 0).data["bug"].repository
    name = next(iter(repository.code))
    assert task.parse_artifact(repository, Injection(f"{name}=x+1", "b", "")) is None
    assert task.parse_artifact(repository, Injection(f"{name}=import os", f"{name}0", "")) is None


# In a run.


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    assert_resumes("self_play_swe", tmp_path, 1)
