"""The unit tester: from the description of a program, it writes a call and its result, or an input and what is printed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.fences import clean_arguments, clean_literal, find_comparison, find_fenced_blocks, find_labelled, join_inline
from milonga.roles.prose import skip_thought
from milonga.roles.tags import find_sequence, find_tags
from milonga.roles.templates import load_packaged_prompt
from milonga.sandbox.values import Canonical, InvalidValue, parse_arguments, parse_literal, to_canonical
from milonga.tasks.base import Task
from milonga.tasks.code import restore_row
from milonga.tasks.code_data import parse_written_tests
from milonga.tasks.code_words import corrupt_result, draw_arguments, render_arguments, render_value
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

SEVERAL = 0.5
"""Format score of a test that is one of several, or has another form than was asked for."""


@dataclass(frozen=True)
class UnitTest:
    """A call and its expected result, an input and what is printed, or what may be either: the task decides. None where it is
    not so."""

    arguments: tuple[Any, ...] | None
    expected: Canonical | None
    ends: tuple[int, ...] = ()
    entry: str | None = None
    """The function that is called, where the test names it."""
    stdin: str | None = None
    printed: str | None = None

    def fits(self, problem: Problem) -> bool:
        """Whether it is a test of this problem: a call of its function, or an input where the program reads and prints."""
        if problem.data.get("printed"):
            return self.stdin is not None and self.printed is not None
        return self.arguments is not None and self.entry in (None, problem.data.get("entry"))


NOTHING = UnitTest(None, None)


@ROLES.register("tester")
class Tester(Role):
    """Writes a test.

    plain: prose with an assertion in a code block, or with the input and the output in one each. terse: the arguments on the
    first line, what comes out after each word on lines of their own, and `#` and the result. tagged: work, arguments and result
    in their tags. `noise` is how often the teacher of demonstrations expects a wrong result, `lazy` how often its call is a
    trivial one.
    """

    name = "tester"
    judges = False

    def __init__(self, dialect: Dialect, noise: float = 0.0, lazy: float = 0.0) -> None:
        super().__init__(dialect)
        self.noise, self.lazy = noise, lazy

    @property
    def stop(self) -> tuple[str, ...]:
        return ("</output>",) if self.dialect == "tagged" else ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return (Part("~"), Part(problem.text, foreign=True), Part("\n"))
        foreign = {"problem": problem.text, "entry": str(problem.data.get("entry", ""))}
        asked = {"reads": bool(problem.data.get("printed")), "tagged": self.dialect == "tagged"}
        return load_packaged_prompt("tester", __package__).render(foreign, **asked)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "terse":
            return _parse_terse(text)
        return _parse_tagged(text) if self.dialect == "tagged" else _parse_plain(skip_thought(text))

    def write(self, arguments: str, work: list[str], expected: str) -> str:
        """Write the text that parses as this test."""
        if self.dialect == "terse":
            return "\n".join([arguments, *work, f"#{expected}"])
        if self.dialect == "plain":
            return "\n\n".join([*work, f"```input\n{arguments}\n```", f"```output\n{expected}\n```"])
        return f"<think>{'; '.join(work)}</think>\n<input>{arguments}</input>\n<output>{expected}</output>"

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate a test of a function of the task `code`, worked out word by word. A wrong one errs in its last line."""
        row = restore_row(problem)
        while True:
            arguments = draw_arguments(row.signature, rng)
            if rng.random() < self.lazy:
                arguments = tuple(value[:1] if isinstance(value, list | str) else value % 2 for value in arguments)
            found = row.evaluate_prefixes(arguments)
            if found is not None:
                break
        values = [render_value(value) for value in found]
        if rng.random() < self.noise:
            values[-1] = corrupt_result(values[-1], rng)
        return None, self.write(render_arguments(arguments), values[:-1], values[-1])


def _parse_terse(text: str) -> Parsed:
    lines = text.split("\n")
    if len(lines) < 2 or not lines[-1].startswith("#"):
        return Parsed(NOTHING, 0.0, "not a call and a result")
    try:
        return Parsed(_make_call(lines[0], lines[-1].removeprefix("#")), 1.0)
    except InvalidValue as error:
        return Parsed(NOTHING, 0.5, f"not literals: {error}")


def _parse_tagged(text: str) -> Parsed:
    """Parse the last input and the last output in their tags; text around the work and them costs format alone."""
    given, expected = find_tags(text, "input")[-1:], find_tags(text, "output")[-1:]
    if not given or not expected:
        return Parsed(NOTHING, 0.0, "no arguments and no result in their tags")
    is_exact = find_sequence(text, "think", "input", "output") is not None
    return Parsed(_make_either(given[0].body, expected[0].body), 1.0 if is_exact else SEVERAL)


def _parse_plain(text: str) -> Parsed:
    """Parse the last assertion of the last block that has one, the text or inline code, or a comparison in its place; or else
    the named input and output."""
    others = (text, join_inline(text), find_comparison(text))
    for code, form in [*((b.body, 1.0) for b in find_fenced_blocks(text)[::-1]), *((other, SEVERAL) for other in others)]:
        if tests := parse_written_tests(code):
            entry, (arguments, expected) = tests[-1]
            return Parsed(UnitTest(arguments, expected, entry=entry), form if len(tests) == 1 else SEVERAL)
    given, printed = (next(find_labelled(text, name), None) for name in ("input", "output"))
    if given is None or printed is None:
        return Parsed(NOTHING, 0.0, "no assertion, and no input with its output")
    return Parsed(_make_either(given[0], printed[0]), 1.0 if given[1] and printed[1] else SEVERAL)


def _make_call(arguments: str, expected: str) -> UnitTest:
    return UnitTest(parse_arguments(arguments), to_canonical(parse_literal(expected)))


def _make_either(given: str, expected: str) -> UnitTest:
    """Make the test of an input and an output: of a program that prints, and of a function where both are literals."""
    arguments, result = clean_arguments(given), clean_literal(expected)
    call = NOTHING if arguments is None or result is None else _make_call(arguments, result)
    return replace(call, stdin=given.strip() + "\n", printed=expected.strip())
