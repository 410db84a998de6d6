"""Next-token prediction: a thinker that writes a thought before the next token, and a predictor that does without.

Both see the beginning of a line, which is the problem's text here; what follows in the line never enters a prompt. Two roles
are two templates: the tags of a thought are in the one's context, and never in the other's.
"""

from __future__ import annotations

import random

from milonga.roles.base import ROLES, Role
from milonga.tasks.base import Task
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Solution

SLIP = 0.25
"""How often a step of a demonstrated thought is wrong: noisy teachers leave something to learn."""


@ROLES.register("predictor")
class Predictor(Role):
    """Continues a line of text without a thought."""

    name = "predictor"
    judges = False

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return (Part(problem.text, foreign=True),)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        return Parsed(Solution((), (), text or None), 1.0, None if text else "the line does not go on")

    def write(self, rest: str) -> str:
        return rest


@ROLES.register("thinker")
class Thinker(Role):
    """Writes a thought, closes it, and then goes on with the line.

    terse: a thought takes the place of the equals sign, begins on a new line and is closed by `#`, as the work of the terse
    solver is. tagged: between `<think>` and `</think>`. The opening tag is in the prompt. A thought reads as one step, which
    ends with its closing tag; what stands behind it is the answer.
    """

    name = "thinker"
    judges = False

    @property
    def opening_tag(self) -> str:
        return "\n" if self.dialect == "terse" else "<think>"

    @property
    def closing_tag(self) -> str:
        return "#" if self.dialect == "terse" else "</think>"

    def render_question(self, problem: Problem) -> str:
        """Render the part of a plain line of text before the answer."""
        return f">{problem.text}=" if self.dialect == "terse" else f"{problem.text}\nAnswer: "

    @property
    def stop(self) -> tuple[str, ...]:
        return (self.closing_tag,)

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        before = problem.text.removesuffix("=") if self.dialect == "terse" else problem.text
        return (Part(before, foreign=True), Part(self.opening_tag))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        thought, closed, rest = text.partition(self.closing_tag)
        if not closed:
            return Parsed(Solution((), (), None), 0.0, "the thought is not closed")
        return Parsed(Solution((thought,), (len(thought) + len(closed),), rest or None), 1.0)

    def write(self, thought: str, rest: str = "") -> str:
        """Write the text that parses as this thought and what follows it."""
        return f"{thought}{self.closing_tag}{rest}"

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate a scratchpad: the steps of a solution, each wrong with probability `SLIP`, then the answer."""
        errors = {k for k in range(task.step_count(problem)) if rng.random() < SLIP}
        demonstration = task.demonstrate(problem, rng, errors)
        return None, self.write("".join(f"{step}\n" for step in demonstration.steps), demonstration.answer)
