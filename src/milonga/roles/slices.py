"""The slice judge: from a problem, the steps before and a slice of a few steps, it gives one yes or no verdict.

A slice is a given rollout whose target is its solution: verdicts target slices, and slices target solutions. A whole
solution is judged by judging each of its slices: all steps of a slice share its verdict.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.replies import read_yes_no, swap_yes_no
from milonga.roles.solver import StepSolver, demonstration_to_rollout
from milonga.roles.tags import find_frame
from milonga.roles.verdicts import Verdict, read_verdicts
from milonga.tasks.base import Task
from milonga.types import Grade, Parsed, Part, Problem, Prompt, Rollout, Solution, Verification

Context = Literal["slice", "prefix"]
FLIP = 0.1
"""How often the teacher of demonstrations is wrong about a step."""
SLICE_PROMPT = """\
You are given a problem and a slice of the work on it. Judge only the slice: is every step of it right, given what came \
before it?
Think briefly inside <analysis> and </analysis>, then write only YES or NO inside <verdict> and </verdict>.

Problem:
"""
PLAIN_QUESTION = """

Is everything in this next part right, given the problem and the work before it? Judge only this part: it need not finish the \
problem. Redo its calculations, and ask whether it follows from what stands before it. Answer in this form, in at most 80 words:
Check: [what you found]
Verdict: YES or NO"""


@dataclass(frozen=True)
class Slice(Solution):
    """Some neighbouring steps of a solution, and the steps before them."""

    before: tuple[str, ...] = ()


def split_into_slices(solution: Rollout, size: int, dialect: Dialect, length: int = 0) -> list[Rollout]:
    """Split a solution into slices of `size` steps; the last may be shorter. With a `length`, neighbouring steps are merged up
    to so many characters instead. A solution without steps has none."""
    steps: tuple[str, ...] = solution.solution.steps
    grade, found = solution.grade, []
    starts = _find_starts(steps, length) if length else range(0, len(steps), size)
    for number, (at, end) in enumerate(pairwise([*starts, len(steps)])):
        own = slice(at, end)
        known = None if grade is None else Grade(grade.correct, None if grade.steps is None else grade.steps[own])
        parsed = Parsed(Slice(steps[own], (), None, steps[:at]), 1.0)
        text, id = render_steps(steps[own], dialect), f"{solution.id}:{number}"
        made = Rollout.from_text(id, solution.agent, solution.problem, text, parsed, known)
        found.append(replace(made, targets=(solution,)))
    return found


def _find_starts(steps: Sequence[str], length: int) -> list[int]:
    """Find the first step of each slice: it would not fit into the slice before, or is the first of all."""
    starts: list[int] = []
    room = 0
    for at, step in enumerate(steps):
        room -= len(step)
        if room < 0 or not starts:
            starts.append(at)
            room = length - len(step)
    return starts


def render_steps(steps: Sequence[str], dialect: Dialect) -> str:
    """Render steps as the solver writes them."""
    if dialect == "plain":
        return "\n\n".join(steps)
    return "\n".join(step if dialect == "terse" else f"<step>{step}</step>" for step in steps)


@ROLES.register("slice_judge")
class SliceJudge(Role):
    """Says whether a slice of a solution is sound.

    plain: a short check and a last line with YES or NO. terse: an analysis, which may be empty, in lines, then `=+` or `=-`.
    tagged: `<analysis>…</analysis><verdict>YES</verdict>`.
    `size` is the number of steps of a slice, or `length` its most characters; `context` says whether the judge sees the steps
    before it: a slice may depend on an earlier error. With `analysis` the teacher of demonstrations writes down what the steps
    should have given.
    """

    name = "slice_judge"
    judges = True

    def __init__(
        self, dialect: Dialect, size: int = 2, context: Context = "prefix", analysis: bool = True, length: int = 0
    ) -> None:
        super().__init__(dialect)
        self.solver = StepSolver(dialect)
        self.size, self.context, self.analysis, self.length = size, context, analysis, length

    @property
    def stop(self) -> tuple[str, ...]:
        return ("</verdict>",) if self.dialect == "tagged" else ()

    def split_solution(self, solution: Rollout) -> list[Rollout]:
        return split_into_slices(solution, self.size, self.dialect, self.length)

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        """Render a slice and the steps before it; of a whole solution all of the text is the slice."""
        if target is None:
            raise ValueError("a judge of slices needs a slice to judge")
        before = target.parsed.value.before if isinstance(target.parsed.value, Slice) and self.context == "prefix" else ()
        shown = Part(f"{render_steps(before, self.dialect)}\n" if before else "", foreign=True)
        own = Part(target.text, foreign=True)
        if self.dialect == "terse":
            return (Part("?"), Part(problem.text, foreign=True), Part("\n"), shown, Part("/"), own, Part("\n!"))
        if self.dialect == "plain":
            asked: Prompt = (Part("Problem:\n"), Part(problem.text, foreign=True))
            if self.context == "prefix":
                asked += (Part("\n\nThe work so far:\n"), shown if before else Part("(nothing yet)\n"))
            return (*asked, Part("\n\nThe next part:\n"), own, Part(PLAIN_QUESTION))
        question = (Part(SLICE_PROMPT), Part(problem.text, foreign=True))
        earlier = (Part("\n\nBefore the slice:\n<before>\n"), shown, Part("</before>")) if self.context == "prefix" else ()
        return (*question, *earlier, Part("\n\nSlice:\n<slice>\n"), own, Part("\n</slice>\n\nJudgement:\n"))

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        if target is None:
            raise ValueError("a verdict is read against the slice it judges")
        found = find_slice_verdict(text) if self.dialect == "plain" else None
        said = found.right if found is not None else parse_terse(text) if self.dialect == "terse" else parse_tagged(text)
        if said is None:
            return Parsed(Verification(None, None), 0.0, "not an analysis followed by one verdict")
        count = len(target.solution.steps)
        form = 0.5 if found is not None and (found.plainness == 1 or read_yes_no(text) is None) else 1.0
        return Parsed(Verification((said,) * count if count else None, said), form)

    def write(self, verdict: bool, analysis: str = "") -> str:
        """Write the text that parses as this verdict."""
        if self.dialect == "terse":
            return (f"{analysis}\n" if analysis else "") + ("=+" if verdict else "=-")
        if self.dialect == "plain":
            return (f"Check: {analysis}\n" if analysis else "") + f"Verdict: {'YES' if verdict else 'NO'}"
        return f"<analysis>{analysis}</analysis>\n<verdict>{'YES' if verdict else 'NO'}</verdict>"

    def flip_verdict(self, text: str) -> str:
        """Return the same analysis with the verdict flipped; only for texts that parse."""
        if self.dialect == "terse":
            return text[:-1] + ("-" if text[-1] == "+" else "+")
        if self.dialect == "plain" and (found := find_slice_verdict(text)) is not None:
            word = re.match(r"\w+", text[found.at :])
            said = word[0] if word else ""
            other = swap_yes_no(said) if said.lower() in ("yes", "no") else "NO" if found.right else "YES"
            return text[: found.at] + other + text[found.at + len(said) :]
        at = text.rindex("<verdict>")
        return text[:at] + (text[at:].replace("YES", "NO") if "YES" in text[at:] else text[at:].replace("NO", "YES"))

    def merge_verdicts(self, solution: Rollout, verdicts: Sequence[Rollout]) -> Parsed:
        """Merge slice verdicts: each step gets the verdict on its slice; a solution is right if all of its slices are."""
        judged = [step for verdict in verdicts for step in verdict.verification.steps or ()]
        if not judged or len(judged) != len(solution.solution.steps):
            return Parsed(Verification(None, None), 0.0, "not one readable verdict for each slice")
        return Parsed(Verification(tuple(judged), all(judged)), 1.0)

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate on a random slice of a solution, right in half of the cases; the steps before it may be wrong."""
        count = task.step_count(problem)
        at = rng.randrange(0, count, self.size)
        own = range(at, min(count, at + self.size))
        errors = {k for k in range(at) if rng.random() < 0.2}
        if rng.random() < 0.5:
            errors |= {k for k in own if rng.random() < 0.3} or {rng.choice(own)}
        shown = task.demonstrate(problem, rng, errors)
        solution = demonstration_to_rollout(shown, problem, self.solver, f"demonstration/{problem.id}")
        piece = split_into_slices(solution, self.size, self.dialect)[at // self.size]
        said = [(k not in errors) != (rng.random() < FLIP) for k in own]
        checks = "\n".join(f"{shown.checks[k]}{'+' if s else '-'}" for k, s in zip(own, said, strict=True))
        return piece, self.write(all(said), checks if self.analysis else "")


def find_slice_verdict(text: str) -> Verdict | None:
    """Find the verdict of a judgement in prose: its yes or no or, without one, "Verdict: CORRECT" or the like."""
    return read_yes_no(text) or read_verdicts(text, 0).final


def parse_terse(text: str) -> bool | None:
    found = re.fullmatch(r"(?:[^=\n][^\n]*\n)*=([+-])", text)
    return found[1] == "+" if found else None


def parse_tagged(text: str) -> bool | None:
    frame = find_frame(text, "analysis", "verdict")
    said = frame[2].strip() if frame else ""
    return said == "YES" if said in ("YES", "NO") else None
