"""The pair judge, which checks two solutions and names the better one, and the orders of the rewriter.

A duel is a given rollout whose targets are two solutions, in the order in which they are shown; judgements target duels.
A duel may know which of the two is better; no prompt ever shows it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.replies import read_choice
from milonga.roles.solver import StepSolver, demonstration_to_rollout
from milonga.tasks.base import RELATED, Demonstration, Task
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

Place = Literal["A", "B"]
Verdict = Literal["A", "B", "tie"]
JUDGE_PROMPT = """\
You are given a problem and two solutions, A and B. Decide which of them solves the problem better. First name the errors of \
each. Then choose one to five criteria that matter for this problem, and compare the solutions by them. Let neither their \
order nor their length nor their names count. End with your verdict alone in brackets: {verdicts}.

Problem:
"""
VERDICTS = {"tagged": "[A] or [B], or [C] for a tie", "plain": "[[A]] if A is better, [[B]] if B is better"}
REWRITE = """\
Rewrite the question below: write a question that is similar and about the same topic, but asks for something else, so that a \
good answer to the new question is a wrong answer to the old one. Reply with one paragraph that begins with "Question:", and \
do not answer it.

Old question:
"""
TERSE: dict[str, Verdict] = {"+": "A", "-": "B", "?": "tie"}
NAMED: dict[str, Verdict] = {"A": "A", "B": "B", "C": "tie"}


@dataclass(frozen=True)
class Duel:
    """Two solutions as they are shown, which of them is better, and the name that both orders of a pair share."""

    first: str
    second: str
    better: Place
    pair: str
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Judgement:
    """Which solution a judge prefers; None where that cannot be read."""

    verdict: Verdict | None
    ends: tuple[int, ...] = ()


def make_duel(pair: str, good: Rollout, bad: Rollout, better: Place) -> Rollout:
    """Make a duel of two solutions of one problem, the good one in the place `better`."""
    first, second = (good, bad) if better == "A" else (bad, good)
    value = Duel(first.text, second.text, better, pair)
    rollout = Rollout.from_text(f"{pair}:{better}", "duel", good.problem, "", Parsed(value, 1.0))
    return replace(rollout, targets=(first, second))


@ROLES.register("pair_judge")
class PairJudge(Role):
    """Says which of two solutions is better, after a check of both.

    plain: reasoning, then `[[A]]` or `[[B]]`, read with tolerance. tagged: the last bracket counts. terse: the checks of both
    in order, and a last line `=+` for the first, `=-` for the second or `=?` for a tie. `noise` is how often the verdict of a
    demonstration is the wrong one, `first` how often its better solution is the first.
    """

    name = "pair_judge"
    judges = True

    def __init__(self, dialect: Dialect, noise: float = 0.0, first: float = 0.5) -> None:
        super().__init__(dialect)
        self.noise, self.first = noise, first

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        """Render both solutions. A single solution is shown as the first of two."""
        if target is None:
            raise ValueError("a judge of pairs needs two solutions to judge")
        value = target.parsed.value
        texts = (value.first, value.second) if isinstance(value, Duel) else (target.text, "")
        first, second = (Part(text, foreign=True) for text in texts)
        asked = Part(problem.text, foreign=True)
        if self.dialect == "terse":
            return (Part("?"), asked, Part("\n"), first, Part("\n?"), second, Part("\n!"))
        middle = (Part("\n\nSolution A:\n<solution>\n"), first, Part("\n</solution>\n\nSolution B:\n<solution>\n"), second)
        orders, end = JUDGE_PROMPT.format(verdicts=VERDICTS[self.dialect]), "\n</solution>\n\nJudgement:\n"
        return (Part(orders), asked, *middle, Part(end))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            choice, form = read_choice(text)
        else:
            found = re.findall(r"(?:^|\n)=(.)\Z", text) if self.dialect == "terse" else re.findall(r"\[([A-Z])\]", text)
            choice, form = found[-1] if found else None, 1.0
        verdict = (TERSE if self.dialect == "terse" else NAMED).get(choice or "")
        return Parsed(Judgement(verdict), form) if verdict else Parsed(Judgement(None), 0.0, "no verdict at the end")

    def write(self, checks: Sequence[Sequence[tuple[str, bool]]], verdict: Place) -> str:
        """Write the text that parses as this verdict; `checks` are those of the first solution's steps and of the second's."""
        if self.dialect == "terse":
            lines = [f"{note}{'+' if right else '-'}\n" for one in checks for note, right in one]
            return "".join(lines) + ("=+" if verdict == "A" else "=-")
        words = {True: "right", False: "wrong"}
        named = zip("AB", checks, strict=True)
        lines = [f"{name}: {note} ({words[right]})\n" for name, one in named for note, right in one]
        return "".join(lines) + (f"[[{verdict}]]" if self.dialect == "plain" else f"[{verdict}]")

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate on a right solution against one with a wrong step, or against the solution of another problem: redo and
        judge every step of both, then give the verdict."""
        good = task.demonstrate(problem, rng)
        other = task.make_related_problem(problem, rng) if RELATED in task.offers and rng.random() < 0.5 else None
        bad = task.demonstrate_flawed(problem, rng) if other is None else task.demonstrate(other, rng)
        if bad is None:
            raise TypeError(f"task '{task.name}' cannot write a wrong solution of every problem")
        better: Place = "A" if rng.random() < self.first else "B"
        solver = StepSolver(self.dialect)
        right = _grade_demonstration(good, task, problem, solver, "good")
        wrong = _grade_demonstration(bad, task, problem, solver, "bad")
        target = make_duel(f"demonstration/{problem.id}", right, wrong, better)
        turned: Place = "B" if better == "A" else "A"
        verdict = turned if rng.random() < self.noise else better
        return target, self.write([_check_steps(task, solution) for solution in target.targets], verdict)


def _grade_demonstration(demonstration: Demonstration, task: Task, problem: Problem, solver: StepSolver, name: str) -> Rollout:
    """Grade a demonstration as a solution of this problem, whichever problem it was written for."""
    solution = demonstration_to_rollout(demonstration, problem, solver, f"{name}/{problem.id}")
    return replace(solution, grade=task.grade(problem, demonstration.answer, demonstration.steps))


def _check_steps(task: Task, solution: Rollout) -> list[tuple[str, bool]]:
    """Return (redone step, truth) for each step of a graded solution."""
    assert solution.grade is not None and solution.grade.steps is not None
    return list(zip(task.redo_steps(solution.problem, solution.solution.steps), solution.grade.steps, strict=True))
