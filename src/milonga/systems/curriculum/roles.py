"""The chooser: from how often each level of difficulty is solved, it names the level that should come next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milonga.roles.base import ROLES, Role
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

PROPOSER_PROMPT = """\
A solver is learning. Below are levels of difficulty, each with how many tenths of its problems the solver got right lately \
(? where none is known). Name the one level whose problems it can learn most from now: sometimes solved, sometimes not. Answer \
with its number inside <level> and </level> and nothing else.

Levels:
"""
TERSE = re.compile(r"([1-9][0-9]{0,3})")
TAGGED = re.compile(r"\s*<level>\s*([1-9][0-9]{0,3})\s*</level>\s*")


@dataclass(frozen=True)
class Choice:
    """The level that was named; None where none can be read."""

    level: int | None
    ends: tuple[int, ...] = ()


@ROLES.register("chooser")
class Chooser(Role):
    """Names a level. terse: `<`, the rates and a line break, then the number alone. tagged: the number in its tag."""

    name = "chooser"
    judges = False

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.dialect == "terse" else ("</level>",)

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """`problem` is what `state_of` made of the rates."""
        if self.dialect == "terse":
            return (Part("<"), Part(problem.text, foreign=True), Part("\n"))
        return (Part(PROPOSER_PROMPT), Part(problem.text, foreign=True), Part("\n\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        found = (TERSE if self.dialect == "terse" else TAGGED).fullmatch(text)
        return Parsed(Choice(int(found[1])), 1.0) if found else Parsed(Choice(None), 0.0, "not one level")

    def write(self, level: int) -> str:
        """Write the text that parses as this level."""
        return str(level) if self.dialect == "terse" else f"<level>{level}</level>"


def make_level_problem(levels: Sequence[int], rates: Mapping[str, float], id: str) -> Problem:
    """Make the chooser's problem: each level with its success rate in tenths, as in `1:9 2:6 3:?`. It has no answer."""

    def tenths(level: int) -> str:
        rate = rates.get(str(level))
        return "?" if rate is None else str(min(9, int(10 * rate)))

    return Problem(id, " ".join(f"{level}:{tenths(level)}" for level in levels), "")
