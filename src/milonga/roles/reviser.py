"""The reviser: a step solver that reads what others wrote about the problem first. It refines one solution, or joins several.

Its input is one given rollout, a panel, whose targets are the texts: a solution and its critique, or several solutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from milonga.roles.base import ROLES
from milonga.roles.solver import SOLVER_PROMPT, StepSolver
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Verification

TAGGED_READ = "\n\nOthers wrote the following about this problem; it may be right or wrong.\n\n"
TAGGED_AGAIN = "Compare it step by step. Then write your own whole solution in the format above.\n\nSolution:\n"
PLAIN_AGAIN = "Compare it with your own work step by step. Then write your own whole"


def make_panel(texts: Sequence[Rollout]) -> Rollout:
    """Make a panel: one rollout that joins what several agents wrote about one problem."""
    id = "&".join(text.id for text in texts)
    made = Rollout.from_text(id, "panel", texts[0].problem, "\n".join(text.text for text in texts), Parsed(None, 1.0))
    return replace(made, targets=tuple(texts))


@ROLES.register("reviser")
class Reviser(StepSolver):
    """Writes solutions as the solver does. What it reads is foreign text, and says nothing about who is right.

    terse: the problem, each text as it was written, and the problem once more. tagged, plain: the problem, then each text in
    its tags.
    """

    name = "reviser"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if target is None:
            return super().prompt(problem)
        if self.dialect == "terse":
            read = [part for text in target.targets for part in (Part(text.text, foreign=True), Part("\n"))]
            return (*super().prompt(problem), *read, *super().prompt(problem))
        read = [part for text in target.targets for part in _render_tagged(text)]
        if self.dialect == "plain":
            again = self.render_plain_request(PLAIN_AGAIN, problem)
            return (Part("Problem:\n"), Part(problem.text, foreign=True), Part(TAGGED_READ), *read, again)
        return (Part(SOLVER_PROMPT), Part(problem.text, foreign=True), Part(TAGGED_READ), *read, Part(TAGGED_AGAIN))


def _render_tagged(text: Rollout) -> Prompt:
    tag = "critique" if isinstance(text.parsed.value, Verification) else "solution"
    return Part(f"<{tag}>\n"), Part(text.text, foreign=True), Part(f"\n</{tag}>\n\n")
