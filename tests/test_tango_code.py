"""Tango for code: hidden tests pay the generator, all or by their share, and label the verifier's final verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import TINY
from hidden import same_after_a_cut
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.errors import ConfigError
from milonga.resolve import Plan, resolve
from milonga.roles import Coder, StepSolver
from milonga.sandbox.values import to_canonical
from milonga.systems.tango.code import TangoCode, TangoCodeOptions, passed_shares
from milonga.systems.tango.recipe import Tango, TangoOptions
from milonga.tasks import make_task
from milonga.types import Problem, Rollout, Rollouts, TrainBatch
from short import SHORT

ROW: dict[str, Any] = {"family": "number", "slots": [["source", "*3"], ["source", "+1"]], "signature": "n", "entry": ""}
TESTS = {"inputs": [[0], [1], [2], [3]], "outputs": [to_canonical(3 * n + 1) for n in range(4)]}
PROBLEM = Problem("p", "n:*3 +1", "n*3+1", ROW | TESTS)
PROGRAMS = ["n*3\nn*3+1\n#n*3+1", "n*3\nn*3+1\n#n*2+1", "n*2\n1\n#1", "n*3\nn*3+1\n#n//0"]
SHARES = [1.0, 0.25, 0.25, 0.0]


def plan(**options: Any) -> Plan:
    return resolve([TINY, {"recipe": "tango_code", "task": SHORT["tango_code"].settings["task"], "options": options}])


def sample_rollouts(p: Plan) -> tuple[Context, Rollouts]:
    """Four programs that nobody has judged."""
    run_context = RunContext(make_engine(p), p.task, p.roles, p.agents, p.config.sampling, 0, 4)
    one = Context(run_context, 1, "generator")
    programs = one.ask("generator", [PROBLEM], len(PROGRAMS))
    for rollout, text in zip(programs, PROGRAMS, strict=True):
        rollout.text, rollout.parsed = text, Coder("terse").parse(text)
        rollout.steps = ()
        rollout.grade = p.task.grade(PROBLEM, rollout.parsed.value.answer, rollout.parsed.value.steps)
    return one, programs


def signs(train_batch: TrainBatch) -> list[int]:
    return [int(np.sign(array.sum())) for array in train_batch.advantages or []]


def test_programs_earn_all_or_a_share() -> None:
    p = plan()
    one, programs = sample_rollouts(p)
    assert [t.correct for t in programs] == [1.0, 0.0, 0.0, 0.0] and passed_shares(one, programs).tolist() == SHARES
    (every,) = p.recipe.credit(one, programs)
    assert signs(every) == [1, -1, -1, -1] and every.sources == {"answers": 1.0, "verifier": 0.0}
    (some,) = plan(reward="share").recipe.credit(one, programs)
    values = [float(array[rollout.mask][0]) for array, rollout in zip(some.advantages or [], programs, strict=True)]
    assert values[0] > values[1] == pytest.approx(values[2]) and values[2] > values[3]


def test_what_nobody_could_run_earns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    p = plan(reward="share")
    one, programs = sample_rollouts(p)
    found = [(True,) * 4, None, (False,) * 4, (True, True, False, False)]
    monkeypatch.setattr(type(p.task), "run_hidden_tests", lambda self, items, apart: found)
    (train_batch,) = p.recipe.credit(one, programs)
    assert signs(train_batch) == [1, 0, -1, 0]


@pytest.mark.parametrize(("reward", "counts"), [("share", True), ("all", False)])
def test_a_group_is_flat_by_what_is_paid(reward: str, counts: bool) -> None:
    """None of three programs passes all tests, and two pass some: only shares differ."""
    p = plan(reward=reward, mask_step_if_flat=True)
    one, programs = sample_rollouts(p)
    some = programs[1:]
    for rollout in some:
        start = rollout.segments[-1].start
        rollout.steps = ((start, start + 1), (start + 1, len(rollout.ids)))
    recipe = p.recipe
    assert isinstance(recipe, TangoCode) and some.rewards.tolist() == [0.0] * 3
    notes = recipe.credit_generator(one, some, [[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]], some.rewards).notes
    assert (notes["step_share"] > 0) == counts


def test_in_tags_the_control_is_asked_for_a_program_outside_any_box() -> None:
    solver, program = StepSolver("tagged"), "def f(s):\n    return s + '}'"
    asked = "".join(part.text for part in solver.prompt(Problem("p", "Write f.", "", {"form": "program"})))
    assert "boxed" not in asked and asked == "".join(part.text for part in Coder("tagged").prompt(Problem("p", "Write f.", "")))
    text = f"<think>\n<step>append it</step>\n</think>\n<answer>\n{program}\n</answer>"
    for role in (solver, Coder("tagged")):
        assert role.parse(text).is_valid and role.parse(text).value.answer == program
        assert role.parse(f"Sure!\n{text}\nDone.").is_valid, "text around the tags costs format alone"
    problem = Problem("p", "Write f.", "", {"form": "program"})
    for role, said in ((solver, text), (solver, text.replace("'}'", "'\\\\boxed{1}'")), (Coder("tagged"), text)):
        (settled,) = role.settle(make_task({"name": "chain"}), [Rollout.from_text("r", "a", problem, said, role.parse(said))])
        assert settled == Coder("tagged").parse(said) and settled.format == 1.0, "and nothing else does"
    boxed = Rollout.from_text("r", "a", problem, solver.write(["so"], "g"), solver.parse(solver.write(["so"], "g")))
    assert solver.settle(make_task({"name": "chain"}), [boxed]) == [boxed.parsed]


def test_the_steps_of_a_program_have_an_exact_truth_that_pays_nobody() -> None:
    grades = [t.grade for t in sample_rollouts(plan())[1]]
    assert [grade.steps for grade in grades if grade] == [(True, True), (True, True), (False, False), (True, True)]
    assert [grade.is_sound for grade in grades if grade] == [True, False, False, False]


def test_it_is_tango_with_a_coder() -> None:
    assert TangoCode.rollout is Tango.rollout and TangoCode.credit is Tango.credit and TangoCode.schedule is Tango.schedule
    assert TangoCodeOptions().model_dump().items() >= TangoOptions().model_dump().items()
    found = resolve([{"recipe": "tango_code"}])
    assert found.task.name == "code" and isinstance(found.roles["generator"], Coder)
    assert found.policies["generator"].model == found.policies["verifier"].model == "embedded/code"
    with pytest.raises(ConfigError, match="works only with the tasks code, not with 'chain'"):
        resolve([{"recipe": "tango_code", "task": "chain"}])


def test_a_run_that_was_cut_ends_in_the_same_bits(tmp_path: Path) -> None:
    short = SHORT["tango_code"]
    assert same_after_a_cut(
        "tango_code", short.turns, TINY | {"task": short.settings["task"], "options": short.options}, tmp_path / "run"
    )
