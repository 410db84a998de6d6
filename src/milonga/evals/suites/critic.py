"""The critic: from a problem and numbered paragraphs, it names the index of the earliest wrong one.

This is how ProcessBench (arXiv 2412.06559) asks a model that was trained for no format of ours.
"""

from __future__ import annotations

import re

from milonga.roles.base import ROLES, Role
from milonga.roles.tags import find_boxed
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Verification

TASK = """\
Below are a mathematical problem and a solution of it. The solution is cut into paragraphs, each in a tag with its number; the \
first is paragraph 0. Go through the paragraphs in their order and check each of them. As soon as one is wrong, give its \
number: the earliest wrong paragraph is what is asked for. If no paragraph is wrong, give -1. Put the number, and nothing \
else, into \\boxed{} at the end.

Problem:
"""
INDEX = re.compile(r"[+-]?[0-9]{1,9}")


@ROLES.register("critic")
class Critic(Role):
    """Names the earliest wrong paragraph in a box, -1 if there is none; the same words in every dialect."""

    name = "critic"
    judges = True

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        """Render the paragraphs. An answer outside of the steps is shown after them, without a number."""
        if target is None:
            raise ValueError("a critic needs a solution to judge")
        solution = target.solution
        parts = [Part(TASK), Part(problem.text, foreign=True), Part("\n\nSolution:\n")]
        for k, step in enumerate(solution.steps):
            parts += [Part(f"<paragraph_{k}>\n"), Part(step, foreign=True), Part(f"\n</paragraph_{k}>\n\n")]
        if solution.answer is not None:
            parts += [Part("Answer: "), Part(solution.answer, foreign=True), Part("\n\n")]
        return tuple(parts)

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        """Parse the last box as an index. Steps from the first error on count as wrong; -1 means the solution is right."""
        if target is None:
            raise ValueError("a verification is read against the solution it judges")
        count, boxes = len(target.solution.steps), list(find_boxed(text))
        said = boxes[-1].strip() if boxes else ""
        index = int(said) if INDEX.fullmatch(said) else None
        if index is None or not -1 <= index < count:
            why = (
                "no box" if not boxes else "the last box holds no number" if index is None else f"there is no paragraph {index}"
            )
            return Parsed(Verification(None, None), 0.0, why)
        return Parsed(Verification(tuple(index == -1 or k < index for k in range(count)), index == -1), 1.0)

    def write(self, index: int) -> str:
        """Write the text that parses as this index."""
        return f"\\boxed{{{index}}}"
