"""The curriculum: learnability by hand, levels of tasks, the chooser's grammar, who is paid for what, and the arms by hand."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import FAST, TINY
from helpers import GRAMMARS
from hidden import same_after_a_cut
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit.difficulty import learnability, normalised_entropy, scheduled_level
from milonga.errors import ConfigError
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect
from milonga.systems.curriculum.recipe import group_by_rate
from milonga.systems.curriculum.roles import Choice, Chooser, make_level_problem
from milonga.tasks import make_task
from milonga.tasks.chain import Chain
from milonga.types import Grade, Parsed

torch.set_num_threads(1)
OPTIONS = {"warmup": 0, "n_generator": 1, "formats": 1, "explore": 0.25}
dialects = st.sampled_from(GRAMMARS)


def plan(**options: Any) -> Plan:
    return resolve([{"recipe": "curriculum", "options": OPTIONS | options}, TINY, {"task": {"name": "chain", "ops": 3}}])


def ctx(p: Plan, learner: str = "generator", progress: float = 0.0) -> Context:
    run_context = RunContext(make_engine(p), p.task, p.roles, p.agents, p.config.sampling, 0, p.config.batch.problems)
    return Context(run_context, 1, learner, progress=progress)


# The reward.


def test_learnability_by_hand() -> None:
    assert [learnability(rate) for rate in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0.0, 0.75, 1.0, 0.75, 0.0]
    assert math.isnan(learnability(float("nan")))


@given(st.floats(0, 1))
def test_learnability_is_a_share_and_the_same_for_right_and_wrong(rate: float) -> None:
    assert 0 <= learnability(rate) <= 1
    assert learnability(rate) == pytest.approx(learnability(1 - rate))


def test_spread_and_the_schedule_by_hand() -> None:
    assert normalised_entropy([3, 3], 4) == 0.0 and normalised_entropy([1, 2, 3, 4], 4) == pytest.approx(1.0)
    assert normalised_entropy([1, 2], 4) == pytest.approx(0.5) and normalised_entropy([], 4) is None
    assert [scheduled_level((2, 3, 4), share) for share in (0.0, 0.3, 0.34, 0.66, 0.67, 1.0)] == [2, 2, 3, 3, 4, 4]


# Levels.


@pytest.mark.parametrize(
    ("task", "levels"),
    [
        ({"name": "chain", "ops": 3}, (1, 2, 3)),
        ({"name": "chain", "ops": 4, "min_ops": 3}, (3, 4)),
        ({"name": "last_letter", "min_words": 2, "max_words": 4}, (2, 3, 4)),
    ],
)
def test_a_level_is_the_number_of_steps_and_the_task_grades_it(task: dict[str, Any], levels: tuple[int, ...]) -> None:
    whole = make_task(task)
    assert whole.levels == levels
    held_out = {whole.problem("test", index).text for index in range(50)}
    for level in levels:
        for split in ("train", "test"):
            for problem in whole.at_level(level).draw_problems(split, 0, 20):  # type: ignore[arg-type]
                assert whole.step_count(problem) == level and whole.grade(problem, problem.answer, ()).correct
                assert split == "test" or problem.text not in held_out


# The chooser.


@given(dialects, st.integers(1, 64))
def test_a_written_choice_reads_back(dialect: Dialect, level: int) -> None:
    role = Chooser(dialect)
    assert role.parse(role.write(level)).value == Choice(level)


@pytest.mark.parametrize(
    "text", ["", "0", "03", "3 4", "3\n", "level 3", "-3", "3.0", "<level>3</level><level>4</level>", "３"]
)
@pytest.mark.parametrize("dialect", GRAMMARS)
def test_what_names_no_level_is_invalid(dialect: Dialect, text: str) -> None:
    parsed = Chooser(dialect).parse(text)
    assert not parsed.is_valid and parsed.value.level is None and parsed.format == 0.0


def test_the_chooser_sees_tenths() -> None:
    shown = make_level_problem((1, 2, 3, 4), {"1": 1.0, "2": 0.59, "4": 0.0}, "rates")
    assert shown.text == "1:9 2:5 3:? 4:0" and shown.answer == ""
    assert all(shown.text in "".join(part.text for part in Chooser(dialect).prompt(shown)) for dialect in GRAMMARS)


@pytest.mark.parametrize(
    ("text", "level", "form"),
    [
        ("3", 3, 1.0),
        ("**Level 3**", 3, 1.0),
        ("Level 3.\n", 3, 1.0),
        ("3\n\nLevel 1 is solved nearly always, so it teaches little.", 3, 0.5),
        ("<think>Level 1 is easy, 9 of 10.</think>\nLevel 2", 2, 1.0),
        ("The next problem should be of Level 4, since it is solved 5 of 10 times.", 4, 0.5),
        ("The answer is \\boxed{2}, not level 3.", 2, 0.5),
        ("```\n5\n```", 5, 0.5),
        ("I would take 2.", 2, 0.5),
        ("Level 3 is solved 5 of 10 times, so level 3.", 3, 0.5),
        ("Level 2 is too easy and Level 4 too hard, so \\boxed{3}.", 3, 0.5),
        ("Level 2 is too easy and Level 4 too hard, so 3.", None, 0.0),
        ("I cannot say.", None, 0.0),
        ("It is 3 or 4.", None, 0.0),
        ("About 50% of them, 0.5 in all.", None, 0.0),
        ("", None, 0.0),
    ],
)
def test_a_level_is_read_in_plain_words(text: str, level: int | None, form: float) -> None:
    parsed = Chooser("plain").parse(text)
    assert (parsed.value, parsed.format, parsed.is_valid) == (Choice(level), form, level is not None)


@given(st.text(max_size=60), st.integers(1, 64))
def test_any_words_are_read_without_an_error_and_what_is_written_reads_back(text: str, level: int) -> None:
    role = Chooser("plain")
    assert role.parse(role.write(level)) == Parsed(Choice(level), 1.0)
    assert role.parse(text).is_valid == (role.parse(text).value.level is not None)  # type: ignore[union-attr]


def test_the_chooser_is_asked_in_plain_words() -> None:
    shown = make_level_problem((1, 2, 3), {"1": 1.0, "3": 0.0}, "rates")
    asked = "".join(part.text for part in Chooser("plain").prompt(shown))
    assert "Level 1: 9 of 10\nLevel 2: not tried yet\nLevel 3: 0 of 10\n\nThe student" in asked and Chooser("plain").stop == ()


# The recipe.


def test_a_choice_is_paid_for_the_problem_it_led_to() -> None:
    p = plan()
    at = ctx(p)
    choices = p.recipe.sample_choices(at)  # type: ignore[attr-defined]
    assert len(choices) == 3  # one of four problems is of the even mix
    for choice, level in zip(choices, (1, 3, None), strict=True):
        choice.parsed = Parsed(Choice(level), 1.0)
    problems = p.recipe.draw_problems(at, choices)  # type: ignore[attr-defined]
    assert [x.source for x in problems] == [choices[0].id, choices[1].id, None, None]
    assert [x.data["level"] for x in problems[:2]] == [1, 3] and all(x.data["level"] in (1, 2, 3) for x in problems)
    assert [p.task.step_count(x) for x in problems] == [x.data["level"] for x in problems]
    solutions = at.ask("generator", problems, 4)
    for number, rollout in enumerate(solutions):
        rollout.grade = Grade((True, True, True, False, *[True] * 4, *[False] * 8)[number])
    train_batch = p.recipe.credit_proposer(at, choices, solutions)  # type: ignore[attr-defined]
    rewards = np.array([learnability(0.75), 0.0, 0.0])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    assert [float(a[t.mask][0]) for a, t in zip(train_batch.advantages, choices, strict=True)] == pytest.approx(
        expected.tolist()
    )
    assert train_batch.sources == {"generator": 1.0} and train_batch.notes["level"] == 2.0


def test_rates_are_remembered_by_level() -> None:
    p = plan(memory=0.5)
    at = ctx(p)
    solutions = at.ask("generator", p.recipe.draw_problems(at, p.recipe.sample_choices(at)), 2)  # type: ignore[attr-defined]
    for rollout in solutions:
        rollout.grade = Grade(True)
    p.recipe.update_solve_rates(solutions)  # type: ignore[attr-defined]
    first = dict(p.recipe.state["rates"])
    assert set(first.values()) == {1.0}
    for rollout in solutions:
        rollout.grade = Grade(False)
    p.recipe.update_solve_rates(solutions)  # type: ignore[attr-defined]
    assert p.recipe.state["rates"] == dict.fromkeys(first, 0.5)


def test_the_arms_by_hand_choose_without_a_proposer() -> None:
    p = plan(choose="easy_to_hard")
    for progress, level in ((0.0, 1), (0.5, 2), (0.9, 3)):
        posed = p.recipe.draw_problems(ctx(p, progress=progress), p.recipe.sample_choices(ctx(p)))  # type: ignore[attr-defined]
        assert {x.data["level"] for x in posed} == {level}
    fixed = resolve([{"recipe": "curriculum", "options": OPTIONS | {"choose": "fixed"}}, TINY, {"batch": {"problems": 60}}])
    posed = fixed.recipe.draw_problems(ctx(fixed), fixed.recipe.sample_choices(ctx(fixed)))  # type: ignore[attr-defined]
    assert 18 < sum(x.data["level"] == 1 for x in posed) < 42  # two levels, alike
    for recipe in (p.recipe, fixed.recipe):
        assert recipe.schedule().intro == () and {phase.learner for phase in recipe.schedule().cycle} == {
            "generator",
            "verifier",
        }


def test_dynamic_sampling_is_refused() -> None:
    with pytest.raises(ConfigError, match="lets its proposer choose the problems"):
        resolve([{"recipe": "curriculum"}, TINY, {"policies": {"generator": {"objective": {"preset": "dapo"}}}}])


def test_a_task_without_levels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Chain, "levels", ())
    with pytest.raises(ConfigError, match="levels of difficulty, which task 'chain' does not have"):
        plan()


def test_levels_by_pass_rate_are_fifths_and_the_first_is_the_easiest() -> None:
    rates = {0: 1.0, 1: 0.8, 2: 0.79, 3: 0.2, 4: 0.19, 5: 0.0, 9: 0.5}
    assert group_by_rate(rates) == {1: [0, 1], 2: [2], 4: [3], 5: [4, 5], 3: [9]}
    p = resolve(
        [
            {"recipe": "curriculum", "options": OPTIONS | {"levels": "pass_rate", "choose": "fixed"}},
            TINY,
            {"task": {"name": "chain", "ops": 3, "pass_rate": [0, 1]}},
        ]
    )
    p.task.kept = {4: 0.9, 7: 1.0, 2: 0.1}
    drawn = p.recipe.draw_at(ctx(p), [5, 1, 1, 5])  # type: ignore[attr-defined]
    assert drawn == [p.task.problem("train", index) for index in (2, 7, 4, 2)]


def test_a_run_goes_on_in_the_same_bits(tmp_path: Path) -> None:
    policies = {"generator": FAST, "verifier": FAST}
    assert same_after_a_cut("curriculum", 2, TINY | {"options": OPTIONS, "policies": policies}, tmp_path / "run")
