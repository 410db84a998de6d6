"""The unit tester: from the description of a function, it writes a call and its expected result."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import Any

from milonga.roles.base import ROLES, Dialect, Role
from milonga.sandbox.values import Canonical, InvalidValue, parse_arguments, parse_literal, to_canonical
from milonga.tasks.base import Task
from milonga.tasks.code import restore_row
from milonga.tasks.code_words import draw_arguments, render_arguments, render_value
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

TESTER_PROMPT = """\
Write one unit test for the function that is asked for below: a call that would show a wrong program to be wrong, and its \
right result. Work it out inside <think> and </think>. Then give the arguments, separated by commas, inside <input> and \
</input>, and the result inside <output> and </output>, both as Python literals.

Task:
"""
TAGGED = re.compile(
    r"\s*<think>(?P<work>.*?)</think>\s*<input>(?P<input>[^<>]*)</input>\s*<output>(?P<output>[^<>]*)</output>\s*", re.DOTALL
)


@dataclass(frozen=True)
class UnitTest:
    """A call and its expected result; `arguments` is None if nothing could be parsed."""

    arguments: tuple[Any, ...] | None
    expected: Canonical | None
    ends: tuple[int, ...] = ()


@ROLES.register("tester")
class Tester(Role):
    """Writes a test.

    terse: the arguments on the first line, what comes out after each word on lines of their own, and `#` and the result.
    tagged: work, arguments and result in their tags.
    `noise` is how often the teacher of demonstrations expects a wrong result, `lazy` how often its call is a trivial one.
    """

    name = "tester"
    judges = False

    def __init__(self, dialect: Dialect, noise: float = 0.0, lazy: float = 0.0) -> None:
        super().__init__(dialect)
        self.noise, self.lazy = noise, lazy

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.dialect == "terse" else ("</output>",)

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return (Part("~"), Part(problem.text, foreign=True), Part("\n"))
        return (Part(TESTER_PROMPT), Part(problem.text, foreign=True), Part("\n\nTest:\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        nothing = UnitTest(None, None)
        if self.dialect == "terse":
            lines = text.split("\n")
            given, expected = lines[0], lines[-1].removeprefix("#")
            if len(lines) < 2 or not lines[-1].startswith("#"):
                return Parsed(nothing, 0.0, "not a call and a result")
        else:
            found = TAGGED.fullmatch(text)
            if found is None:
                return Parsed(nothing, 0.0, "not work, arguments and result in their tags")
            given, expected = found["input"], found["output"]
        try:
            return Parsed(UnitTest(parse_arguments(given), to_canonical(parse_literal(expected))), 1.0)
        except InvalidValue as error:
            return Parsed(nothing, 0.5, f"not literals: {error}")

    def write(self, arguments: str, work: list[str], expected: str) -> str:
        """Write the text that parses as this test."""
        if self.dialect == "terse":
            return "\n".join([arguments, *work, f"#{expected}"])
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
            values[-1] = _corrupt_result(values[-1], rng)
        return None, self.write(render_arguments(arguments), values[:-1], values[-1])


def _corrupt_result(text: str, rng: random.Random) -> str:
    """Return a result that is slightly wrong."""
    numbers = list(re.finditer(r"\d+", text))
    if numbers:
        one = rng.choice(numbers)
        return f"{text[: one.start()]}{abs(int(one[0]) + rng.choice((-2, -1, 1, 2)))}{text[one.end() :]}"
    return {"[]": "[0]", "''": "'a'", "True": "False", "False": "True"}.get(text) or f"'{text[1:-1][::-1]}a'"
