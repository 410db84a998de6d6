"""Functions from a JSONL file: a prompt, the name of the function to write, and tests as data.

Tests are lists of arguments and results, or assertions as public sets have them: in a list (`assert f(1, 2) == 3`), or anywhere
in a piece of Python that defines them. Assertions are read, never run: what calls the function with literals and compares the
result with a literal becomes a call and a value, so that a program under test never meets what is expected of it.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from milonga.errors import DataError, suggest_name
from milonga.sandbox.values import Canonical, InvalidValue, to_canonical
from milonga.tasks.data import Row, parse_json

CANDIDATE = "candidate"
"""The name by which some sets call the function in their assertions, whatever its own is."""
Test = tuple[tuple[Any, ...], Canonical]


@dataclass(frozen=True)
class FunctionRow(Row):
    """A function to write; `answer` is a solution, where the file has one."""

    entry: str = ""
    tests: tuple[Test, ...] = ()


@dataclass(frozen=True)
class FunctionFields:
    """The field names of a line, and whether tests that cannot be parsed are skipped."""

    prompt: str
    entry_point: str
    tests: str
    solution: str
    skip_unreadable: bool

    def read(self, path: Path) -> list[FunctionRow]:
        """Load all functions of a file; blank lines count as lines."""
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            raise DataError(f"data file '{path}' does not exist") from None
        except OSError as error:
            raise DataError(f"data file '{path}' cannot be read: {error.strerror}") from None
        rows = [self._parse_row(line, f"{path}, line {number}", number) for number, line in enumerate(lines, 1) if line.strip()]
        found = [row for row in rows if row is not None]
        if not found:
            raise DataError(f"data file '{path}' holds no function with a test that can be read")
        return found

    def _parse_row(self, line: bytes, where: str, number: int) -> FunctionRow | None:
        record = parse_json(line, where)
        if not isinstance(record, Mapping):
            raise DataError(f"{where}: not a JSON object but {type(record).__name__}")
        prompt, entry = (self._get_text(record, field, where) for field in (self.prompt, self.entry_point))
        if not entry.isidentifier():
            raise DataError(f"{where}: field '{self.entry_point}' is not the name of a function: {entry[:60]!r}")
        try:
            tests = parse_tests(self._get_field(record, self.tests, where), entry, self.skip_unreadable)
        except (UnreadableTest, InvalidValue) as error:
            raise DataError(
                f"{where}: field '{self.tests}': {error}; mend it, or leave such tests out with task.unreadable=skip"
            ) from None
        solution = record.get(self.solution)
        return FunctionRow(number, prompt, solution if isinstance(solution, str) else "", "", entry, tests) if tests else None

    def _get_field(self, record: Mapping[Any, Any], field: str, where: str) -> Any:
        if field not in record:
            raise DataError(f"{where}: field '{field}' is missing; {suggest_name(field, map(str, record))}")
        return record[field]

    def _get_text(self, record: Mapping[Any, Any], field: str, where: str) -> str:
        text = self._get_field(record, field, where)
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{where}: field '{field}' is not a text with something in it")
        return text.strip()


class UnreadableTest(ValueError):
    """A test that is no call with literals and a literal as its result."""


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
        raise UnreadableTest(f"a test is {{args, expected}}, a pair, or an assertion, not {str(part)[:60]!r}")
    if not isinstance(arguments, list):
        raise UnreadableTest(f"the arguments of a test are a list, not {str(arguments)[:60]!r}")
    to_canonical(arguments)  # within the bounds
    return tuple(arguments), to_canonical(expected)


def _parse_assertions(source: str, entry: str, skip: bool) -> list[Test]:
    """Parse the assertions of a piece of Python, without running it."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        raise UnreadableTest(f"does not parse as Python{f' (its line {line})' if line else ''}") from None
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
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
    said = ast.unparse(test)[:80]
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
