"""CURE: who passes what, whose reward comes from where, the late stage, and that it resumes."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import TINY
from helpers import PROPERTY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.resolve import resolve
from milonga.roles import DIALECTS, Coder
from milonga.sandbox.values import InvalidValue, to_canonical
from milonga.systems.cure.credit import UnitTestReward
from milonga.systems.cure.roles import Tester, UnitTest, parse_arguments
from milonga.systems.cure.unit_tests import Bench, add_public_examples, label_noise, run_benches, score_best_program
from milonga.tasks import Code
from milonga.tasks.code import CodeOptions
from milonga.types import Parsed, Problem, Rollout, Rollouts, Solution
from sandbox_helpers import opened
from short import SHORT, assert_resumes, short_loop

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


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_test_reads_back_as_it_was_written(dialect: Any) -> None:
    tester = Tester(dialect)
    found = tester.parse(tester.write("[1,2],3", ["[2]"], "'x'"))
    assert found.is_valid and found.format == 1.0
    assert (found.value.arguments, found.value.expected) == (([1, 2], 3), to_canonical("x"))
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
    assert found.shares.tolist() == [1.0, 0.0, 0.5, 0.0, 0.0] and found.labelled[1].tolist() == [True, *[False] * 4]
    assert found.readable_mask.tolist() == [True, True, True, False, True]
    assert found.valid is not None and found.valid.tolist() == [True, True, False, False, True]
    assert score_best_program(found) == 1.0 and score_best_program(replace(found, passes=found.passes[:, 2:3])) == 0.0


ROWS = [
    {"prompt": "The square of n.", "entry_point": "f", "tests": [[[1], 1], [[2], 4], [[10**6], 10**12]]},
    {"prompt": "Print the sum of two numbers.", "inputs": ["1 2\n", "5 5\n"], "outputs": ["3", "10"]},
]
SLOW = "```python\ndef f(n):\n    while n > 10**6:\n        pass\n    return n * n\n```"
LOUD = "def f(n):\n    print('x' * n)\n    return n * n"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Code]:
    """A function, and a program that reads and prints."""
    opened("isolated").close()  # or skipped
    path = tmp_path_factory.mktemp("data") / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS)))
    task = Code(CodeOptions(dialect="python", path=str(path), dev=0, test=0))
    yield task
    task.runner.sandbox.close()


def pick(task: Code, reads: bool) -> Problem:
    return next(problem for problem in task.draw_problems("train", 0, 2) if bool(problem.data["printed"]) == reads)


def run_python_bench(ctx: Context, task: Code, problem: Problem, programs: list[str], tests: list[str]) -> Bench:
    """The bench of programs and tests that an instruct model might write, run in the sandbox."""
    tester = Tester("plain")
    rollouts = [
        Rollout.from_text(f"g/{n}", "generator", problem, text, Parsed(Solution((), (), text), 1.0))
        for n, text in enumerate(programs)
    ]
    rollouts += [Rollout.from_text(f"t/{n}", "tester", problem, text, tester.parse(text)) for n, text in enumerate(tests)]
    (found,) = run_benches(Context(replace(ctx.run, task=task), 1, "generator"), Rollouts(rollouts))
    return found


def test_a_written_test_that_never_ends_takes_nothing_from_a_program(ctx: Context, python: Code) -> None:
    tests = [f"```python\nassert f({n}) == {n * n}\n```" for n in (10**9, 4)]
    found = run_python_bench(ctx, python, pick(python, False), [SLOW], tests)
    assert found.shares.tolist() == [1.0] and found.passes.tolist() == [[False, True]] and found.known.all()


def test_a_hidden_test_beyond_a_limit_fails_alone(ctx: Context, python: Code) -> None:
    assert run_python_bench(ctx, python, pick(python, False), [LOUD], []).shares.tolist() == [0.5]


def test_programs_that_read_and_print_meet_inputs_and_outputs(ctx: Context, python: Code) -> None:
    right, wrong = "```python\nprint(sum(map(int, input().split())))\n```", "print(3)"
    tests = ["```input\n2 2\n```\n```output\n4\n```", "**Input:**\n```\n1 2\n```\n**Output:**\n```\n3\n```"]
    found = run_python_bench(ctx, python, pick(python, True), [right, wrong], tests)
    assert found.shares.tolist() == [1.0, 0.5] and found.passes.tolist() == [[True, True], [False, True]]


def test_what_the_sandbox_could_not_run_is_missing(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """One right program, one wrong one that passes the test, and one that nobody could run: 1 - 1/1, and not 1 - 1/2."""
    coder, tester = Coder("terse"), Tester("terse")
    rollouts = [written("generator", coder, text, n) for n, text in enumerate(PROGRAMS[:3])]
    rollouts += [written("tester", tester, TESTS[0], 0)]
    ran = [(True, True), (False, True), None, (True,), (True,), None]
    monkeypatch.setattr(Code, "run_hidden_tests", lambda self, items, apart: ran)
    here = Context(ctx.run, 1, "generator")
    (found,) = run_benches(here, Rollouts(rollouts))
    assert found.known.tolist() == [True, True, False] and np.isnan(found.shares[2])
    rewards = UnitTestReward().rewards(*found.labelled, found.readable_mask)
    assert rewards is not None and rewards.tolist() == [0.0]
    assert sum(here.dropped.values()) == 1 and score_best_program(found) == 1.0
    nobody = replace(found, known=np.zeros(3, dtype=bool))
    assert np.isnan(score_best_program(nobody))


def test_a_run_that_failed_is_no_difference(ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ctx.task.problem("train", 0)
    program = Rollout.from_text("g", "generator", problem, "", Parsed(Solution((), (), problem.answer), 1.0))
    bench = Bench([program], [], np.zeros((1, 0), dtype=bool), np.ones(1), np.ones(1, dtype=bool))
    assert label_noise(ctx, [bench]) == 0.0
    monkeypatch.setattr(Code, "run_programs", lambda self, items, apart: [None, (to_canonical(1),)])
    assert label_noise(ctx, [bench]) is None


def test_the_public_example_is_told_as_often_as_asked(ctx: Context) -> None:
    problems = ctx.task.draw_problems("train", 0, 200)
    assert all(
        a.text == f"{b.text}\n{b.data['public']}"
        for a, b in zip(add_public_examples(ctx, problems, 1.0), problems, strict=True)
    )
    assert add_public_examples(ctx, problems, 0.0) == problems
    some = sum("\n" in problem.text for problem in add_public_examples(ctx, problems, 0.5))
    assert 70 < some < 130


PLAIN = [
    # What was asked for.
    ("The square of 3 is 9.\n\n```python\nassert f(3) == 9\n```", ("f", (3,), 9), 1.0),
    ("<think>assert f(1) == 1 is trivial.</think>\n```python\nassert f(3) == 9\n```", ("f", (3,), 9), 1.0),
    ("```python\nassert f('a<b>', [1]) == {'<': 1}, 'angles'\n```", ("f", ("a<b>", [1]), {"<": 1}), 1.0),
    # Other forms.
    ("**Test:** `assert f(2) == 4`\n\nassert f(3) == 9", ("f", (3,), 9), 0.5),
    ("**Test:** `assert f(3) == 9`", ("f", (3,), 9), 0.5),
    ("Input: `[1, 2]`\nOutput: `3`", (None, ([1, 2],), 3), 0.5),
    ("```python\ndef f(n):\n    return n * n\n\nassert f(1) == 1\nassert f(3) == 9\n```", ("f", (3,), 9), 0.5),
    ("```python\nassert is_even(4)\n```", ("is_even", (4,), True), 1.0),
    ("```\nassert not is_even(3)\n```", ("is_even", (3,), False), 1.0),
    ("```\nTest:\nassert f(2) == 4\n```", ("f", (2,), 4), 1.0),
    # Written by Qwen2.5-Coder-0.5B-Instruct.
    (
        "```python\ndef even_num(num):\n    if num % 2 == 0:\n        return True\n    else:\n        return False\n"
        "assert even_num(13.5) == False\nassert even_num(24) == True\nassert even_num(23) == False\n```",
        ("even_num", (23,), False),
        0.5,
    ),
    # Written by Qwen2.5-Coder-1.5B-Instruct.
    (
        "`count_char(\"hello\", 'l') == 2`\n\nThis test calls `count_char` with the string \"hello\" and the character 'l'. As "
        "per the function's specification, it should return the number of times 'l' appears in \"hello\", which is 2.",
        ("count_char", ("hello", "l"), 2),
        0.5,
    ),
    (
        "Here is one test of the `count_Pairs` function:\n\n```python\ncount_Pairs([2, 2, 2, 2], 4) == 6\n```\n\nA right "
        "program that solves this inputs would return the expected output, which is `6`.",
        ("count_Pairs", ([2, 2, 2, 2], 4), 6),
        0.5,
    ),
    ("### Input\n```\nf([1, 2], n=3)  # three\n```\nOutput: `[4]`", (None, ([1, 2], 3), [4]), 0.5),
]


@pytest.mark.parametrize(("text", "test", "score"), PLAIN)
def test_a_test_in_prose_is_read(text: str, test: tuple[str | None, tuple[Any, ...], Any], score: float) -> None:
    found = Tester("plain").parse(text)
    value = found.value
    assert found.is_valid and found.format == score
    assert (value.entry, value.arguments, value.expected) == (test[0], test[1], to_canonical(test[2]))


NO_TESTS = [
    "```python\ndef even_num(x):\n    return x % 2 == 0\n```",  # so wrote Qwen2.5-Coder-0.5B-Instruct
    "Call `f(3)`, which is `9`.",  # neither is named, and one piece of code is not both
    "It gives \\boxed{9}.",
    # Two, by the same 1.5B (shortened): which is the test is not said.
    "```python\ncount_Pairs([1, 1, 1, 1], 4) == 6\n```\n\nA wrong one:\n\n```python\ncount_Pairs([1, 1, 1, 2], 4) == 3\n```",
    "```python\nprint(f(3) == 9)\n```",
    "`f(range(3)) == 3`",
    "Input: `3`",
    '#### Input\nThe program will read an integer.\n```python\nn = int(input("Enter an integer n: "))\n```',
]


@pytest.mark.parametrize(
    "text", [*NO_TESTS, "", "It squares.", "```python\nassert abs(f(2) - 4) < 1e-6\n```", "<think>assert f(1) == 1"]
)
def test_what_is_no_test_is_said_to_be_none(text: str) -> None:
    found = Tester("plain").parse(text)
    assert not found.is_valid and found.format == 0.0


def test_a_test_of_another_function_is_none_of_this_task() -> None:
    call, text = Tester("plain").parse("```python\nassert f(2) == 4\n```"), Tester("plain").parse("Input: 2\nOutput: four")
    square, other, add = (
        Problem("", "", "", data) for data in ({"entry": "f"}, {"entry": "g"}, {"entry": "", "printed": ["1"]})
    )
    assert [call.value.fits(problem) for problem in (square, other, add)] == [True, False, False]
    assert [text.value.fits(problem) for problem in (square, other, add)] == [False, False, True]


def test_thoughts_and_angles_may_stand_in_tagged_tests() -> None:
    found = Tester("tagged").parse("Sure!\n<input>'<b>', 1</input>\n<output>'>'</output>")
    assert found.is_valid and found.format == 0.5 and found.value.arguments == ("<b>", 1)


@PROPERTY
@given(st.text(alphabet="ab1'\"[]{}(),:=<>`#\n \\assertf", max_size=80))
def test_no_text_breaks_the_reader_of_tests(text: str) -> None:
    for dialect in DIALECTS:
        found = Tester(dialect).parse(text)
        assert 0 <= found.format <= 1 and isinstance(found.value, UnitTest)


def test_each_form_of_task_is_asked_in_its_own_words(python: Code) -> None:
    square, add = pick(python, False), pick(python, True)
    for dialect in ("plain", "tagged"):
        tester = Tester(dialect)  # type: ignore[arg-type]
        call, text = ("".join(part.text for part in tester.prompt(problem)) for problem in (square, add))
        assert square.text in call and "a call of `f`" in call and "what a right program prints" in text
        assert all(part.foreign for part in tester.prompt(square) if part.text in (square.text, "f"))


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


def test_both_updates_of_a_turn_are_reported(tmp_path: Path) -> None:
    with short_loop("cure", tmp_path) as loop:
        loop.run_turn()
    (row,) = loop.rows
    assert row["learn/generator/steps"] == row["learn/generator/version"] == 2, "the coder's and the tester's"
    shares = {name: row[f"flow/{name}>generator"] for name in ("answers", "generator")}
    programs, tests = 4 * 4, 4 * 4 * (1 - row["credit/generator/unlabelled"])
    assert shares["generator"] == pytest.approx(0.5 * tests / (programs + tests)) and sum(shares.values()) == 1.0


def test_it_resumes_bit_for_bit(tmp_path: Path) -> None:
    assert_resumes("cure", tmp_path, 1)
