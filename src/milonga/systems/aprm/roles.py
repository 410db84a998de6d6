"""The corruptor: from a problem, the steps so far and one right step, it rewrites that step so that it is wrong."""

from __future__ import annotations

import random
from collections.abc import Sequence

from milonga.errors import ConfigError, suggest_name
from milonga.patterns.slicing import corrupt_piece
from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.replies import strip_reply
from milonga.roles.slices import Slice, render_steps, split_into_slices
from milonga.roles.solver import StepSolver, demonstration_to_rollout
from milonga.roles.tags import find_tags
from milonga.tasks.base import Task
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Solution

PLAIN_TASK = """

Rewrite this one step so that it holds a mistake that a careful reader could overlook: a wrong number, a wrong operation, a \
condition that is forgotten, or a conclusion that does not follow. Go on from the mistake as if it were right, and keep the \
length and the style of the step. Say nothing about the mistake, write no other step, and reply with the rewritten one alone."""
CORRUPTOR_PROMPT = """\
You are given a problem, the work on it so far, and its next step, which is right. Rewrite this one step so that it is wrong \
but looks right to someone who checks the work. Keep its form. Write only the rewritten step, inside <step> and </step>.

Problem:
"""


@ROLES.register("corruptor")
class Corruptor(Role):
    """Rewrites one right step into a wrong one.

    plain: about as long as the step; what is said around it is passed over. terse: one line. tagged: one `<step>…</step>`. It
    is asked about a slice of one step; the value of its reading is a solution of one step. Its teacher knows all families of
    mistakes of a task but those in `leave_out`.
    """

    name = "corruptor"
    judges = True  # it is given rollouts, not problems, and what it writes is no solution to grade

    def __init__(self, dialect: Dialect, leave_out: Sequence[str] = ()) -> None:
        super().__init__(dialect)
        self.solver, self.leave_out = StepSolver(dialect), tuple(leave_out)

    @property
    def stop(self) -> tuple[str, ...]:
        return {"terse": ("\n",), "tagged": ("</step>",), "plain": ()}[self.dialect]

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        if target is None:
            raise ValueError("a corruptor needs a step to rewrite")
        before = target.parsed.value.before if isinstance(target.parsed.value, Slice) else ()
        work = Part(f"{render_steps(before, self.dialect)}\n" if before else "", foreign=True)
        own = Part(target.text, foreign=True)
        if self.dialect == "terse":
            return (Part("~"), Part(problem.text, foreign=True), Part("\n"), work, Part("/"), own, Part("\n!"))
        if self.dialect == "plain":
            shown = (Part("Problem:\n"), Part(problem.text, foreign=True), Part("\n\nThe solution so far:\n"))
            asked = (Part("\nThe next step, which is right:\n"), own, Part(PLAIN_TASK))
            return (*shown, work if before else Part("(nothing yet)\n"), *asked)
        question = (Part(CORRUPTOR_PROMPT), Part(problem.text, foreign=True), Part("\n\nWork so far:\n<work>\n"), work)
        return (*question, Part("</work>\n\nNext step:\n"), own, Part("\n\nRewritten step:\n"))

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        step = {"terse": parse_terse, "tagged": parse_tagged, "plain": strip_reply}[self.dialect](text)
        most = 200 + 2 * len(target.text) if self.dialect == "plain" and target is not None else len(text)
        if step is None or len(step) > most:
            return Parsed(Solution((), (), None), 0.0, "not one step")
        return Parsed(Solution((step,), (), None), 0.5 if self.dialect == "plain" and step != text.strip() else 1.0)

    def write(self, step: str) -> str:
        """Write the text that parses as this step."""
        return {"terse": f"{step}\n", "tagged": f"<step>{step}</step>", "plain": step}[self.dialect]

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate on a step of a gold solution, corrupted by one of the allowed families."""
        gold = demonstration_to_rollout(task.demonstrate(problem, rng), problem, self.solver, f"demonstration/{problem.id}")
        piece = rng.choice(split_into_slices(gold, 1, self.dialect))
        return piece, self.write(self.corrupt_step(task, piece, rng) or piece.text)

    def corrupt_step(self, task: Task, piece: Rollout, rng: random.Random) -> str | None:
        """Corrupt a right step by a random one of the allowed families that apply to it; None if none does."""
        return corrupt_piece(task, piece, self.list_allowed_families(task), rng)

    def list_allowed_families(self, task: Task) -> list[str]:
        """List the task's corruption families that are not in `leave_out`."""
        for name in self.leave_out:
            if name not in task.families:
                raise ConfigError(
                    f"task '{task.name}' knows no family '{name}' to hold out: {suggest_name(name, task.families)}"
                )
        return [name for name in task.families if name not in self.leave_out]


def parse_terse(text: str) -> str | None:
    """Parse one line that is no answer line. Its newline may be missing, where the model ended the sequence instead."""
    line = text.removesuffix("\n")
    return line if line and "\n" not in line and not line.startswith("#") else None


def parse_tagged(text: str) -> str | None:
    found = find_tags(text, "step")
    return found[0].body.strip() or None if len(found) == 1 and text.strip() == f"<step>{found[0].body}</step>" else None
