"""The task `code`: functions with hidden tests in both dialects, exact steps in the tiny one, and files of functions."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import PROPERTY
from milonga.errors import ConfigError, DataError, UserError
from milonga.resolve import resolve
from milonga.sandbox.values import to_canonical
from milonga.tasks import Code, assign_split, make_task
from milonga.tasks.base import DEMONSTRATIONS
from milonga.tasks.code import CodeOptions, restore_row
from milonga.tasks.code_data import FunctionParser, UnreadableTest, parse_tests, parse_written_tests
from milonga.tasks.code_python import extract_source
from milonga.tasks.code_tests import is_same_output
from milonga.tasks.code_words import FAMILIES, add_brackets, call_program, draw_row, has_same_meaning
from milonga.types import SPLITS
from test_tasks_data import shared_data

TINY = Code(CodeOptions(min_level=1, level=5))
splits, indices, seeds = st.sampled_from(SPLITS), st.integers(0, 2000), st.integers(0, 2**32)

# The tiny dialect.


@PROPERTY
@given(splits, indices, seeds, st.data())
def test_a_demonstration_is_wrong_exactly_where_it_was_told(split: Any, index: int, seed: int, data: st.DataObject) -> None:
    problem = TINY.problem(split, index)
    count = TINY.step_count(problem)
    errors = data.draw(st.sets(st.integers(0, count - 1)))
    shown = TINY.demonstrate(problem, random.Random(seed), errors)
    assert len(shown.steps) == len(shown.truth) == len(shown.checks) == count
    assert shown.truth == tuple(k not in errors for k in range(count))
    grade = TINY.grade(problem, shown.answer, shown.steps)
    assert (grade.correct, grade.steps) == (shown.correct, shown.truth)
    assert TINY.redo_steps(problem, shown.steps) == shown.checks
    if not errors:
        assert grade.is_sound and shown.answer == problem.answer


@PROPERTY
@given(splits, indices)
def test_problems_follow_from_their_key_and_stay_in_their_split(split: Any, index: int) -> None:
    problem = TINY.problem(split, index)
    assert problem == Code(TINY.options).problem(split, index)
    assert assign_split(problem.text) == split and len(problem.text) < 40
    data = problem.data
    assert len(data["inputs"]) == len(data["outputs"]) == 8 and len(set(data["outputs"])) > 1
    assert data["public"].split("=")[0] not in [",".join(map(str, given)) for given in data["inputs"]]


@PROPERTY
@given(indices, st.lists(st.text(max_size=20), max_size=8), st.none() | st.text(max_size=30))
def test_no_text_breaks_the_grader(index: int, steps: list[str], answer: str | None) -> None:
    grade = TINY.grade(TINY.problem("dev", index), answer, steps)
    assert grade.correct in (True, False) and grade.steps is not None and len(grade.steps) == len(steps)


def test_another_program_that_means_the_same_is_right() -> None:
    task = Code(CodeOptions(level=2, families=["fold"]))
    problem = next(p for p in task.draw_problems("train", 0, 200) if p.text == "a:even sum" or p.text == "a:odd sum")
    rest = "0" if "even" in problem.text else "1"
    grade = task.grade(problem, f"sum(x for x in a if x%2=={rest})", [f"{rest}==x%2", "sum"])
    assert grade.correct and grade.steps == (True, True)
    assert task.grade(problem, "sum(a)", ["x>0", "sum"]).steps == (False, True)
    assert task.grade(problem, problem.answer, ["x%2==0"]).steps == (False,), "who stops too early is wrong where he stops"


def test_brackets_stand_where_they_are_needed_and_nowhere_else() -> None:
    assert [add_brackets("x", "+-"), add_brackets("x+1", "+-"), add_brackets("(x+1)", "+-"), add_brackets("s+'+'", "*")] == [
        "x",
        "(x+1)",
        "(x+1)",
        "s+'+'",
    ]
    assert not has_same_meaning("x+1", "x+2") and has_same_meaning("1+x", "x+1") and not has_same_meaning("nonsense", "x")


@PROPERTY
@given(st.integers(2, 6), seeds, st.integers(0, 20))
def test_words_are_done_from_left_to_right(count: int, seed: int, n: int) -> None:
    row = draw_row("number", count, random.Random(seed))
    value = n
    for _, word in row.slots:
        k = int(word[1:]) if word != "sq" else 0
        value = {"+": value + k, "-": value - k, "*": value * k, "/": value // (k or 1), "%": value % (k or 1)}.get(
            word[0], value**2
        )
    assert call_program(row.build_program(row.right_pieces()), "n", [n]) == to_canonical(value)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_functions_in_every_split_at_every_level(family: str) -> None:
    for level in range(FAMILIES[family].least, 4):
        task = Code(CodeOptions(level=level, families=[family]))
        for split in SPLITS:
            problem = task.problem(split, 0)
            assert restore_row(problem).family == family and task.step_count(problem) == level
            found = [call_program(problem.answer, problem.data["signature"], given) for given in problem.data["inputs"]]
            assert found == problem.data["outputs"]


def test_levels_and_harder_problems() -> None:
    task = Code(CodeOptions(level=3))
    assert task.levels == (1, 2, 3) and task.step_count(task.at_level(2).problem("train", 0)) == 2
    harder = task.make_harder()
    assert harder is not None and harder.step_count(harder.problem("train", 0)) == 6


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"families": ["folds"]}, "did you mean 'fold'"),
        ({"families": []}, "no family"),
        ({"families": ["case"], "level": 2}, "at least 3 words"),
        ({"min_level": 4}, "larger than level"),
        ({"path": "x.jsonl"}, "dialect=python"),
        ({"dialect": "python", "dev_path": "x.jsonl"}, "set path"),
    ],
)
def test_options_that_make_no_sense_are_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_task({"name": "code", **options})


# Python.


@pytest.fixture(scope="module")
def python() -> Code:
    task = Code(CodeOptions(dialect="python", level=3, allow_weak_isolation=True))
    task.make_ready()
    return task


def test_python_programs_run_in_the_sandbox(python: Code) -> None:
    problem = python.problem("train", 0)
    fenced = f"Here it is:\n```python\n{problem.answer}\n```\nas asked"
    loop = "def f(*arguments):\n    while True: pass"
    grades = python.grade_all([(problem, answer, ()) for answer in (problem.answer, fenced, loop, "f = 1", "def f(:", None)])
    assert [grade.correct for grade in grades] == [True, True, False, False, False, False]
    assert all(grade.steps is None for grade in grades) and not python.knows_steps
    assert problem.data["entry"] == "f" and problem.text.startswith("Write a Python function `f(")
    assert problem.data["public"].startswith("f(") and "isolation" in python.describe()


def test_a_program_never_meets_what_is_expected_of_it(python: Code) -> None:
    """It could only print what it finds; what is expected is compared outside."""
    problem = python.problem("train", 1)
    seen: list[Any] = []
    run = python.runner.sandbox.run

    def watched(programs: Any, **options: Any) -> Any:
        seen.extend(programs)
        return run(programs, **options)

    python.runner.sandbox.run = watched  # type: ignore[method-assign]
    try:
        python.grade(problem, "def f(*a): return None", ())
    finally:
        python.runner.sandbox.run = run  # type: ignore[method-assign]
    assert seen and set(vars(seen[0])) == {"source", "entry", "calls", "stdin"}
    assert [list(call) for call in seen[0].calls] == problem.data["inputs"]


def test_the_weaker_isolation_must_be_allowed() -> None:
    task = make_task({"name": "code", "dialect": "python", "isolation": "limited"})
    with pytest.raises(UserError, match="allow_weak_isolation"):
        task.make_ready()


def test_where_a_program_stands_in_an_answer() -> None:
    assert extract_source("def f(): pass") == "def f(): pass"
    assert extract_source("text\n```\ndef f(): pass\n```\nmore ``` marks") == "def f(): pass\n".strip("\n")
    assert extract_source("```python\ndef f(): pass") == "def f(): pass"


# Files.

LINES = [
    {"prompt": "Add.", "entry_point": "add", "tests": [{"args": [1, 2], "expected": 3}, [[0, 0], 0], [[5, -1], 4]]},
    {"prompt": "Negate.", "entry_point": "neg", "tests": ["assert neg(3) == -3", "assert neg((0)) == 0"]},
    {
        "prompt": "Sort.",
        "entry_point": "order",
        "tests": "def check(candidate):\n    assert candidate([2, 1]) == [1, 2], 'hm'\n    assert candidate([]) == []\n",
        "canonical_solution": "def order(a):\n    return sorted(a)",
    },
]


def written(folder: Path, lines: list[Any], name: str = "functions.jsonl") -> Path:
    path = folder / name
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def from_file(path: Path, **options: Any) -> Code:
    none: dict[str, Any] = {"dev": 0, "test": 0}
    task = make_task({"name": "code", "dialect": "python", "path": str(path), "allow_weak_isolation": True, **none, **options})
    assert isinstance(task, Code)
    return task


def test_a_file_of_functions_in_all_its_forms(tmp_path: Path) -> None:
    task = from_file(written(tmp_path, LINES))
    problems = {p.data["entry"]: p for p in task.draw_problems("train", 0, 3)}
    assert task.size("train") == 3 and set(problems) == {"add", "neg", "order"} and task.levels == ()
    assert problems["add"].data["public"] == "add(1, 2) == 3" and problems["add"].data["inputs"] == [[0, 0], [5, -1]]
    assert problems["order"].data["inputs"] == [[[]]] and problems["order"].answer.startswith("def order")
    right = {"add": "def add(a, b): return a + b", "neg": "def neg(a): return -a", "order": "def order(a): return sorted(a)"}
    grades = task.grade_all([(problems[name], right[name], ()) for name in right])
    assert [grade.correct for grade in grades] == [True, True, True]
    assert task.grade(problems["neg"], right["add"], ()).correct is False and DEMONSTRATIONS not in task.offers


BAD: dict[str, tuple[Any, str]] = {
    "json": ("{", "line 1: not JSON"),
    "field": ({"prompt": "x", "entry_point": "f"}, "field 'tests' is missing"),
    "name": ({"prompt": "x", "entry_point": "f(x)", "tests": [[[1], 1]]}, "not the name of a function"),
    "syntax": ({"prompt": "x", "entry_point": "f", "tests": "assert f(1 == 2"}, "does not parse as Python"),
    "none": ({"prompt": "x", "entry_point": "f", "tests": "x = 1"}, "holds no assertion"),
    "other": ({"prompt": "x", "entry_point": "f", "tests": ["assert g(1) == 2"]}, "not a call of f"),
    "computed": ({"prompt": "x", "entry_point": "f", "tests": ["assert f(1) == 1 + len('a')"]}, "not made of literals"),
    "loose": ({"prompt": "x", "entry_point": "f", "tests": ["assert abs(f(1) - 2) < 0.1"]}, "not `f"),
    "data": ({"prompt": "x", "entry_point": "f", "tests": [{"in": 1}]}, "a test is"),
    "empty": ({"prompt": "x", "entry_point": "f", "tests": []}, "neither a list of tests"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_test_file_that_cannot_be_read_is_said_in_one_line(case: str, tmp_path: Path) -> None:
    line, said = BAD[case]
    with pytest.raises(DataError) as caught:
        from_file(written(tmp_path, [line]))
    assert said in str(caught.value) and "line 1" in str(caught.value) and "\n" not in str(caught.value)


DEEP = "-" * 500 + "1"
DEEP_DATA: Any = 1
for _ in range(900):
    DEEP_DATA = [DEEP_DATA]
HOSTILE_TESTS = {
    "operators": {"prompt": "p", "entry_point": "f", "tests": f"assert f(1) == {DEEP}"},
    "a list of them": {"prompt": "p", "entry_point": "f", "tests": [f"assert {DEEP}"]},
    "MBPP": {"text": "t", "code": "def f(x): pass", "test_list": [f"assert f({DEEP}) == 1"]},
    "MBPP's imports": {"text": "t", "code": "def f(x): pass", "test_list": ["assert f(1)"], "test_imports": [1]},
    "MBPP's program": {"text": "t", "code": f"def f(x): return {'(' * 500}", "test_list": ["assert f(1)"]},
    "HumanEval": {"prompt": "p", "entry_point": "f", "test": "def check(c):\n    assert c(1) == " + "(" * 500},
    "data": {"prompt": "p", "entry_point": "f", "tests": [DEEP_DATA]},
    "printed": {"prompt": "p", "inputs": [DEEP_DATA], "outputs": [DEEP_DATA]},
    "cases": {"question_content": "p", "public_test_cases": [DEEP_DATA]},
}
PARSER = FunctionParser("prompt", "entry_point", "tests", "canonical_solution", False, 8, 1)


@pytest.mark.parametrize("name", HOSTILE_TESTS)
def test_tests_of_a_hostile_shape_are_one_line(name: str) -> None:
    with pytest.raises(DataError, match=r"^here: field .*task.unreadable=skip$") as caught:
        PARSER.parse(1, "here", HOSTILE_TESTS[name])
    assert "\n" not in str(caught.value)
    with contextlib.suppress(DataError):  # of a program or imports that cannot be read, nothing is left to skip
        row = replace(PARSER, skip_unreadable=True).parse(1, "here", HOSTILE_TESTS[name])
        assert not row.tests and not row.checks and not row.printed


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("assert f(1) == 1"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("test_list", "test", "public_test_cases", "inputs", "outputs", "tests", "test_setup_code", "test_imports", "task_id")
TEXTS = {"prompt": "p", "text": "t", "code": "def f(x): return x", "entry_point": "f", "question_content": "q"}


@PROPERTY
@given(st.dictionaries(st.sampled_from([*FIELDS, *TEXTS]), JSON), st.booleans())
def test_any_record_is_a_function_or_one_line(record: dict[str, Any], skip: bool) -> None:
    with contextlib.suppress(DataError):
        replace(PARSER, skip_unreadable=skip).parse(1, "here", TEXTS | record)


def test_assertions_that_a_model_nests_without_end_are_left_out() -> None:
    source = f"assert f(1) == {DEEP}\nassert {DEEP}\nassert f({'[' * 150}{']' * 150}) == 1\nassert f(2) == 3"
    assert parse_written_tests(source) == [("f", ((2,), to_canonical(3)))]


def test_tests_that_cannot_be_read_can_be_left_out(tmp_path: Path) -> None:
    mixed = ["assert f(1) == 2", "assert f(2) == 1 + 2", "assert f(3"]
    with pytest.raises(UnreadableTest):
        parse_tests(mixed, "f", skip=False)
    assert parse_tests(mixed, "f", skip=True) == (((1,), to_canonical(2)),)
    path = written(tmp_path, [*LINES, {"prompt": "x", "entry_point": "f", "tests": ["assert f(1) == g()"]}])
    assert from_file(path, unreadable="skip").size("train") == 3


def test_splits_of_a_file_are_disjoint(tmp_path: Path) -> None:
    many = [{"prompt": f"Add {n}.", "entry_point": "f", "tests": [[[n], n + n]]} for n in range(60)]
    task = from_file(written(tmp_path, many), dev=12, test=12)
    texts = [{p.text for p in task.draw_problems(split, 0, task.size(split) or 0)} for split in SPLITS]
    assert sum(map(len, texts)) == 60 and all(texts) and not texts[0] & texts[1] and not texts[0] & texts[2]
    with pytest.raises(DataError, match="does not exist"):
        from_file(tmp_path / "missing.jsonl")


# Published forms.


def mbpp(id: int, code: str, *tests: str, setup: str = "") -> dict[str, Any]:
    found = {"text": f"Write a function, number {id}.", "code": code, "task_id": id, "test_list": list(tests)}
    return found | {"test_setup_code": setup, "challenge_test_list": []}


TREE = """class Node:
    def __init__(self, left=None): self.left = left
def depth(node): return 1 + depth(node.left) if node else 0"""
DOUBLE = mbpp(601, "def double_It(n): return 2 * n", "assert double_It(2) == 4", "assert double_It(3) == 6.0")
DEPTH = mbpp(602, TREE, "assert depth(root) == 2", "assert (depth(None)) == 0", setup="root = Node(Node())")


def test_mbpp_names_the_function_and_shows_its_first_test(tmp_path: Path) -> None:
    rows = [mbpp(id, "def f(n): return n", "assert f(1) == 1", "assert f(2) == 2") for id in range(1, 975)]
    path = written(tmp_path, [rows[0], *rows[5:14], *rows[508:512], DOUBLE, *rows[601:]])
    task = from_file(path, dev=None, test=None)
    assert task.describe()["sizes"] == {"train": 374, "dev": 2, "test": 6}, "by number, and the first ten are in none"
    double = next(p for p in task.draw_problems("train", 0, 374) if p.data["entry"] == "double_It")
    named = "Write a function, number 601.\nThe function is called `double_It`."
    assert double.text == f"{named}\nIt must pass:\nassert double_It(2) == 4"
    hidden = from_file(path, dev=None, test=None, show_tests=0)
    assert named in [p.text for p in hidden.draw_problems("train", 0, 374)]


def test_mbpp_is_graded_by_all_its_tests(tmp_path: Path) -> None:
    task = from_file(written(tmp_path, [DOUBLE, DEPTH]))
    double, depth = sorted(task.draw_problems("train", 0, 2), key=lambda p: p.data["entry"], reverse=True)
    assert double.data["inputs"] == [[2], [3]] and not double.data["checks"]
    assert depth.data["inputs"] == [[None]] and len(depth.data["checks"]) == 1, "what is no literal runs as it is"
    wrong = TREE.replace("1 + ", "2 + ")
    items = [(double, double.answer), (double, "def double_It(n): return 4"), (depth, TREE), (depth, wrong), (depth, None)]
    assert task.run_hidden_tests(items) == [(True, True), (True, False), (True, True), (True, False), (False, False)]
    skipping = from_file(written(tmp_path, [DOUBLE, DEPTH]), unreadable="skip")
    assert skipping.size("train") == 2 and not any(p.data["checks"] for p in skipping.draw_problems("train", 0, 2))


@pytest.mark.parametrize("recipe", ["cure", "absolute_zero"])
def test_recipes_that_make_calls_take_tests_that_are_none(recipe: str, tmp_path: Path) -> None:
    rows = [DOUBLE, DEPTH, {**DOUBLE, "text": "Double it.", "task_id": 511}]
    section = {"name": "code", "dialect": "python", "path": str(written(tmp_path, rows)), "test": 0}
    assert resolve([{"recipe": recipe, "task": section}]).task.size("train") == 2


HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": 'from typing import List\n\n\ndef close(a: List[float]) -> float:\n    """The smallest gap."""\n',
    "entry_point": "close",
    "canonical_solution": "    a = sorted(a)\n    return min(y - x for x, y in zip(a, a[1:]))\n",
    "test": "def check(candidate):\n    assert True, 'fine'\n    assert abs(candidate([1.0, 3.0, 3.5]) - 0.5) < 1e-6\n",
}


def test_human_eval_takes_a_whole_function_or_its_rest(tmp_path: Path) -> None:
    literal = {**HUMAN_EVAL, "test": "def check(candidate):\n    assert True\n    assert candidate([1, 3]) == 2\n"}
    task = from_file(written(tmp_path, [HUMAN_EVAL, {**literal, "prompt": "import math\n" + str(HUMAN_EVAL["prompt"])}]))
    given, called = sorted(task.draw_problems("train", 0, 2), key=lambda p: len(p.data["inputs"]))
    assert given.text.startswith("from typing") and "write it out in full" in given.text and called.data["inputs"] == [[[1, 3]]]
    whole = "```python\ndef close(a):\n    a.sort()\n    return min(a[i + 1] - a[i] for i in range(len(a) - 1))\n```"
    for problem in (given, called):
        grades = task.grade_all([(problem, answer, ()) for answer in (problem.answer, whole, "    return 7", "", None)])
        assert [grade.correct for grade in grades] == [True, True, False, False, False]


READING = [
    {"prompt": "Add two numbers.", "inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7"]},
    {
        "question_content": "Halve.",
        "public_test_cases": json.dumps([{"input": "1\n", "output": "0.5", "testtype": "stdin"}]),
    },
]


def test_the_clock_is_a_backstop_for_any_processor_time() -> None:
    for cpu_s in (0.5, 1.0, 10.0):
        limits = Code(CodeOptions(dialect="python", cpu_s=cpu_s)).runner.limits
        assert limits.cpu_s == cpu_s and limits.wall_s == max(5.0, 5 * cpu_s)


def test_programs_that_read_and_print(tmp_path: Path) -> None:
    task = from_file(written(tmp_path, READING), tolerance=1e-6)
    halve, add = sorted(task.draw_problems("train", 0, 2), key=lambda p: len(p.data["printed"]))
    assert add.text == "Add two numbers.\nWrite a Python program that reads standard input and prints the answer."
    right = "```python\nimport sys\nprint(sum(map(int, sys.stdin.read().split())))\nsys.exit(0)\n```"
    items = [(add, right), (add, "print(3)"), (add, "print(1 / 0)"), (add, None), (halve, "print(int(input()) / 2 + 1e-9)")]
    assert task.run_hidden_tests(items) == [(True, True), (True, False), (False, False), (False, False), (True,)]


@pytest.mark.parametrize(
    ("given", "wanted", "tolerance", "same"),
    [
        ("1 2\n3\n", "1  2 \n3", None, True),
        ("1 2 3", "1 2\n3", None, False),
        ("1", "1\n1", None, False),
        ("1.0", "1", None, False),
        ("1.0", "1", 1e-6, True),
        ("1.1", "1", 1e-6, False),
        ("yes", "no", 1e-6, False),
        ("", "1", None, False),
    ],
)
def test_what_is_printed_is_compared_by_words_in_lines(given: str, wanted: str, tolerance: float | None, same: bool) -> None:
    assert is_same_output(given, wanted, tolerance) is same


BAD_FORMS: dict[str, tuple[Any, str]] = {
    "no list": ({**DOUBLE, "test_list": "assert f(1) == 1"}, "field 'test_list': not a list of assertions"),
    "other": ({**DOUBLE, "test_list": ["assert g(1) == 1"]}, "calls no function of the field 'code'"),
    "syntax": ({**HUMAN_EVAL, "test": "def check(:"}, "field 'test': does not parse as Python"),
    "lengths": ({"prompt": "x", "inputs": ["1"], "outputs": []}, "field 'inputs': `inputs` and `outputs` are not two lists"),
    "no outputs": ({"prompt": "x", "inputs": ["1"]}, "field 'outputs' is missing"),
    "empty": ({"prompt": "x", "inputs": ["1"], "outputs": [" "]}, "an empty `output`"),
    "functional": (
        {"question_content": "x", "public_test_cases": [{"input": "1", "output": "1", "testtype": "functional"}]},
        "not a test by standard input",
    ),
    "json": ({"question_content": "x", "public_test_cases": "["}, "field 'public_test_cases': not JSON"),
}


@pytest.mark.parametrize("case", BAD_FORMS)
def test_a_published_form_that_cannot_be_read_is_said_in_one_line(case: str, tmp_path: Path) -> None:
    row, said = BAD_FORMS[case]
    with pytest.raises(DataError) as caught:
        from_file(written(tmp_path, [row]))
    assert said in str(caught.value) and "line 1" in str(caught.value) and "\n" not in str(caught.value)


def test_a_program_is_taken_from_prose(tmp_path: Path) -> None:
    task = from_file(written(tmp_path, [LINES[0]]))
    problem = task.problem("train", 0)
    program, usage = "def add(a, b):\n    return a + b", "print(add(1, 2))"
    fenced = f"First:\n```python\nx = 1\n```\nthen\n```python\n{program}\n```"
    assert task.extract(fenced, problem) == program
    assert task.extract(f"{fenced}\nUse it:\n```python\n{usage}\n```\n```\n3\n```", problem) == program
    assert task.extract(f"```python\n{usage}\n```\n```bash\nls\n```", problem) == usage
    assert task.extract(f"```py \r\n{program}", problem) == program
    assert task.extract("no block", problem) is None and TINY.extract(fenced, TINY.problem("dev", 0)) is None
    assert problem.text == "Add.\nThe function is called `add`."


def test_mbpp_as_published() -> None:
    """Its own solutions pass, but for those that return a Counter or a defaultdict, or depend on the order of a dict."""
    task = from_file(shared_data("mbpp") / "mbpp.jsonl", dev=None, test=None, cpu_s=5)
    sizes = task.describe()["sizes"]
    assert (sizes["dev"], sizes["test"]) == (90, 500) and 370 <= sizes["train"] <= 374
    problems = task.draw_problems("dev", 0, 40)
    assert all("assert" in p.text and p.data["entry"] in p.text for p in problems)
    assert sum(grade.correct is True for grade in task.grade_all([(p, p.answer, ()) for p in problems])) >= 39
    assert not any(grade.correct for grade in task.grade_all([(p, "def f(): pass", ()) for p in problems]))
