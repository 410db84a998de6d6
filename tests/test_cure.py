"""CURE: who passes what, whose reward comes from where, the late stage, and that it resumes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import TINY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.resolve import resolve
from milonga.roles import Coder
from milonga.sandbox.values import InvalidValue, to_canonical
from milonga.systems.cure.roles import Tester, UnitTest, parse_arguments
from milonga.systems.cure.unit_tests import add_public_examples, run_benches, score_best_program
from milonga.tasks import Code
from milonga.tasks.code import CodeOptions
from milonga.types import Problem, Rollout, Rollouts
from short import SHORT, assert_resumes

FOLD = Problem(
    "p",
    "a:even sum",
    "sum([x for x in a if x%2==0])",
    {
        "family": "fold",
        "slots": [["keep", "even"], ["end", "sum"]],
        "signature": "a",
        "public": "[2]=2",
        "inputs": [[[1, 2, 4]], [[3]]],
        "outputs": [to_canonical(6), to_canonical(0)],
    },
)

# Roles.


@pytest.mark.parametrize("dialect", ["terse", "tagged"])
def test_a_test_reads_back_as_it_was_written(dialect: Any) -> None:
    tester = Tester(dialect)
    found = tester.parse(tester.write("[1,2],3", ["[2]"], "'x'"))
    assert found.is_valid and found.value == UnitTest(([1, 2], 3), to_canonical("x"))
    for text in ("", "[1,2]", "[1]\n2", "[1\n#2", "f(1)\n#2", "[1]\n#x", "<input>[1]</input>"):
        broken = tester.parse(text)
        assert not broken.is_valid and broken.value.arguments is None


def test_arguments_are_data() -> None:
    assert parse_arguments("[1],2") == ([1], 2) and parse_arguments("(1,2)") == ((1, 2),) and parse_arguments("") == ()
    for text in ("1) or (1", "__import__('os')", "x", "1;2", "[1"):
        with pytest.raises(InvalidValue):
            parse_arguments(text)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_the_teacher_of_tests_is_right_unless_it_slips(noise: float) -> None:
    task, tester = Code(CodeOptions(min_level=1, level=3)), Tester("terse", noise, lazy=0.5)
    for index in range(60):
        problem = task.problem("train", index)
        _, text = tester.demonstrate(task, problem, random.Random(index))
        test = tester.parse(text).value
        (gave,) = task.run_programs([(problem, problem.answer, [test.arguments])])
        assert gave is not None and (gave[0] == test.expected) == (noise == 0.0), (problem.text, text)


def test_a_program_stands_in_its_tag_as_it_is() -> None:
    coder = Coder("tagged")
    text = coder.write(["count them"], "def f(a):\n    return {x: 1 for x in a}")
    found = coder.parse(text)
    assert found.is_valid and found.value.answer == "def f(a):\n    return {x: 1 for x in a}"
    assert found.value.steps == ("count them",) and text[found.value.ends[0] - 7 : found.value.ends[0]] == "</step>"
    assert not coder.parse("<think></think><answer>x</answer>").is_valid and not coder.parse("x").is_valid


# The context of who passes what.


def written(agent: str, role: Coder | Tester, text: str, number: int) -> Rollout:
    return Rollout.from_text(f"{agent}/{number}", agent, FOLD, text, role.parse(text))


PROGRAMS = ["x%2==0\nsum\n#sum([x for x in a if x%2==0])", "sum\n#sum(a)", "x\n#0", "x\n#1//0", "nothing"]
TESTS = ["[1,2]\n#2", "[]\n#0", "[1,2]\n#3", "unreadable", "[1,2]\n#2"]


@pytest.fixture(scope="module")
def ctx() -> Context:
    plan = resolve([TINY, SHORT["cure"].settings, {"recipe": "cure"}])
    return Context(
        RunContext(make_engine(plan), plan.task, plan.roles, plan.agents, plan.config.sampling, 0, 4), 1, "generator"
    )


def test_every_program_meets_every_test(ctx: Context) -> None:
    coder, tester = Coder("terse"), Tester("terse")
    rollouts = [written("generator", coder, text, n) for n, text in enumerate(PROGRAMS)]
    rollouts += [written("tester", tester, text, n) for n, text in enumerate(TESTS)]
    (found,) = run_benches(ctx, Rollouts(rollouts), reference=True)
    assert found.passes.astype(int).tolist() == [[1, 1, 0, 0, 1], [0, 1, 1, 0, 0], [0, 1, 0, 0, 0], [0] * 5, [0] * 5]
    assert found.shares.tolist() == [1.0, 0.0, 0.5, 0.0, 0.0] and found.right_mask.tolist() == [True, *[False] * 4]
    assert found.readable_mask.tolist() == [True, True, True, False, True]
    assert found.valid is not None and found.valid.tolist() == [True, True, False, False, True]
    assert score_best_program(found) == 1.0 and score_best_program(replace(found, passes=found.passes[:, 2:3])) == 0.0


def test_the_public_example_is_told_as_often_as_asked(ctx: Context) -> None:
    problems = ctx.task.draw_problems("train", 0, 200)
    assert all(
        a.text == f"{b.text}\n{b.data['public']}"
        for a, b in zip(add_public_examples(ctx, problems, 1.0), problems, strict=True)
    )
    assert add_public_examples(ctx, problems, 0.0) == problems
    some = sum("\n" in problem.text for problem in add_public_examples(ctx, problems, 0.5))
    assert 70 < some < 130


# The recipe.


def train_batches(options: dict[str, Any], labels: list[str]) -> dict[str, Any]:
    """The train batches of a turn whose programs and tests are written by hand, by policy of the agent."""
    plan = resolve([TINY, SHORT["cure"].settings, {"recipe": "cure", "binding": "own", "options": options}])
    run_context = RunContext(make_engine(plan), plan.task, plan.roles, plan.agents, plan.config.sampling, 0, 4)
    ctx = Context(run_context, 5, "generator")
    programs = ctx.ask("generator", [FOLD], len(labels))
    for rollout, text in zip(programs, labels, strict=True):
        rollout.text, rollout.parsed = text, Coder("terse").parse(text)
    tests = ctx.ask("tester", [FOLD], len(TESTS))
    for rollout, text in zip(tests, TESTS, strict=True):
        rollout.text, rollout.parsed = text, Tester("terse").parse(text)
    return {train_batch.policy: train_batch for train_batch in plan.recipe.credit(ctx, Rollouts([*programs, *tests]))}


def signs(train_batch: Any) -> list[int]:
    return [int(np.sign(array.sum())) for array in train_batch.advantages]


def test_programs_are_paid_by_hidden_tests_and_tests_by_programs() -> None:
    found = train_batches({}, PROGRAMS)
    assert signs(found["generator"]) == [1, -1, 1, -1, -1] and found["generator"].sources == {"answers": 1.0}
    # r = v - f of the five tests: 3/4 less nothing, ... the empty list is passed by two wrong programs of four.
    assert found["tester"].notes["validity"] == pytest.approx(3 / 5)
    assert signs(found["tester"]) == [1, 1, -1, -1, 1] and found["tester"].sources == {"generator": 0.5, "answers": 0.5}
    spread = [array.max() - array.min() for array in found["tester"].advantages]
    assert spread[0] > spread[1], "the test that lets wrong programs through earns less"


def test_without_a_right_program_nobody_knows_which_tests_are() -> None:
    found = train_batches({}, PROGRAMS[1:])
    assert set(found) == {"generator"}


def test_the_coder_alone_and_the_late_stage() -> None:
    assert set(train_batches({"train_tester": False}, PROGRAMS)) == {"generator"}
    late = train_batches({"post_stage_at": 3, "format_fail_value": 0.0}, PROGRAMS)["tester"]
    assert signs(late) == [1, -1, -1, -1, 1], "1, 0, -1, 0, 1 around their mean"


def test_the_kl_is_to_the_frozen_start_unless_asked_otherwise() -> None:
    plan = resolve([TINY, SHORT["cure"].settings, {"recipe": "cure"}])
    loss = plan.recipe.objectives["generator"].loss
    assert (loss.kl_coef, loss.kl_from, loss.aggregate) == (0.01, "ref", "sequence_mean")
    assert plan.recipe.schedule().cycle[0].enter == ()
    again = resolve(
        [TINY, SHORT["cure"].settings, {"recipe": "cure", "policies": {"generator": {"objective": {"kl_from": "phase"}}}}]
    )
    (action,) = again.recipe.schedule().cycle[0].enter
    assert (action.kind, action.policy, action.source) == ("snapshot", "generator", "phase")


def test_it_takes_its_own_task_and_refuses_others() -> None:
    plan = resolve([{"recipe": "cure"}])
    assert plan.task.name == "code" and plan.policies["generator"].model == "embedded/code"
    with pytest.raises(ConfigError, match="works only with the tasks code, not with 'chain'"):
        resolve([{"recipe": "cure", "task": "chain"}])


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    assert_resumes("cure", tmp_path, 1)
