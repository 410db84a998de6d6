"""Absolute Zero: what counts as a program, answers as data, rewards and baselines by hand, and the buffers."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cases import TINY
from milonga.api import make_engine
from milonga.context import Context, RunContext
from milonga.credit.difficulty import graded_reward, task_proposer_reward
from milonga.errors import ConfigError
from milonga.resolve import Plan, resolve
from milonga.sandbox.values import parse_arguments, to_canonical
from milonga.systems.absolute_zero.buffers import Buffers, make_initial_state
from milonga.systems.absolute_zero.programs import (
    HELD_OUT,
    UNKNOWN,
    make_question,
    run_drafts,
)
from milonga.systems.absolute_zero.proposals import PROPOSERS, SOLVERS, TaskMaker, compute_solve_rates
from milonga.systems.absolute_zero.recipe import AbsoluteZero, compute_source_shares
from milonga.tasks.base import assign_split
from milonga.tasks.code import Code, CodeOptions
from milonga.tasks.code_questions import (
    KINDS,
    Kind,
    Worked,
    is_one_function,
    make_question_data,
    make_worked_example,
    parse_call,
    remove_comments,
    rename_function,
)
from milonga.types import Grade, Problem, Rollout, Rollouts, TrainBatch
from sandbox_helpers import opened
from short import SHORT, assert_resumes

TASK = Code(CodeOptions(min_level=1, level=2))
DOUBLED = Worked("[x*2 for x in a]", ("[1,2]",), (to_canonical([2, 4]),))
TRIPLED = Worked("n*3", ("1", "2", "3", "4"), tuple(to_canonical(3 * n) for n in range(1, 5)))


def plan(**options: Any) -> Plan:
    return resolve([TINY, {"recipe": "absolute_zero", "options": options}, SHORT["absolute_zero"].settings])


@cache
def engine() -> Any:
    return make_engine(plan())


def ctx(p: Plan, turn: int | str = 1) -> Context:
    run_context = RunContext(engine(), p.task, p.roles, p.agents, p.config.sampling, 0, p.config.batch.problems)
    return Context(run_context, turn, "generator")


def recipe_of(p: Plan) -> AbsoluteZero:
    assert isinstance(p.recipe, AbsoluteZero)
    return p.recipe


# Which programs count.


def said(task: Code, program: str, *inputs: str, longest: int = 400) -> Worked | str:
    (found,) = run_drafts(task, [(program, inputs)], longest)
    return found


def test_a_program_that_runs_counts_with_what_it_gives() -> None:
    assert said(TASK, " sum(a)+n ", "[1, 2], 3") == Worked("sum(a)+n", ("[1,2],3",), (to_canonical(6),))
    assert said(TASK, "len(a)", "[]", "[4]") == Worked("len(a)", ("[]", "[4]"), (to_canonical(0), to_canonical(1)))


@pytest.mark.parametrize(
    ("program", "inputs"),
    [
        ("", ("1",)),
        ("sum(a)", ()),
        ("sum(a)", ("x",)),
        ("sum(a)", ("__import__('os')",)),
        ("sum(a)", ("[1]) or (1",)),
        ("n+1", ("1,2",)),  # two arguments of the same name
        ("n+1", ("1", "[1]")),
        ("n+1", ("1", " 1")),
        ("n+b", ("1",)),
        ("n//0", ("1",)),
        ("n+1\nn", ("1",)),
        ("open('x')", ("1",)),
        ("[x for x in a]*200", ("[1,2,3]",)),
        ("n+1.5", ("1",)),
    ],
)
def test_what_does_not_run_on_its_inputs_does_not_count(program: str, inputs: tuple[str, ...]) -> None:
    assert isinstance(said(TASK, program, *inputs), str)


def test_long_outputs_are_invalid_and_never_cut() -> None:
    assert isinstance(said(TASK, "sum(a)+n", "[10],2", longest=2), Worked)
    assert isinstance(said(TASK, "sum(a)+n", "[99],2", longest=2), str)


def test_no_held_out_program_is_taken() -> None:
    programs = [f"sum(a)*{n}" for n in range(60)]
    found = run_drafts(TASK, [(program, ("[1]",)) for program in programs], 400)
    assert [ran == HELD_OUT for ran in found] == [assign_split(program) != "train" for program in programs]
    assert HELD_OUT in found


def test_what_is_measured_on_cannot_be_proposed() -> None:
    for split in ("dev", "test"):
        measured = TASK.find_held_out_functions(split, 4)  # type: ignore[arg-type]
        assert len(measured) == 4
        for problem in measured:
            assert said(TASK, problem.answer, *make_worked_example(problem, "deduction", 6).inputs) == HELD_OUT
        for kind in KINDS:  # and what is asked of it is what it gives
            worked = make_worked_example(measured[0], kind, 6)
            (ran,) = TASK.run_programs([(measured[0], worked.program, [measured[0].data["inputs"][n] for n in picked(kind)])])
            assert worked.outputs == ran


def picked(kind: Kind) -> range:
    return {"deduction": range(1), "abduction": range(1, 2), "induction": range(6)}[kind]


# In Python.

HEAD = "def f(a):\n    return "
STEADY = [f"{HEAD}sum(a)", f"LIMIT = 3\n{HEAD}a[:LIMIT]  # few", f"import math\n{HEAD}math.gcd(*a)"]
SHAKY = [
    f"{HEAD}hash('x')",
    f"{HEAD}id(a)",
    f"{HEAD}list({{'a', 'b', 'c', 'd', 'e'}})",
    f"import os\n{HEAD}os.getpid()",
    f"import random\n{HEAD}random.random()",
    f"import time\n{HEAD}time.time_ns()",
    "N = []\ndef f(a):\n    N.append(1)\n    return len(N)",
]
NOT_ONE = [
    "def g(a):\n    return a",
    f"{HEAD}a\ndef g(a):\n    return a",
    "f = lambda a: a",
    "class f: pass",
    "def f(a) return",
    "3",
]


def test_python_must_do_the_same_in_another_process() -> None:
    opened("isolated").close()  # or skipped
    task = Code(CodeOptions(dialect="python"))
    drafts = [(source, ["[6, 4]"]) for source in [*STEADY, *SHAKY]]
    found = run_drafts(task, drafts, 400)
    task.runner.sandbox.close()
    kept = [said for said in found if isinstance(said, Worked)]
    trained = [source for source in STEADY if assign_split(source) == "train"]
    assert [worked.program for worked in kept] == trained and trained
    assert all(isinstance(said, str) for said in found[len(STEADY) :])


# Functions of a file.


def mbpp(id: int) -> dict[str, Any]:
    code = f"def add_{id}(n):\r\n    return n + {id}"
    return {
        "task_id": id,
        "text": f"Add {id}.",
        "code": code,
        "test_list": [f"assert add_{id}({n}) == {n + id}" for n in range(6)],
    }


@pytest.fixture(scope="module")
def from_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Code]:
    """Functions in the form of MBPP: train, dev and test as published."""
    opened("isolated").close()  # or skipped
    path = tmp_path_factory.mktemp("data") / "mbpp.jsonl"
    path.write_text("\n".join(json.dumps(mbpp(id)) for id in (*range(11, 21), *range(511, 521), *range(601, 621))))
    task = Code(CodeOptions(dialect="python", path=str(path)))
    yield task
    task.runner.sandbox.close()


def test_right_answers_about_functions_of_a_file_are_right(from_file: Code) -> None:
    (problem,) = from_file.find_held_out_functions("dev", 1)
    id = int(problem.data["entry"][4:])
    program = f"def f(n):\n    return n + {id}"
    answers = {"deduction": (str(id), "0"), "abduction": ("1", "2"), "induction": (program, program.replace(str(id), "0"))}
    items = []
    for kind, given in answers.items():
        worked = make_worked_example(problem, kind, 6)  # type: ignore[arg-type]
        assert worked.program == program, "its own name would tell what it does"
        question = make_question(ctx(plan()), kind, worked, "q", 3)  # type: ignore[arg-type]
        assert question.wants_program == (kind == "induction")
        items += [(question, answer, ()) for answer in given]
    assert [grade.correct for grade in from_file.grade_all(items)] == [True, False] * 3


def test_of_a_file_only_what_it_holds_out_is_refused(from_file: Code) -> None:
    programs = [f"def f(n):\n    return n + {n}" for n in range(30)]
    found = run_drafts(from_file, [(program, ("1",)) for program in programs], 400)
    kept = {program for program, ran in zip(programs, found, strict=True) if isinstance(ran, Worked)}
    assert {*programs} - kept == {f"def f(n):\n    return n + {n}" for n in range(11, 21)}, "the test functions, renamed"
    assert len(from_file.find_held_out_functions("test", 99)) == 10, "and all of them can be measured on"


def test_a_function_is_renamed_where_it_can_be() -> None:
    source = "def add(n):\n    'add, not f'\n    return add(n - 1) if n else 0"
    assert rename_function(source, "add") == source.replace("add(", "f(")
    assert rename_function("def add(f):\n    return f", "add") is None and rename_function("def add(:", "add") is None
    assert rename_function("def add(n):\n    return f'{add(1)}'", "add") in (None, "def f(n):\n    return f'{f(1)}'")
    for other in ("s.count(x)", "g(count=x)", "[s. count for _ in x]"):
        assert rename_function(f"def count(s, x):\n    return {other}", "count") is None, "that is another name"
    assert (
        rename_function("def count(s):\n    t = [count]\n    return t[0]", "count") == "def f(s):\n    t = [f]\n    return t[0]"
    )
    assert rename_function("n+1", "") == "n+1" and rename_function("def f(f): return f", "f") == "def f(f): return f"


def test_what_the_sandbox_cannot_tell_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Code, "run_programs", lambda self, items, twice=False: [None] * len(items))
    assert said(TASK, "sum(a)+n", "[1],2") == UNKNOWN


def test_a_python_program_is_one_function_of_the_right_name() -> None:
    assert all(is_one_function(source) for source in STEADY)
    assert not any(is_one_function(source) for source in NOT_ONE)


def test_comments_go_and_nothing_else() -> None:
    assert remove_comments("n+1  # one more") == "n+1" and remove_comments("'#'+s") == "'#'+s"
    source = '# a\ndef f(a):\n    # b\n    """\n# no comment\n\n    """\n    return a  # c'
    assert remove_comments(source) == 'def f(a):\n    """\n# no comment\n\n    """\n    return a'
    assert remove_comments("(") == "("


# Answers are data.


@pytest.mark.parametrize(
    ("kind", "worked", "right", "wrong"),
    [
        ("deduction", DOUBLED, ["[2,4]", " [2, 4] "], ["[2,4", "[4,2]", "(2,4)", "[1*2,4]", "[2,4] or 1", "a", "", None]),
        ("abduction", DOUBLED, ["[1,2]", "[1, 2]"], ["[2,4]", "[1,2]) or ([1]", "[1,2],3", "1", "[True,2]x", "", None]),
        ("induction", TRIPLED, ["n*3", "n+n+n", "n * 3 # yes"], ["n*2", "9", "[x for x in a]", "n*3 if n<4 else 0", "", None]),
    ],
)
def test_answers_are_compared_as_values(kind: Kind, worked: Worked, right: list[str], wrong: list[str | None]) -> None:
    problem = Problem("p", "", "", make_question_data(worked, kind, 2))
    grades = TASK.grade_all([(problem, answer, ()) for answer in [*right, *wrong]])
    assert [grade.correct for grade in grades] == [True] * len(right) + [False] * len(wrong)
    assert all(grade.steps is None for grade in grades)


def test_true_is_not_one() -> None:
    problem = Problem("p", "", "", make_question_data(Worked("n>1", ("2",), (to_canonical(True),)), "deduction", 2))
    assert [TASK.grade(problem, answer, ()).correct for answer in ("True", "1", "1.0", "'True'")] == [True, False, False, False]


def test_arguments_in_brackets_of_their_own_are_spread() -> None:
    two, one, either = (f"def f({names}):\n    return 1" for names in ("a, b", "a", "a, b=1"))
    assert parse_call("(1, 2)", two) == ("1,2", (1, 2)) and parse_call("1, 2", two) == ("1,2", (1, 2))
    for program, given in ((two, "(1, 2, 3)"), (one, "(1, 2)"), (either, "(1, 2)"), ("sum(a)", "(1, 2)"), ("def f(", "(1, 2)")):
        assert parse_call(given, program) == (given.replace(" ", "").replace(",", ", "), parse_arguments(given))


def test_in_python_answers_never_become_source() -> None:
    opened("isolated").close()  # or skipped
    task = Code(CodeOptions(dialect="python"))
    source = "def f(a):\n    return [x * 2 for x in a]"
    asked = Worked(source, ("[1,2]", "[3]", "[]"), tuple(to_canonical(value) for value in ([2, 4], [6], [])))
    liar = "class E:\n    def __eq__(self, other): return True\ndef f(a):\n    return E()"
    items = [
        (Problem("p", "", "", make_question_data(asked, "abduction", 1)), "[1,2]", True),
        (Problem("p", "", "", make_question_data(asked, "abduction", 1)), "0) == 1 or (1", False),
        (Problem("p", "", "", make_question_data(asked, "induction", 1)), source, True),
        (Problem("p", "", "", make_question_data(asked, "induction", 1)), liar, False),
    ]
    grades = task.grade_all([(problem, answer, ()) for problem, answer, _ in items])
    task.runner.sandbox.close()
    assert [grade.correct for grade in grades] == [right for _, _, right in items]


def test_an_induction_with_nothing_hidden_is_no_question() -> None:
    assert not TRIPLED.has_question("induction", 4) and TRIPLED.has_question("induction", 3)
    with pytest.raises(ValueError, match="nothing is left"):
        make_question_data(TRIPLED, "induction", 4)
    with pytest.raises(ConfigError, match="leaves nothing hidden"):
        plan(shown=6)


def test_a_question_shows_two_of_three_and_never_what_is_asked_for() -> None:
    one = ctx(plan())
    texts = {kind: make_question(one, kind, TRIPLED, "q", 2).text for kind in KINDS}
    assert texts == {"deduction": "n*3\n1", "abduction": "n*3\n3", "induction": "1=3;2=6"}


# Rewards.


def test_rewards_by_hand() -> None:
    assert [task_proposer_reward(rate, -0.5) for rate in (0.0, 0.25, 0.75, 1.0)] == [-0.5, 0.75, 0.25, -0.5]
    assert [task_proposer_reward(rate, 0.0) for rate in (0.0, 1.0)] == [0.0, 0.0]
    assert [task_proposer_reward(rate, -0.5, plain=True) for rate in (0.0, 0.25, 1.0)] == [1.0, 0.75, 0.0]
    assert math.isnan(task_proposer_reward(float("nan"), -0.5))
    paid = [graded_reward(*given, -0.5, -1.0) for given in ((1.0, True), (0.0, True), (0.0, False), (1.0, False))]
    assert paid == [1.0, -0.5, -1.0, -1.0] and math.isnan(graded_reward(float("nan"), True, -0.5, -1.0))


@pytest.mark.parametrize(
    ("probes", "extreme", "best"),
    [(4, 0, 0.370), (5, 0, 0.331), (8, 0, 0.257), (16, 0, 0.169), (4, -0.5, 0.423), (8, -0.5, 0.299), (16, -0.5, 0.191)],
)
def test_where_a_proposer_aims(probes: int, extreme: float, best: float) -> None:
    """The solve rate whose expected reward is highest, with so many probes: the more, the harder."""
    rates = np.linspace(0, 1, 4001)
    counts = np.arange(probes + 1)
    ways = np.array([math.comb(probes, k) for k in counts])
    chances = ways * rates[:, None] ** counts * (1 - rates[:, None]) ** (probes - counts)
    expected = chances @ np.array([task_proposer_reward(k / probes, extreme) for k in counts])
    assert rates[expected.argmax()] == pytest.approx(best, abs=1e-3)
    plain = chances @ np.array([task_proposer_reward(k / probes, extreme, plain=True) for k in counts])
    assert rates[plain.argmax()] == 0.0


# The train batch of a turn whose outcomes are written by hand.


def sample_rollouts(p: Plan) -> tuple[Context, Rollouts]:
    """Four proposals of each kind, the first invalid, the others solved by none, half and all of two probes; four answers of
    each kind: right, wrong, unreadable, and one that nobody could grade."""
    one, rows = ctx(p), list[Rollout]()
    for kind in KINDS:
        proposals = one.ask(PROPOSERS[kind], [Problem(f"{kind}/{n}", "n+1#2", "") for n in range(4)])
        asked = [make_question(one, kind, TRIPLED, f"probe/{q.id}", 2, q.id) for q in list(proposals)[1:]]
        probes = one.ask(SOLVERS[kind], asked, 2)
        answers = one.ask(SOLVERS[kind], [make_question(one, kind, TRIPLED, f"{kind}/{n}", 2) for n in range(4)])
        for rollout, correct in zip([*probes, *answers], [0, 0, 1, 0, 1, 1, 1, 0, 0, None], strict=True):
            rollout.parsed = p.roles[rollout.agent].parse("1\n#1", None)
            rollout.grade = Grade(None if correct is None else bool(correct))
        answers[2].parsed = p.roles[SOLVERS[kind]].parse("", None)
        rows += [*proposals, *probes, *answers]
    return one, Rollouts(rows)


def train_batch_of(**options: Any) -> TrainBatch:
    p = plan(**options)
    (train_batch,) = p.recipe.credit(*sample_rollouts(p))
    return train_batch


def advantages(train_batch: TrainBatch, agent: str) -> list[float]:
    pairs = zip(train_batch.rollouts, train_batch.advantages or [], strict=True)
    return [float(array[rollout.mask][0]) for rollout, array in pairs if rollout.agent == agent]


def test_each_kind_and_role_is_compared_with_itself() -> None:
    train_batch = train_batch_of()
    assert len(train_batch.rollouts) == 24 and train_batch.policy == "generator", "probes are thrown away"
    for kind in KINDS:
        rewards = np.array([-1.0, -0.5, 0.5, -0.5])
        assert advantages(train_batch, PROPOSERS[kind]) == pytest.approx(
            (rewards - rewards.mean()) / rewards.std(ddof=1), abs=1e-4
        )
        known = np.array([1.0, -0.5, -1.0])
        expected = [*((known - known.mean()) / known.std(ddof=1)), 0.0]
        assert advantages(train_batch, SOLVERS[kind]) == pytest.approx(expected, abs=1e-4)
        assert train_batch.notes[f"{kind}_valid"] == 0.75 and train_batch.notes[f"{kind}_learnable"] == pytest.approx(1 / 3)
        assert train_batch.notes[f"{kind}_solve_rate"] == 0.5 and train_batch.notes[f"{kind}_distinct"] == 1.0
    assert train_batch.sources == pytest.approx({"execution": 15 / 24, "deducer": 3 / 24, "abducer": 3 / 24, "inducer": 3 / 24})


def test_one_baseline_for_all_lets_a_role_be_above_it_as_a_whole() -> None:
    everyone = train_batch_of(**{"baseline": "global"})
    rewards = np.array([-1.0, -0.5, 0.5, -0.5, 1.0, -0.5, -1.0] * 3)
    spread = rewards.std(ddof=1)
    assert advantages(everyone, "deducer")[:1] == pytest.approx([(1 - rewards.mean()) / spread], abs=1e-4)
    assert sum(advantages(everyone, "deducer")) != pytest.approx(0, abs=1e-3)


def test_whitening_by_tokens_weighs_by_length() -> None:
    train_batch = train_batch_of(whiten="token")
    rows = [t for t in train_batch.rollouts if t.agent == "deduction_proposer"]
    lengths, rewards = np.array([t.length for t in rows]), np.array([-1.0, -0.5, 0.5, -0.5])
    middle = (lengths * rewards).sum() / lengths.sum()
    deviation = np.sqrt((lengths * (rewards - middle) ** 2).sum() / lengths.sum())
    assert advantages(train_batch, "deduction_proposer") == pytest.approx((rewards - middle) / deviation, abs=1e-3)


def test_the_arms() -> None:
    untrained = train_batch_of(proposer="untrained")
    assert {t.agent for t in untrained.rollouts} == set(SOLVERS.values()) and untrained.sources == {"execution": 1.0}
    assert len(train_batch_of(train_on_probes=True).rollouts) == 24 + 18
    plain = advantages(train_batch_of(difficulty="plain"), "abduction_proposer")
    assert plain[1] > plain[2] > plain[3] > plain[0], "1, 0.5 and 0 for none, half and all; -1 for what is invalid"
    formula = advantages(train_batch_of(extreme_value=0.0), "abduction_proposer")
    assert formula[1] == pytest.approx(formula[3]) and formula[2] > formula[1] > formula[0]


def test_a_probe_that_nobody_could_grade_drops_its_proposal() -> None:
    p = plan()
    one, rows = sample_rollouts(p)
    probe = next(t for t in rows if t.problem.source is not None and t.agent == "deducer")
    probe.grade = Grade(None)
    assert math.isnan(compute_solve_rates(rows)[str(probe.problem.source)])
    (train_batch,) = p.recipe.credit(one, rows)
    assert advantages(train_batch, "deduction_proposer")[1] == 0.0


def test_sources_name_who_paid() -> None:
    _, rows = sample_rollouts(plan())
    some = rows.select(lambda t: t.agent in ("abduction_proposer", "abducer") and t.problem.source is None)
    assert compute_source_shares(some, compute_solve_rates(rows)) == {"execution": 5 / 8, "abducer": 3 / 8}


# The buffers.


def numbered(numbers: range) -> list[Worked]:
    return [Worked(f"n+{n}", ("1",), (to_canonical(n + 1),)) for n in numbers]


def test_each_enters_once_and_the_oldest_leave_at_the_cap() -> None:
    buffers = Buffers({}, 5)
    buffers.admit("deduction", [*numbered(range(3)), *numbered(range(2))], 1)
    assert buffers.size("deduction") == 3
    buffers.admit("deduction", numbered(range(7)), 2)
    assert [(item[0], item[3]) for item in buffers.state["deduction"]] == [
        ("n+2", 1), ("n+3", 2), ("n+4", 2), ("n+5", 2), ("n+6", 2)]  # fmt: skip


def test_what_came_last_is_solved_first() -> None:
    buffers, p = Buffers({}, 100), plan()
    buffers.admit("abduction", numbered(range(20)), 3)
    buffers.admit("abduction", numbered(range(20, 24)), 7)
    for turn, fresh in ((8, 4), (7, 4), (9, 0)):
        drawn = [w.program for w in buffers.draw("abduction", ctx(p, turn), 6, True)]
        assert len(set(drawn)) == 6 and (fresh == 0 or {f"n+{n}" for n in range(20, 24)} <= set(drawn))
    alike = [w.program for w in buffers.draw("abduction", ctx(p, 8), 6, False)]
    assert len(set(alike)) == 6 and alike != [w.program for w in buffers.draw("abduction", ctx(p, 8), 6, True)]
    assert len(buffers.draw("abduction", ctx(p, 8), 3, True)) == 3 and buffers.draw("induction", ctx(p, 8), 3, True) == []


def test_seeds_come_from_the_untrained_model_and_begin_with_the_identity() -> None:
    p = plan(seeds=2, seed_rounds=3)
    recipe, one = recipe_of(p), ctx(p)
    maker = recipe.make_task_maker(recipe.state)
    maker.seed_buffers(one)
    assert recipe.state["deduction"][0][0] == "a" and recipe.state["deduction"] == recipe.state["abduction"]
    assert 1 <= maker.buffers.size("deduction") <= 1 + 3 * 4
    assert all(TASK.tiny and len(item[1]) == 6 for item in recipe.state.get("induction", []))
    assert one.asked and all("#" not in item[0] for item in recipe.state["deduction"])


@pytest.mark.parametrize("lag", [1, 0])
def test_the_solver_trains_on_what_was_there_before_this_turn(lag: int, monkeypatch: pytest.MonkeyPatch) -> None:
    p = plan(solver_lag=lag)
    p.recipe.state |= make_initial_state(True)
    order: list[str] = []
    own = TaskMaker.sample_questions

    def questions(self: TaskMaker, one: Context) -> dict[Kind, list[Problem]]:
        order.append("draw")
        return own(self, one)

    def propose(self: TaskMaker, one: Context, kind: Kind, turn: int) -> list[Rollout]:
        order.append(kind)
        return []

    monkeypatch.setattr(TaskMaker, "sample_questions", questions)
    monkeypatch.setattr(TaskMaker, "propose", propose)
    p.recipe.rollout(ctx(p, 5))
    assert order == (["draw", *KINDS] if lag else [*KINDS, "draw"])


@pytest.mark.parametrize(("admission", "kept"), [("all", {0.0, 0.5, 1.0}), ("non_one", {0.0, 0.5}), ("non_extremes", {0.5})])
def test_what_is_admitted(admission: str, kept: set[float], monkeypatch: pytest.MonkeyPatch) -> None:
    p = plan(admission=admission)
    recipe, (_, rows) = recipe_of(p), sample_rollouts(p)
    proposals = rows.of("deduction_proposer")
    probes = rows.of("deducer").select(lambda t: t.problem.source is not None)
    good = {t.id: w for t, w in zip(list(proposals)[1:], numbered(range(3)), strict=True)}
    monkeypatch.setattr(TaskMaker, "probe_proposals", lambda *given: (proposals, good, probes))
    recipe.make_task_maker(recipe.state).propose(ctx(p), "deduction", 4)
    rates = compute_solve_rates(probes)
    assert {rates[id] for id, w in good.items() if w.program in {item[0] for item in recipe.state["deduction"]}} == kept


def test_programs_of_the_task_can_take_the_place_of_proposals() -> None:
    p = plan(proposer="task")
    one = ctx(p)
    found = p.recipe.rollout(one)
    assert {t.agent for t in found} == set(SOLVERS.values()) and not compute_solve_rates(found)
    assert all(assign_split(item[0]) == "train" for kind in KINDS for item in p.recipe.state[kind])


# The run.


def test_it_is_one_policy_on_its_own_task_with_its_own_baseline() -> None:
    found = resolve([{"recipe": "absolute_zero"}])
    assert found.task.name == "code" and set(found.agents.values()) == {"generator"}
    assert found.policies["generator"].minibatches == 3
    with pytest.raises(ConfigError, match="works only with the tasks code, not with 'chain'"):
        resolve([{"recipe": "absolute_zero", "task": "chain"}])
    with pytest.raises(ConfigError, match="one policy"):
        resolve([{"recipe": "absolute_zero", "binding": "own"}])
    with pytest.raises(ConfigError, match="use zscore"):
        resolve([{"recipe": "absolute_zero", "policies": {"generator": {"objective": {"preset": "rloo"}}}}])


def test_a_run_that_was_cut_ends_in_the_same_bits(tmp_path: Path) -> None:
    assert_resumes("absolute_zero", tmp_path, after=1)
