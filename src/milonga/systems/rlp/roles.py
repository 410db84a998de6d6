"""Next-token prediction: a thinker that writes a thought before the next token, and a predictor that does without.

Both see the beginning of a line, which is the problem's text here; what follows in the line never enters a prompt. Two roles
are two templates: the tags of a thought are in the one's context, and never in the other's.
"""

from __future__ import annotations

import random

from milonga.roles.base import ROLES, Dialect, Role
from milonga.tasks.base import Task
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Solution

EXAMPLE = """\
Below are pieces of text. At one place in each the writer stops and thinks, between <think> and </think>, about what has to \
come next, and then goes on.

The train left at 9:15 and took 50 minutes, so it arrived at<think>9:15 and 50 minutes make 10:05. The time comes \
next.</think> 10:05 in the morning.

"""
"""What a model that is no chat model sees before the text: it has no other way to know the form."""
SLIP = 0.25
"""How often a step of a demonstrated thought is wrong: noisy teachers leave something to learn."""


LINE_END = "\n"


def read_rest(text: str, dialect: Dialect) -> str | None:
    """Read the rest of a line; in prose without white space around it. None if there is nothing."""
    return (text.strip().partition(LINE_END)[0].strip() if dialect == "plain" else text) or None


@ROLES.register("predictor")
class Predictor(Role):
    """Continues a line of text without a thought."""

    name = "predictor"
    judges = False

    @property
    def stop(self) -> tuple[str, ...]:
        return (LINE_END,) if self.dialect == "plain" else ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return (Part(problem.text, foreign=True),)

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        rest = read_rest(text, self.dialect)
        return Parsed(Solution((), (), rest), 1.0, None if rest else "the line does not go on")

    def write(self, rest: str) -> str:
        return rest


@ROLES.register("thinker")
class Thinker(Role):
    """Writes a thought, closes it, and then goes on with the line.

    terse: a thought takes the place of the equals sign, begins on a new line and is closed by `#`, as the work of the terse
    solver is. tagged and plain: between `<think>` and `</think>`; plain shows an example first. The opening tag is in the
    prompt. A thought reads as one step, which ends with its closing tag; what stands behind it, in prose up to the end of the
    line, is the answer.
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

    @property
    def step_stop(self) -> tuple[str, ...]:
        """What ends the rest of a line after its thought."""
        return (LINE_END,) if self.dialect == "plain" else ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        before = problem.text.removesuffix("=") if self.dialect == "terse" else problem.text
        shown = (Part(EXAMPLE),) if self.dialect == "plain" and self.example else ()
        return (*shown, Part(before, foreign=True), Part(self.opening_tag))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        thought, closed, rest = text.partition(self.closing_tag)
        if not closed:
            return Parsed(Solution((), (), None), 0.0, "the thought is not closed")
        return Parsed(Solution((thought,), (len(thought) + len(closed),), read_rest(rest, self.dialect)), 1.0)

    def write(self, thought: str, rest: str = "") -> str:
        """Write the text that parses as this thought and what follows it."""
        return f"{thought}{self.closing_tag}{rest}"

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate a scratchpad: the steps of a solution, then the answer. Where the task can choose which steps are wrong,
        each is with probability `SLIP`."""
        errors = {k for k in range(task.step_count(problem)) if rng.random() < SLIP} if task.knows_steps else set()
        demonstration = task.demonstrate(problem, rng, errors)
        return None, self.write("".join(f"{step}\n" for step in demonstration.steps), demonstration.answer)
