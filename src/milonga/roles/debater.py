"""The debater: a step solver that is shown the other agents' solutions, and then solves the problem again."""

from __future__ import annotations

from collections.abc import Sequence

from milonga.roles.base import ROLES
from milonga.roles.solver import StepSolver
from milonga.types import Part, Problem, Prompt, Rollout

TAGGED_HEARD = "Others solved the same problem as follows; they may be right or wrong.\n\n"
TAGGED_AGAIN = """\
Compare their work with your own step by step. Then write the whole solution once more in the same format, with the answer \
that you now hold to be right.

Solution:
"""
PLAIN_AGAIN = """\
Compare their work with your own step by step, and find out who is right where you differ. Then write once more the whole"""


@ROLES.register("debater")
class Debater(StepSolver):
    """Writes solutions as the solver does. The others' solutions are foreign text; nothing tells which is right.

    terse: each solution of the others behind `?`, then the problem once more. tagged, plain: in <solution> and </solution>.
    """

    name = "debater"

    def render_other_solutions(self, problem: Problem, others: Sequence[Rollout]) -> Prompt:
        """Render the other agents' solutions as the prompt between two turns."""
        terse = self.dialect == "terse"
        parts = [] if terse else [Part(TAGGED_HEARD)]
        for other in others:
            opening, closing = ("?", "\n") if terse else ("<solution>\n", "\n</solution>\n\n")
            parts += [Part(opening), Part(other.text, foreign=True), Part(closing)]
        if self.dialect == "plain":
            return (*parts, self.render_plain_request(PLAIN_AGAIN, problem))
        return (*parts, *(self.prompt(problem) if terse else (Part(TAGGED_AGAIN),)))
