"""The coder: a solver whose answer is a program."""

from __future__ import annotations

from collections.abc import Sequence

from milonga.roles.base import ROLES
from milonga.roles.solver import StepSolver, ask_for_program, parse_program, write_program
from milonga.types import Parsed, Problem, Prompt, Rollout


@ROLES.register("coder")
class Coder(StepSolver):
    """Writes a plan by steps and a program. plain: prose with the program in a code fence, which the task finds. tagged: the
    program as it stands in its tag; a box would not hold its braces. terse: as any solver, the program on the answer's line."""

    name = "coder"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return ask_for_program(problem) if self.dialect == "tagged" else super().prompt(problem, target)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        return parse_program(text) if self.dialect == "tagged" else super().parse(text, target)

    def write(self, steps: Sequence[str], answer: str) -> str:
        if self.dialect == "terse":
            return super().write(steps, answer)
        if self.dialect == "plain":
            return "\n\n".join([*steps, f"```python\n{answer}\n```"])
        return write_program(steps, answer)
