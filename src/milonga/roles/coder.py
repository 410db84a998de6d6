"""The coder: a solver whose answer is a program."""

from __future__ import annotations

import re
from collections.abc import Sequence

from milonga.roles.base import ROLES
from milonga.roles.solver import StepSolver, ask_for_program
from milonga.roles.tags import find_frame, find_loose_frame, find_tags
from milonga.types import Parsed, Problem, Prompt, Rollout, Solution


@ROLES.register("coder")
class Coder(StepSolver):
    """Writes a plan by steps and a program. plain: prose with the program in a code fence, which the task finds. tagged: the
    program as it stands in its tag; a box would not hold its braces. terse: as any solver, the program on the answer's line."""

    name = "coder"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return ask_for_program(problem) if self.dialect == "tagged" else super().prompt(problem, target)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        return _parse_program(text) if self.dialect == "tagged" else super().parse(text, target)

    def write(self, steps: Sequence[str], answer: str) -> str:
        if self.dialect == "terse":
            return super().write(steps, answer)
        if self.dialect == "plain":
            return "\n\n".join([*steps, f"```python\n{answer}\n```"])
        work = "\n".join(f"<step>{step}</step>" for step in steps)
        return f"<think>\n{work}\n</think>\n<answer>\n{answer}\n</answer>"


def _parse_program(text: str) -> Parsed:
    """Parse a completion with one work tag and one program tag; steps are inside the work. Text around the two costs format
    alone."""
    exact, loose = find_frame(text, "think", "answer"), find_loose_frame(text, "think", "answer")
    if loose is None:
        steps = find_tags(text, "step")
        value = Solution(tuple(step.body.strip() for step in steps), tuple(step.end for step in steps), None)
        return Parsed(value, 0.0, "not one <think> followed by one <answer>")
    work, program = loose
    steps = find_tags(work.body, "step", work.start + len("<think>"))
    answer = program.body.strip("\n") if program.body.strip() else None
    value = Solution(tuple(step.body.strip() for step in steps), tuple(step.end for step in steps), answer)
    if answer is None or not steps:
        return Parsed(value, 0.2 if exact else 0.0, "no program" if answer is None else "no steps")
    outside = re.sub(r"<step>.*?</step>", "", work.body, flags=re.DOTALL).strip()
    return Parsed(value, (0.6 if outside else 1.0) if exact else 0.0)
