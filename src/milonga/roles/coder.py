"""The coder: a solver whose answer is a program."""

from __future__ import annotations

import re
from collections.abc import Sequence

from milonga.roles.base import ROLES
from milonga.roles.solver import StepSolver
from milonga.roles.tags import find_frame, find_tags
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Solution

CODER_PROMPT = """\
Write the program that is asked for below. Think inside <think> and </think>, and put every step of the plan into its own \
<step> and </step>. After that give only the program inside <answer> and </answer>.

Task:
"""


@ROLES.register("coder")
class Coder(StepSolver):
    """Writes a plan by steps and a program. plain: prose with the program in a code fence, which the task finds. tagged: the
    program as it stands in its tag; a box would not hold its braces. terse: as any solver, the program on the answer's line."""

    name = "coder"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect != "tagged":
            return super().prompt(problem, target)
        return (Part(CODER_PROMPT), Part(problem.text, foreign=True), Part("\n\nSolution:\n"))

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
    """Parse a completion that is one work tag and one program tag; steps are inside the work."""
    frame = find_frame(text, "think", "answer")
    work, offset = (frame[1], frame.start(1)) if frame else (text, 0)
    found = find_tags(work, "step", offset)
    answer = frame[2].strip("\n") if frame and frame[2].strip() else None
    value = Solution(tuple(step.body.strip() for step in found), tuple(step.end for step in found), answer)
    if frame is None:
        return Parsed(value, 0.0, "not one <think> followed by one <answer>")
    if answer is None or not found:
        return Parsed(value, 0.2, "no program" if answer is None else "no steps")
    outside = re.sub(r"<step>.*?</step>", "", work, flags=re.DOTALL).strip()
    return Parsed(value, 0.6 if outside else 1.0)
