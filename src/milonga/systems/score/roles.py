"""The corrector: a step solver that is asked a second time, after its own first solution.

The prompt between the two turns is the same whether the first solution was right or wrong: it leaks nothing about it.
"""

from __future__ import annotations

from milonga.roles.base import ROLES
from milonga.roles.solver import StepSolver
from milonga.types import Part, Problem, Prompt

TAGGED_AGAIN = """\
There may be an error in the solution above. Look at every step again. Then write the whole solution once more in the same \
format, corrected where it was wrong.

Solution:
"""
PLAIN_AGAIN = """\
There may be an error in the solution above. Look at every step again, and redo every calculation. Then write once more the \
whole"""


@ROLES.register("corrector")
class Corrector(StepSolver):
    """Writes solutions as the solver does, and once more when asked again. terse: the problem is repeated."""

    name = "corrector"

    def render_second_turn(self, problem: Problem) -> Prompt:
        """Render the prompt between the first and the second turn."""
        if self.dialect == "plain":
            return (self.render_plain_request(PLAIN_AGAIN, problem),)
        return self.prompt(problem) if self.dialect == "terse" else (Part(TAGGED_AGAIN),)
