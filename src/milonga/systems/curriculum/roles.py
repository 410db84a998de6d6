"""The chooser: from how often each level of difficulty is solved, it names the level that should come next."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from milonga.roles.base import ROLES, Role
from milonga.roles.prose import skip_thought
from milonga.tasks.answers import find_last_box
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

PROPOSER_PROMPT = """\
A solver is learning. Below are levels of difficulty, each with how many tenths of its problems the solver got right lately \
(? where none is known). Name the one level whose problems it can learn most from now: sometimes solved, sometimes not. Answer \
with its number inside <level> and </level> and nothing else.

Levels:
"""
PLAIN_PROMPT = """\
A student is learning to solve problems of several levels of difficulty. This is how often the student has lately solved \
problems of each level:

"""
PLAIN_QUESTION = """\


The student learns most from problems that are sometimes solved and sometimes not. Which level should the next problem have? \
Answer with the number of one level and nothing else."""
NAMED = re.compile(r"\blevel\W{0,5}([1-9][0-9]{0,3})\b", re.IGNORECASE)
NUMBER = re.compile(r"(?<![\w.])([1-9][0-9]{0,3})(?![\w%]|\.[0-9])", re.ASCII)
BARE = re.compile(r"\W*(?:level\W*)?([1-9][0-9]{0,3})\W*", re.IGNORECASE | re.ASCII)
"""A line that is nothing but a level."""
LOOSE_FORMAT = 0.5
"""Format score of a level with text around it."""
TERSE = re.compile(r"([1-9][0-9]{0,3})")
TAGGED = re.compile(r"\s*<level>\s*([1-9][0-9]{0,3})\s*</level>\s*")


@dataclass(frozen=True)
class Choice:
    """The level that was named; None where none can be read."""

    level: int | None
    ends: tuple[int, ...] = ()


@ROLES.register("chooser")
class Chooser(Role):
    """Names a level. plain: in words, of which the level is read. terse: `<`, the rates and a line break, then the number
    alone. tagged: the number in its tag."""

    name = "chooser"
    judges = False

    @property
    def stop(self) -> tuple[str, ...]:
        return ("</level>",) if self.dialect == "tagged" else ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """`problem` is what `make_level_problem` made of the rates."""
        if self.dialect == "terse":
            return (Part("<"), Part(problem.text, foreign=True), Part("\n"))
        if self.dialect == "plain":
            return (Part(PLAIN_PROMPT), Part(spell_rates(problem.text), foreign=True), Part(PLAIN_QUESTION))
        return (Part(PROPOSER_PROMPT), Part(problem.text, foreign=True), Part("\n\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            return parse_plain_choice(text)
        found = (TERSE if self.dialect == "terse" else TAGGED).fullmatch(text)
        return Parsed(Choice(int(found[1])), 1.0) if found else Parsed(Choice(None), 0.0, "not one level")

    def write(self, level: int) -> str:
        """Write the text that parses as this level."""
        return f"<level>{level}</level>" if self.dialect == "tagged" else str(level)


def parse_plain_choice(text: str) -> Parsed:
    """Parse the level that a text in words names: of a line that is nothing but a level, in a box, the only one that is called
    a level, or the only number. A thought before it does not count."""
    said = skip_thought(text)
    lines = [line for line in said.splitlines() if line.strip()]
    bare = [alone for line in lines if (alone := BARE.fullmatch(line))]
    if bare:
        return Parsed(Choice(int(bare[0][1])), 1.0 if len(lines) == 1 else LOOSE_FORMAT)
    boxed = NUMBER.findall(find_last_box(said) or "")
    found = boxed[-1:] or list(set(NAMED.findall(said)) or set(NUMBER.findall(said)))
    return Parsed(Choice(int(found[0])), LOOSE_FORMAT) if len(found) == 1 else Parsed(Choice(None), 0.0, "not one level")


def spell_rates(state: str) -> str:
    """Spell the rates of `make_level_problem` in words, a level a line."""
    pairs = [pair.split(":") for pair in state.split()]
    return "\n".join(f"Level {level}: {'not tried yet' if tenths == '?' else f'{tenths} of 10'}" for level, tenths in pairs)


def make_level_problem(levels: Sequence[int], rates: Mapping[str, float], id: str) -> Problem:
    """Make the chooser's problem: each level with its success rate in tenths, as in `1:9 2:6 3:?`. It has no answer."""

    def tenths(level: int) -> str:
        rate = rates.get(str(level))
        return "?" if rate is None else str(min(9, int(10 * rate)))

    return Problem(id, " ".join(f"{level}:{tenths(level)}" for level in levels), "")
