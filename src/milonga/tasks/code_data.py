"""Programs to write, from files: a prompt, the name of the function, and tests.

Four forms are known by their fields: our own (`prompt`, `entry_point`, `tests`), MBPP's (`test_list`), HumanEval's (`test`),
and programs that read their input and print (`inputs` and `outputs`, or LiveCodeBench's `public_test_cases`).

Tests are lists of arguments and results, or assertions as public sets have them. An assertion that calls the function with
literals and compares the result with a literal is read, never run: it becomes a call and a value, so that a program under test
never meets what is expected of it. Of MBPP and HumanEval the few others run as they are, behind the program in its process.
"""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from milonga.errors import DataError, suggest_name
from milonga.reading import NOT_PYTHON, parse_python
from milonga.sandbox.values import Canonical, InvalidValue, decode, to_canonical
from milonga.tasks.rows import Row, parse_json, read_records, require_object
from milonga.types import Split

CANDIDATE = "candidate"
"""The name by which some sets call the function in their assertions, whatever its own is."""
DEEPEST = 200
"""Levels of nesting in the Python of a test: what is deeper, Python parses and cannot write out again."""
CHECK = "check_as_given"
"""The function that runs a test as it is, and returns True."""
MBPP_SPLITS: Mapping[Split, range] = {"train": range(601, 975), "dev": range(511, 601), "test": range(11, 511)}
"""By `task_id`, as published; the first ten are for prompts."""
Test = tuple[tuple[Any, ...], Canonical]


@dataclass(frozen=True)
class FunctionRow(Row):
    """A program to write; `answer` is a right one, where the file has it. It has tests of at least one kind."""

    entry: str = ""
    """The function; empty for a program that reads its input and prints."""
    public: str = ""
    """A test that may be shown, and is not in the prompt already."""
    tests: tuple[Test, ...] = ()
    """Calls, and what they must return."""
    checks: tuple[str, ...] = ()
    """Pieces of Python that define `CHECK`, to be run behind the program."""
    printed: tuple[tuple[str, str], ...] = ()
    """Standard inputs, and what must be printed for them."""
    before: str = ""
    """What stands before the program."""
    note: str = ""
    """What the prompt says behind the question."""
    published_split: Split | Literal[""] | None = None
    """Empty: in no split; None: nothing was published."""


@dataclass(frozen=True)
class FunctionParser:
    """Parses records into functions: the names of our own fields, and what becomes of tests that are no call with literals."""

    prompt: str
    entry_point: str
    tests: str
    solution: str
    skip_unreadable: bool
    hidden: int
    """Hidden tests of a function in our own form, at most; its first test is public."""
    show_tests: int
    """Tests of MBPP's form in the prompt."""

    def read_file(self, path: Path) -> list[FunctionRow]:
        """Read all functions of a file; one of whose tests none is left is left out."""
        rows = [self.parse(*record) for record in read_records(path)]
        found = [row for row in rows if row.tests or row.checks or row.printed]
        if not found:
            raise DataError(f"data file '{path}' holds no function with a test that can be read")
        return found

    def parse(self, number: int, where: str, record: Any) -> FunctionRow:
        """Parse a record in the form that its fields show."""
        require_object(record, where)
        field, parse = self._find_form(record)
        try:
            return replace(parse(record, where), number=number, columns=record)
        except (UnreadableTest, InvalidValue) as error:
            said = "mend it, or leave such tests out with task.unreadable=skip"
            raise DataError(f"{where}: field '{field}': {error}; {said}") from None

    def _find_form(self, record: Mapping[str, Any]) -> tuple[str, Callable[[Mapping[str, Any], str], FunctionRow]]:
        """Find the form of a record: the field with its tests, and how it is parsed."""
        forms = {
            self.tests: self._parse_own,
            "test_list": self._parse_mbpp,
            "test": self._parse_human_eval,
            "public_test_cases": self._parse_printed,
            "inputs": self._parse_printed,
        }
        return next(((field, parse) for field, parse in forms.items() if field in record), (self.tests, self._parse_own))

    def _parse_own(self, record: Mapping[str, Any], where: str) -> FunctionRow:
        prompt, entry = (_get_text(record, field, where) for field in (self.prompt, self.entry_point))
        if not entry.isidentifier():
            raise DataError(f"{where}: field '{self.entry_point}' is not the name of a function: {entry[:60]!r}")
        tests = parse_tests(_get_field(record, self.tests, where), entry, self.skip_unreadable)
        graded = tests[1 : 1 + self.hidden] or tests
        note, public = _name_function(prompt, entry), render_test(entry, tests)
        return FunctionRow(0, prompt, _get_solution(record, self.solution), entry=entry, public=public, tests=graded, note=note)

    def _parse_mbpp(self, record: Mapping[str, Any], where: str) -> FunctionRow:
        prompt = _get_text(record, "text" if "text" in record else "prompt", where)
        code, assertions = _get_text(record, "code", where).replace("\r\n", "\n"), record["test_list"]
        if not isinstance(assertions, list) or not assertions or not all(isinstance(each, str) for each in assertions):
            raise UnreadableTest("not a list of assertions")
        entry = _find_entry(code, assertions[0])
        setup = record.get("test_setup_code") or "\n".join(_get_lines(record, "test_imports"))
        tests, checks = self._sort_assertions(assertions, entry, setup)
        shown = assertions[: self.show_tests]
        return FunctionRow(
            0,
            prompt,
            code,
            entry=entry,
            public="" if shown else render_test(entry, tests),
            tests=tests,
            checks=checks,
            note=_name_function(prompt, entry) + ("\nIt must pass:\n" + "\n".join(shown) if shown else ""),
            published_split=_find_mbpp_split(record.get("task_id")),
        )

    def _sort_assertions(self, assertions: Sequence[str], entry: str, setup: str) -> tuple[tuple[Test, ...], tuple[str, ...]]:
        """Sort assertions into those that are calls with values, and those that must run as they are."""
        tests: list[Test] = []
        checks: list[str] = []
        for text in assertions:
            try:
                tests += _parse_assertions(text, entry, skip=False)
            except (UnreadableTest, InvalidValue):
                if not self.skip_unreadable:
                    checks.append(make_check(setup, _unparse(_parse_python(text))))
        return tuple(tests), tuple(checks)

    def _parse_human_eval(self, record: Mapping[str, Any], where: str) -> FunctionRow:
        prompt, entry, test = (_get_text(record, field, where) for field in ("prompt", "entry_point", "test"))
        tests: tuple[Test, ...] = ()
        checks: tuple[str, ...] = ()
        try:
            tests = parse_tests(test, entry, self.skip_unreadable)
        except (UnreadableTest, InvalidValue):
            _parse_python(test)  # what cannot be parsed cannot be run either
            checks = (make_check(test, f"check({entry})"),)
        return FunctionRow(
            0,
            prompt,
            _get_solution(record, "canonical_solution"),
            entry=entry,
            public=render_test(entry, tests),
            tests=tests,
            checks=checks,
            before=f"{prompt}\n",
            note="\nComplete this function, and write it out in full.",
        )

    def _parse_printed(self, record: Mapping[str, Any], where: str) -> FunctionRow:
        prompt = _get_text(record, "question_content" if "question_content" in record else self.prompt, where)
        if "public_test_cases" in record:
            cases = record["public_test_cases"]
            cases = parse_json(cases.encode(), f"{where}, field 'public_test_cases'") if isinstance(cases, str) else cases
        else:
            cases = _pair_up(record["inputs"], _get_field(record, "outputs", where))
        if not isinstance(cases, list):
            raise UnreadableTest("not a list of tests")
        printed: list[tuple[str, str]] = []
        for case in cases:
            try:
                printed.append(_parse_case(case))
            except UnreadableTest:
                if not self.skip_unreadable:
                    raise
        note = "\nWrite a Python program that reads standard input and prints the answer."
        return FunctionRow(0, prompt, _get_solution(record, self.solution), printed=tuple(printed), note=note)


def _get_field(record: Mapping[str, Any], field: str, where: str) -> Any:
    if field not in record:
        raise DataError(f"{where}: field '{field}' is missing; {suggest_name(field, map(str, record))}")
    return record[field]


def _get_text(record: Mapping[str, Any], field: str, where: str) -> str:
    text = _get_field(record, field, where)
    if not isinstance(text, str) or not text.strip():
        raise DataError(f"{where}: field '{field}' is not a text with something in it")
    return text.strip()


def _get_lines(record: Mapping[str, Any], field: str) -> list[str]:
    """Get a list of texts, empty if the field is not there."""
    lines = record.get(field) or []
    if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
        raise UnreadableTest(f"'{field}' beside it is not a list of texts")
    return lines


def _get_solution(record: Mapping[str, Any], field: str) -> str:
    """Get a right program, or nothing: it measures tests, and no problem depends on it."""
    solution = record.get(field)
    return solution if isinstance(solution, str) else ""


def _name_function(prompt: str, entry: str) -> str:
    """What to say behind a prompt that does not name the function it asks for."""
    return "" if re.search(rf"\b{re.escape(entry)}\b", prompt) else f"\nThe function is called `{entry}`."


def render_test(entry: str, tests: Sequence[Test]) -> str:
    """Render the first test as people write it; nothing, if there is none."""
    if not tests:
        return ""
    arguments, value = tests[0]
    return f"{entry}({', '.join(repr(each) for each in arguments)}) == {decode(value)!r}"


def make_check(setup: str, statement: str) -> str:
    """Make a piece of Python that runs a statement as it is, behind what it needs."""
    lines = "".join(f"    {line}\n" for line in statement.splitlines())
    return f"{setup}\n\ndef {CHECK}():\n{lines}    return True\n"


def _find_mbpp_split(id: Any) -> Split | Literal[""] | None:
    if not isinstance(id, int):
        return None
    return next((split for split, ids in MBPP_SPLITS.items() if id in ids), "")


def _find_entry(code: str, assertion: str) -> str:
    """Find the function that an assertion is about: the first it calls of those that a right program defines."""
    defined = {node.name for node in _parse_python(code).body if isinstance(node, ast.FunctionDef)}
    calls = [node.func for node in ast.walk(_parse_python(assertion)) if isinstance(node, ast.Call)]
    found = [called.id for called in calls if isinstance(called, ast.Name) and called.id in defined]
    if not found:
        raise UnreadableTest(f"calls no function of the field 'code': {assertion[:80]}")
    return found[0]


def _pair_up(inputs: Any, outputs: Any) -> list[Mapping[str, Any]]:
    if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs) or not inputs:
        raise UnreadableTest("`inputs` and `outputs` are not two lists of the same length")
    return [{"input": given, "output": printed} for given, printed in zip(inputs, outputs, strict=True)]


def _parse_case(case: Any) -> tuple[str, str]:
    """Parse a test of a program that reads and prints: `{"input": text, "output": text}`."""
    if not isinstance(case, Mapping) or case.get("testtype", "stdin") != "stdin":
        raise UnreadableTest(f"not a test by standard input: {_show(case)}")
    given, printed = case.get("input"), case.get("output")
    if not isinstance(given, str) or not isinstance(printed, str):
        raise UnreadableTest(f"`input` and `output` are not two texts: {_show(case)}")
    if not printed.strip():
        raise UnreadableTest("an empty `output`, which a missing program would give")
    return given, printed


class UnreadableTest(ValueError):
    """A test that is no call with literals and a literal as its result."""


def _show(value: Any) -> str:
    """Show how a value of any shape begins."""
    try:
        return repr(str(value)[:60])
    except RecursionError:
        return f"a deep {type(value).__name__}"


def parse_tests(value: Any, entry: str, skip: bool) -> tuple[Test, ...]:
    """Parse the tests of a function. With `skip`, invalid ones are left out."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list) or not parts:
        raise UnreadableTest("neither a list of tests nor a piece of Python")
    found: list[Test] = []
    for part in parts:
        try:
            found += _parse_assertions(part, entry, skip) if isinstance(part, str) else [_parse_data_test(part)]
        except (UnreadableTest, InvalidValue):
            if not skip:
                raise
    return tuple(found)


def _parse_data_test(part: Any) -> Test:
    """Parse a test given as data: `{"args": [1, 2], "expected": 3}` or `[[1, 2], 3]`."""
    if isinstance(part, Mapping) and {"args", "expected"} <= part.keys():
        arguments, expected = part["args"], part["expected"]
    elif isinstance(part, list) and len(part) == 2:
        arguments, expected = part
    else:
        raise UnreadableTest(f"a test is {{args, expected}}, a pair, or an assertion, not {_show(part)}")
    if not isinstance(arguments, list):
        raise UnreadableTest(f"the arguments of a test are a list, not {_show(arguments)}")
    to_canonical(arguments)  # within the bounds
    return tuple(arguments), to_canonical(expected)


def _parse_python(source: str) -> ast.Module:
    try:
        tree = parse_python(source)
    except NOT_PYTHON as error:
        line = getattr(error, "lineno", None)
        raise UnreadableTest(f"does not parse as Python{f' (its line {line})' if line else ''}") from None
    level: list[ast.AST] = [tree]
    for _ in range(DEEPEST):
        level = [inner for node in level for inner in ast.iter_child_nodes(node)]
    if level:
        raise UnreadableTest(f"is nested more than {DEEPEST} levels deep")
    return tree


def _unparse(node: ast.AST) -> str:
    """Write a piece of Python out again; what is nested too deeply for that is no test."""
    try:
        return ast.unparse(node)
    except RecursionError:
        raise UnreadableTest("nested too deeply") from None


def _parse_assertions(source: str, entry: str, skip: bool) -> list[Test]:
    """Parse the assertions of a piece of Python, without running it."""
    asserts = [node for node in ast.walk(_parse_python(source)) if isinstance(node, ast.Assert)]
    asserts = [node for node in asserts if _unparse(node.test) != "True"]  # it says nothing, and stands in public sets
    if not asserts:
        raise UnreadableTest("holds no assertion")
    found = []
    for node in asserts:
        try:
            found.append(_parse_assertion(node.test, entry))
        except (UnreadableTest, InvalidValue):
            if not skip:
                raise
    return found


def _parse_assertion(test: ast.expr, entry: str) -> Test:
    said = _unparse(test)[:80]
    if not (isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is)):
        raise UnreadableTest(f"not `{entry}(...) == value`: {said}")
    call, expected = test.left, test.comparators[0]
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in (entry, CANDIDATE)):
        raise UnreadableTest(f"not a call of {entry}: {said}")
    try:
        if call.keywords:
            raise ValueError
        arguments = tuple(ast.literal_eval(part) for part in call.args)
        value = ast.literal_eval(expected)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise UnreadableTest(f"not made of literals: {said}") from None
    to_canonical(arguments)  # within the bounds
    return arguments, to_canonical(value)


def parse_written_tests(source: str) -> list[tuple[str, Test]]:
    """Parse the assertions of a text that a model wrote: the function that each calls, and the call with its result. Those that
    are no call with literals are left out. `assert f(1)` and `assert not f(1)` expect True and False."""
    found = []
    for node in _find_written_assertions(source):
        test = _spell_out(node.test)
        call = test.left if isinstance(test, ast.Compare) else None
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            continue
        try:
            found.append((call.func.id, _parse_assertion(test, call.func.id)))
        except (UnreadableTest, InvalidValue):
            continue
    return found


def _find_written_assertions(source: str) -> list[ast.Assert]:
    """Find the assertions of a text; line by line, where it is no Python as a whole."""
    lines = [line.strip() for line in source.split("\n")]
    for parts in ([source], [line for line in lines if line.startswith("assert ")]):
        trees = []
        for part in parts:
            with contextlib.suppress(UnreadableTest):
                trees.append(_parse_python(part))
        if trees:
            return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    return []


def _spell_out(test: ast.expr) -> ast.expr:
    """Spell out what a bare call, or its negation, is compared with."""
    denied = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    call = test.operand if isinstance(test, ast.UnaryOp) and denied else test
    return ast.Compare(call, [ast.Eq()], [ast.Constant(not denied)]) if isinstance(call, ast.Call) else test
