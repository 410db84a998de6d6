"""SFT: worked solutions and their flaws by hand, what the teachers write, the filter, and runs that begin from the kept."""

from __future__ import annotations

import json
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import milonga
from cases import TINY
from helpers import GRAMMARS, PROPERTY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.evals import make_bench
from milonga.resolve import Plan, resolve
from milonga.roles import Dialect, StepSolver, StepVerifier
from milonga.runfolder.files import JsonLines
from milonga.runfolder.folder import read_config
from milonga.systems.sft.recipe import is_right
from milonga.tasks import make_task, worked
from milonga.tasks.base import DEMONSTRATIONS
from test_tasks_data import shared_data

QUESTION = "Ann has 48 clips and sells half of them for $3 each. She pays 20 for a bus. What is left?"
WORKED = """\
She sells 48/2 = <<48/2=24>>24 clips.
She gets 24 x $3 = $<<24*3=72>>72 for the 24 clips.
A bus is not free.
So $72 - 20 = $<<72-20=52>>52 is left."""


def flaws(answer: str = "52", solution: str = WORKED, question: str = QUESTION) -> list[Any]:
    return [worked.make_flawed_demonstration(solution, answer, question, random.Random(i)) for i in range(60)]


# Worked solutions.


def test_marks_are_not_shown_and_become_checks() -> None:
    shown = worked.make_right_demonstration(WORKED, "52")
    assert shown.steps[1] == "She gets 24 x $3 = $72 for the 24 clips." and shown.steps[2] == "A bus is not free."
    assert shown.checks == ("48/2=24", "24*3=72", "", "72-20=52")
    assert shown.truth == (True,) * 4 and shown.correct and shown.answer == "52"


def test_one_sum_is_wrong_and_the_rest_goes_on_from_it() -> None:
    found = {shown.first_error: shown for shown in flaws()}
    assert set(found) == {0, 1, 3}, "a step without a sum cannot be made wrong"
    first = found[0]
    wrong = int(first.steps[0].split("= ")[1].split()[0])
    assert wrong != 24 and first.truth == (False, True, True, True) and not first.correct
    assert first.steps[1] == f"She gets {wrong} x $3 = ${3 * wrong} for the {wrong} clips."
    assert first.steps[3] == f"So ${3 * wrong} - 20 = ${3 * wrong - 20} is left." and first.answer == str(3 * wrong - 20)
    assert first.checks == ("48/2=24", f"{wrong}*3={3 * wrong}", "", f"{3 * wrong}-20={3 * wrong - 20}")
    assert found[3].steps[:3] == worked.make_right_demonstration(WORKED, "52").steps[:3] and found[3].checks[3] == "72-20=52"


@pytest.mark.parametrize(
    ("solution", "answer", "question"),
    [
        ("It is <<6*4=24>>24.", "24", "Why 24?"),  # the number has a meaning already
        ("It is <<6*4=24>>24.\nAnd <<8*3=24>>24.", "24", "?"),  # and here it gets a second one
        ("It is <<10/3=3.33>>3.33.", "3.33", "?"),  # rounded
        ("It is <<6*4=24>>24.", "7", "?"),  # the answer does not depend on it
        ("It is 24.", "24", "?"),
        ("It is <<__import__('os')=24>>24, <<2**9=24>>24, <<=24>>24.", "24", "?"),
        ("It is <<1-1=0>>0.", "0", "?"),
        ("Half is 48/2 = <<48/2=24>>24.\nIn all 48+24 = 72, or <<24*3=72>>72.", "72", "48"),  # a sum without a mark
    ],
)
def test_what_is_in_doubt_is_left_alone(solution: str, answer: str, question: str) -> None:
    assert set(flaws(answer, solution, question)) == {None}


BARE = """\
She sells 48 / 2 = 24 clips.
She gets 24 x $3 = $72 for the 24 clips.

A bus is not free.

So $72 - 20 = $52 is left."""


def test_sums_that_are_written_out_are_as_good_as_marked_ones() -> None:
    paragraphs = BARE.replace("clips.\nShe", "clips.\n\nShe")
    assert worked.split_steps(BARE)[0] == "She sells 48 / 2 = 24 clips.\nShe gets 24 x $3 = $72 for the 24 clips."
    assert len(worked.split_steps(WORKED.replace("clips.\nA", "clips.\n\nA"))) == 4, "a line is a step where there are marks"
    shown = worked.make_right_demonstration(paragraphs, "52")
    assert shown.checks == ("48 / 2=24", "24 * 3=72", "", "72 - 20=52") and "<<" not in "".join(shown.steps)
    found = {flaw.first_error: flaw for flaw in flaws("52", paragraphs)}
    assert set(found) == {0, 1, 3}
    wrong = int(found[0].steps[0].split("= ")[1].split()[0])
    assert found[0].steps[1] == f"She gets {wrong} x $3 = ${3 * wrong} for the {wrong} clips."
    assert found[0].answer == str(3 * wrong - 20) and not found[0].correct


def test_a_solution_in_formulas_is_made_wrong_where_it_states_its_answer() -> None:
    solution = "We have $x + 5 = 12$.\n\nHence $x = 7$.\n\nThe answer is $\\boxed{7}$."
    for flaw in flaws("7", solution, "Find x."):
        assert flaw.truth == (True, False, True) and flaw.answer != "7"
        assert flaw.steps[1:] == (f"Hence $x = {flaw.answer}$.", f"The answer is $\\boxed{{{flaw.answer}}}$.")
    twice = solution.replace("12$.", "12$ and 7 is prime.")  # nobody states it there
    assert set(flaws("7", twice, "Find x.")) == set(flaws("7", solution, "Why 7?")) == {None}
    later = solution.replace("The answer", "Check: $7 + 5 = 12$. The answer")
    assert all(flaw.first_error == 2 for flaw in flaws("12", later, "?") if flaw is not None), "a sum that would be done again"


@PROPERTY
@given(st.text(st.sampled_from("1234.,+-*/x=$\\ \n<>boxed{}"), max_size=60), st.sampled_from(["1", "12", "3.4", "x"]))
def test_any_worked_solution_has_a_flaw_with_another_answer_or_none(solution: str, answer: str) -> None:
    steps = worked.make_right_demonstration(solution, answer).steps
    found = worked.make_flawed_demonstration(solution, answer, "?", random.Random(0))
    if found is not None:
        assert found.answer != answer and sum(found.truth) == len(steps) - 1 and found.steps != steps
        assert found.steps[: found.first_error] == steps[: found.first_error]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1,200*.5", "600"), ("(3+4)*2-1", "13"), ("7/2", "7/2"), ("-3+5", "2"), ("0.1+0.2", "3/10")],
)
def test_sums_are_exact(text: str, expected: str) -> None:
    assert worked.compute_sum(text) == Fraction(expected)


def test_the_flaws_of_gsm8k_are_flaws() -> None:
    """Every one is graded wrong, has one wrong step, and all of its other sums can be done again.

    A few of its solutions have no marks, and some of those no sum that can be read: they state another answer at the end of
    steps that are as they were.
    """
    task = make_task({"name": "gsm8k", "path": str(shared_data("gsm8k"))})
    problems = task.draw_problems("train", 0, 400)
    found = [(p, shown) for p in problems if (shown := task.demonstrate_flawed(p, random.Random(p.id))) is not None]
    assert len(found) > 0.7 * len(problems) and DEMONSTRATIONS in task.offers
    grades = task.grade_all([(p, shown.answer, shown.steps) for p, shown in found])
    assert not any(grade.correct for grade in grades)
    for problem, shown in found:
        assert sum(shown.truth) == len(shown.truth) - 1 == task.step_count(problem) - 1
        right = task.demonstrate(problem, random.Random(0)).steps
        assert "<<" not in "".join(shown.steps) and shown.steps[: shown.first_error] == right[: shown.first_error]
        assert shown.steps[shown.first_error] != right[shown.first_error]
        sums = [check.split("=") for checks in shown.checks for check in checks.split("; ") if check]
        assert sums or "<<" not in problem.data["worked"]
        assert all(worked.compute_sum(left) == Fraction(result) for left, result in sums)
    bench = make_bench(task, StepSolver("tagged"), 40, "dev")
    assert len(bench) == 40 and 10 <= sum(t.grade is not None and t.grade.first_error != -1 for t in bench) <= 20


def test_only_tasks_with_worked_solutions_can_be_imitated(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text("".join(json.dumps({"question": f"{n}?", "answer": f"I say\n#### {n}"}) + "\n" for n in range(90)))
    jsonl = {"name": "jsonl", "path": str(path)}
    assert DEMONSTRATIONS not in make_task(jsonl).offers
    with pytest.raises(ConfigError, match="needs worked solutions, which task 'jsonl'"):
        resolve([{"recipe": "sft"}, {"task": jsonl}])
    marked = make_task(jsonl | {"answer_after": "####"})
    assert DEMONSTRATIONS in marked.offers and marked.demonstrate(marked.problem("train", 0), random.Random(0)).steps == (
        "I say",
    )
    with pytest.raises(ConfigError, match="kept for each agent"):
        resolve([{"recipe": "sft", "binding": "shared"}])


def write_rows(path: Path, solution: str) -> dict[str, Any]:
    rows = [{"question": f"Ann has {n} pens and buys 2 more. How many?", "answer": str(n + 2)} for n in range(50, 90)]
    rows = [row | {"solution": solution.format(n=n, all=n + 2)} for n, row in enumerate(rows, 50)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return {"name": "jsonl", "path": str(path), "fields": {"solution": "solution"}}


def test_a_verifier_needs_more_than_a_few_wrong_solutions(tmp_path: Path) -> None:
    """Of forty solutions, some with a sum in them: two are not enough to learn what is wrong, twenty are."""
    path = tmp_path / "some.jsonl"
    rows: list[list[str]] = []
    for text in ("One counts, and it is {all}.", "She has {n} pens.\n{n} + 2 = {all}."):
        task = write_rows(path, text)
        rows.append(path.read_text().splitlines())
    none, sums = rows
    policies = {"generator": {"model": "embedded"}}
    for count, refused in ((2, True), (20, False)):
        path.write_text("\n".join([*sums[:count], *none[count:]]))
        settings = {"recipe": "sft", "task": task | {"dev": 1, "test": 1}, "policies": policies}
        if not refused:
            assert resolve([settings])
            continue
        with pytest.raises(ConfigError, match=r"only \d of 100 worked .* can be given .* set options\.n_verifier=0"):
            resolve([settings])


def test_a_verifier_sees_wrong_solutions_or_is_not_trained(tmp_path: Path) -> None:
    """Without marks of a calculator it saw none, and learned to call everything right."""
    good = write_rows(tmp_path / "good.jsonl", "She has {n} pens.\n{n} + 2 = {all}.")
    policies = {"generator": {"model": "embedded"}}
    found = resolve([{"recipe": "sft", "dialect": "plain", "task": good, "policies": policies}])
    role = found.roles["verifier"]
    texts = [role.demonstrate(found.task, found.task.problem("train", n), random.Random(n))[1] for n in range(30)]
    assert 8 < sum("Final verdict: INCORRECT" in text for text in texts) < 22
    bad = write_rows(tmp_path / "bad.jsonl", "One counts, and it is {all}.")
    with pytest.raises(ConfigError, match=r"can be given a wrong step.* set options\.n_verifier=0"):
        resolve([{"recipe": "sft", "task": bad, "policies": policies}])
    assert resolve([{"recipe": "sft", "task": bad, "policies": policies, "options": {"n_verifier": 0}}])


# The teachers.


@pytest.mark.parametrize("dialect", GRAMMARS)
@pytest.mark.parametrize("name", ["chain", "last_letter"])
def test_teachers_write_what_reads_back_as_the_truth(dialect: Dialect, name: str) -> None:
    task, solver, verifier = make_task({"name": name}), StepSolver(dialect), StepVerifier(dialect)
    wrong = 0
    for index in range(40):
        problem = task.problem("train", index)
        target, text = solver.demonstrate(task, problem, random.Random(index))
        value = solver.parse(text).value
        assert target is None and task.grade(problem, value.answer, value.steps).is_sound
        solution, check = verifier.demonstrate(task, problem, random.Random(index))
        assert solution is not None and solution.grade is not None
        parsed = verifier.parse(check, solution)
        assert parsed.is_valid and parsed.format == 1.0 and parsed.value.steps == solution.grade.steps
        assert parsed.value.final == all(solution.grade.steps)
        wrong += not parsed.value.final
    assert 10 < wrong < 30, "about half of the solutions have a wrong step"


def plan(**settings: Any) -> Plan:
    return resolve([{"recipe": "sft"}, TINY, settings])


@pytest.mark.parametrize("agent", ["generator", "verifier"])
def test_spoilt_examples_are_found_and_weigh_nothing(agent: str) -> None:
    made = plan(options={"noise": 0.5}, batch={"problems": 32, "rollouts": 2})
    sampling, seed = made.config.sampling, made.config.seed
    ctx = Context(RunContext(make_engine(made), made.task, made.roles, made.agents, sampling, seed, 32), 1, agent)
    rollouts = made.recipe.rollout(ctx)
    (train_batch,) = made.recipe.credit(ctx, rollouts)
    assert train_batch.weights is not None and train_batch.loss.kind == "cross_entropy" and train_batch.policy == agent
    assert 8 < sum(train_batch.weights) < 28 and train_batch.notes["kept"] == sum(train_batch.weights) / 32
    for rollout, weight in zip(train_batch.rollouts, train_batch.weights, strict=True):
        assert rollout.origin == "given" and rollout.segments[-1].trained and weight == is_right(rollout)
        assert rollout.parsed.is_valid, "a spoilt example is well formed: only the truth tells"
        if agent == "generator":
            assert bool(weight) == bool(rollout.grade and rollout.grade.is_sound)
        else:
            assert bool(weight) == (
                rollout.target.grade is not None and rollout.parsed.value.steps == rollout.target.grade.steps
            )


# What is kept is a start.


def test_a_run_begins_from_the_adapters_that_were_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start of tango is the end of sft, to the same figures; and its KL is measured from there."""
    pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    lora = {"lora": {"rank": 4}, "lr": 1e-3}
    common = TINY | {"binding": "lora"}
    milonga.run("sft", turns=2, out="sft", settings=common | {"policies": {"generator": lora, "verifier": lora}}, quiet=True)
    starts = {agent: lora | {"adapter": f"sft/models/{agent}"} for agent in ("generator", "verifier")}
    starts["generator"]["objective"] = {"preset": "grpo", "kl_coef": 0.1}
    settings = common | {"policies": starts, "options": {"warmup": 0}}
    milonga.run("tango", turns=1, out="tango", settings=settings, quiet=True)
    end, start = JsonLines(Path("sft/metrics.jsonl")).rows()[-1], JsonLines(Path("tango/metrics.jsonl")).rows()[0]
    same = [key for key in start if key.startswith("eval/")]
    assert len(same) > 20 and all(start[key] == end[key] for key in same)
    before = JsonLines(Path("sft/metrics.jsonl")).rows()[0]
    assert any(before[key] != end[key] for key in same), "and sft had moved them"
    learned = JsonLines(Path("tango/metrics.jsonl")).rows()[-1]
    assert learned["learn/generator/kl"] == pytest.approx(0.0, abs=1e-6), "before its first step it is at its reference"
    kept = read_config(Path("tango")).policies["generator"].adapter
    assert kept == str(tmp_path / "sft" / "models" / "generator"), "a run can be resumed from another folder"
    monkeypatch.chdir("/")
    assert milonga.resume(tmp_path / "tango", quiet=True)["turns"] == 1
