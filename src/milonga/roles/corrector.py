"""The corrector: a step solver that is asked a second time, after its own first solution.

The words between the two turns are the same whether the first solution was right or wrong: they tell nothing about it.
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


@ROLES.register("corrector")
class Corrector(StepSolver):
    """Writes solutions as the solver does, and once more when asked `again`. terse: the problem is repeated."""

    name = "corrector"

    def again(self, problem: Problem) -> Prompt:
        """What is said between the turns."""
        return self.prompt(problem) if self.dialect == "terse" else (Part(TAGGED_AGAIN),)
