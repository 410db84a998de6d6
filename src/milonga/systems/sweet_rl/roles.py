"""The inquirer: a solver that sees only parts of the problem. It asks for hidden parts, one per turn, and then solves.

The reply to a question is the problem text again, with the requested part filled in, and nothing else.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.solver import StepSolver
from milonga.tasks.base import Task
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

HIDDEN = "?"
"""Placeholder of a hidden part."""
INQUIRER_PROMPT = f"""\
Parts of the problem below are kept back: each of them is shown as {HIDDEN}. You may ask for one part of the problem at a \
time, hidden or not, by its number counted from the left, inside <ask> and </ask>; you will be shown the problem with that \
part. Ask now and write nothing else.

Problem:
"""
TAGGED_MORE = "\n\nAsk for another part, inside <ask> and </ask>.\n"
TAGGED_LAST = """

No more questions. Solve the problem: work inside <think> and </think>, with every logical step in its own <step> and </step>, \
and give only the result inside <answer>\\boxed{ }</answer>.
"""
TERSE = re.compile(r"([1-9][0-9]?)")
TAGGED = re.compile(r"\s*<ask>\s*([1-9][0-9]?)\s*</ask>\s*")


@dataclass(frozen=True)
class Question:
    """The part that is asked for, counted from 0; None where none can be read."""

    part: int | None
    ends: tuple[int, ...] = ()


@ROLES.register("inquirer")
class Inquirer(Role):
    """Asks `questions` times, then solves as the step solver does. terse: the number of a part alone. tagged: in its tag.

    `noise` is how often the teacher of demonstrations shows a wrong solution; his questions are drawn blindly.
    """

    name = "inquirer"
    judges = False

    def __init__(self, dialect: Dialect, questions: int = 1, noise: float = 0.0) -> None:
        super().__init__(dialect)
        self.questions, self.solver = questions, StepSolver(dialect, noise)

    @property
    def stop(self) -> tuple[str, ...]:
        return () if self.dialect == "terse" else ("</ask>", "</answer>")

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """Render the first turn; `problem` is the text with its parts hidden."""
        if self.dialect == "terse":
            return self.solver.prompt(problem)
        return (Part(INQUIRER_PROMPT), Part(problem.text, foreign=True), Part("\n"))

    def render_known_problem(self, known: str, turn: int) -> Prompt:
        """Render the prompt of a later turn: the problem text as known by then."""
        if self.dialect == "terse":
            return self.solver.prompt(Problem("", known, ""))
        return (Part("The problem is now:\n"), Part(known, foreign=True), Part(self.choose_instruction(turn)))

    def choose_instruction(self, turn: int) -> str:
        return TAGGED_MORE if turn < self.questions else TAGGED_LAST

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        """Parse a question, or the solution once all questions were asked; `target` is the conversation so far."""
        if target is not None and len(target.turn_spans) >= self.questions:
            return self.solver.parse(text)
        found = (TERSE if self.dialect == "terse" else TAGGED).fullmatch(text)
        return Parsed(Question(int(found[1]) - 1), 1.0) if found else Parsed(Question(None), 0.0, "not one part")

    def write_question(self, part: int) -> str:
        """Write the text that parses as this question."""
        return str(part + 1) if self.dialect == "terse" else f"<ask>{part + 1}</ask>"

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate a question for a random part, hidden or not; `problem.data` must hold the parts."""
        return None, self.write_question(rng.randrange(len(problem.data["facts"])))


@ROLES.register("privileged")
class PrivilegedCritic(Role):
    """A critic that sees the full problem (privileged information). Its log-ratio to its initial weights, summed over the
    tokens of a turn, is the score of that turn."""

    name = "privileged"
    judges = True
    kind = "implicit"

    def __init__(self, dialect: Dialect) -> None:
        super().__init__(dialect)
        self.inquirer = Inquirer(dialect)

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        return self.inquirer.parse(text, target)

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """Render what the inquirer sees, and no more."""
        return self.inquirer.prompt(problem)

    def prompt_with_reference(self, problem: Problem, reference: str) -> Prompt:
        """Render the inquirer's prompt with the full problem (`reference`) in front."""
        if self.dialect == "terse":
            return (Part(reference, foreign=True), Part("\n"), *self.prompt(problem))
        reference_part = (Part("The problem as it is, which nobody who speaks below can see:\n"), Part(reference, foreign=True))
        return (*reference_part, Part("\n\n"), *self.prompt(problem))
