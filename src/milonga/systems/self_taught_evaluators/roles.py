"""The pair judge, which checks two solutions and names the better one, and the rewriter, which changes what a problem asks.

A duel is a given rollout whose targets are two solutions, in the order in which they are shown; judgements target duels.
A duel may know which of the two is better; no prompt ever shows it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.proposer import Proposal
from milonga.roles.prose import CLOSE, find_thought
from milonga.roles.questions import read_question
from milonga.roles.solver import StepSolver, demonstration_to_rollout
from milonga.tasks.base import RELATED, Demonstration, Task
from milonga.types import Parsed, Part, Problem, Prompt, Rollout

Place = Literal["A", "B"]
Verdict = Literal["A", "B", "tie"]
JUDGE_PROMPT = """\
You are given a problem and two solutions, A and B. Decide which of them solves the problem better. First name the errors of \
each. Then choose one to five criteria that matter for this problem, and compare the solutions by them. Let neither their \
order nor their length nor their names count. End with your verdict alone in brackets: [A] or [B], or [C] for a tie.

Problem:
"""
PLAIN_PROMPT = """\
Compare two answers to the question below, and decide which of them is better. First name the errors of each answer. Then \
choose one to five criteria that matter for this question, and compare the answers by them. Favour none for its place, its \
length or its name. End with one line that is your verdict alone: [[A]] if answer A is better, [[B]] if answer B is better.

Question:
"""
REWRITE = """\
Rewrite the question below: write a question that is similar and about the same topic, but asks for something else, so that a \
good answer to the new question is a wrong answer to the old one. Reply with one paragraph that begins with "Question:", and \
do not answer it.

Old question:
"""
TERSE = {"+": "A", "-": "B", "?": "tie"}
TAGGED = {"A": "A", "B": "B", "C": "tie"}
LETTER = re.compile(r"(?<![A-Za-z0-9'])(?P<letter>[ABC]|tie)(?![A-Za-z0-9'])", re.IGNORECASE)
NEAR = 40
"""Characters before and behind a letter that are looked at."""
LISTED = re.compile(r"\W{0,8}(?:or|and|/|,)\W{0,8}(?:(?:answer|solution) )?[ABC]\b", re.IGNORECASE)
LISTED_BEFORE = re.compile(r"\b[ABC]\W{0,8}(?:or|and|/|,)\W{0,8}(?:(?:answer|solution) )?\W{0,3}$", re.IGNORECASE)
"""What stands around a letter that is one of several: "[[A]] or [[B]]"."""
CALLED = re.compile(
    r"(?:verdict|winner|choice|decision|better (?:answer|solution|one|response))\b(?: is)?[^\w\n]{0,8}"
    r"(?:(?:answer|solution|response) ?)?\W{0,4}$",
    re.IGNORECASE,
)
PREFERRED = re.compile(
    r"\W{0,4} (?:is|was|would be) (?:the |much |clearly |slightly )?(?:better|best|superior|preferable)\b", re.IGNORECASE
)


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

    terse: the checks of the step verifier, of the first solution and then of the second, and a last line `=+` for the first,
    `=-` for the second or `=?` for a tie. plain and tagged: reasoning in any form. plain: `[[A]]` or `[[B]]`, read with
    tolerance. tagged: the last bracket counts. `noise` is how often the verdict of a demonstration is the wrong one, `first`
    how often its better solution is the first.
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
        if self.dialect == "plain":
            both = (Part("\n\n### Answer A\n"), first, Part("\n\n### Answer B\n"), second)
            end = "\n\n### Your comparison\nEnd it with [[A]] or [[B]]." + ("\n\n" if self.example else "")
            return (Part(PLAIN_PROMPT), asked, *both, Part(end))
        middle = (Part("\n\nSolution A:\n<solution>\n"), first, Part("\n</solution>\n\nSolution B:\n<solution>\n"), second)
        return (Part(JUDGE_PROMPT), asked, *middle, Part("\n</solution>\n\nJudgement:\n"))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            choice, form = read_choice(text)
            return Parsed(Judgement(choice), form, None if choice else "no verdict at the end")
        found = re.findall(r"(?:^|\n)=(.)\Z", text) if self.dialect == "terse" else re.findall(r"\[([A-Z])\]", text)
        verdict = (TERSE if self.dialect == "terse" else TAGGED).get(found[-1]) if found else None
        if verdict is None:
            return Parsed(Judgement(None), 0.0, "no verdict at the end")
        return Parsed(Judgement(verdict), 1.0)  # type: ignore[arg-type]

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
        right, wrong = (
            _grade_demonstration(good, task, problem, solver, "good"),
            _grade_demonstration(bad, task, problem, solver, "bad"),
        )
        target = make_duel(f"demonstration/{problem.id}", right, wrong, better)
        turned: Place = "B" if better == "A" else "A"
        verdict = turned if rng.random() < self.noise else better
        return target, self.write([_check_steps(task, solution) for solution in target.targets], verdict)


@ROLES.register("rewriter")
class Rewriter(Role):
    """Changes what a problem asks, so that a good answer to the new one is a bad answer to the old. It writes prose in every
    dialect."""

    name = "rewriter"
    judges = False

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        return (Part(REWRITE), Part(problem.text, foreign=True), Part("\n\nQuestion:" if self.example else ""))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        read = read_question(text)
        return Parsed(Proposal(read.question, None, ""), read.format, None if read.question else "no question")


def read_choice(text: str) -> tuple[Verdict | None, float]:
    """Read which of two answers a judgement prefers, behind its thought: the last of the plainest statements counts. The format
    score is 1 for [[A]] or [[B]], one half for anything else that can be read."""
    thought = find_thought(text)
    begin = 0 if thought is None else thought[1] + len(CLOSE)
    last = text.rfind("\n", begin, len(text.rstrip())) + 1
    best, plainest = None, 0
    for match in LETTER.finditer(text, begin):
        plainness = _weigh_letter(text, match, last)
        if plainness and plainness >= plainest:
            best, plainest = match["letter"].upper(), plainness
    if best is None:
        return None, 0.0
    return cast(Verdict, TAGGED.get(best, "tie")), 1.0 if plainest == 3 else 0.5


def _weigh_letter(text: str, match: re.Match[str], last: int) -> int:
    """Weigh a letter as a verdict. 3: in double brackets. 2: in brackets or a box, behind "Verdict:", or alone in the last
    line. 1: said to be better. 0: a letter of the comparison."""
    before = text[max(0, match.start() - NEAR) : match.start()].rpartition("\n")[2]
    after = text[match.end() : match.end() + NEAR].partition("\n")[0]
    if LISTED.match(after) or LISTED_BEFORE.search(before):
        return 0
    if before.endswith("[[") and after.startswith("]]"):
        return 3
    framed = (before[-1:], after[:1]) in (("[", "]"), ("{", "}"))
    alone = match.start() >= last and not before.strip(" *_#`(.:") and not after.strip(" *_#`).")
    if match["letter"].isupper() and (framed or alone or CALLED.search(before)):
        return 2
    return 1 if match["letter"].isupper() and PREFERRED.match(after) else 0


def _grade_demonstration(demonstration: Demonstration, task: Task, problem: Problem, solver: StepSolver, name: str) -> Rollout:
    """Grade a demonstration as a solution of this problem, whichever problem it was written for."""
    solution = demonstration_to_rollout(demonstration, problem, solver, f"{name}/{problem.id}")
    return replace(solution, grade=task.grade(problem, demonstration.answer, demonstration.steps))


def _check_steps(task: Task, solution: Rollout) -> list[tuple[str, bool]]:
    """Return (redone step, truth) for each step of a graded solution."""
    assert solution.grade is not None and solution.grade.steps is not None
    return list(zip(task.redo_steps(solution.problem, solution.solution.steps), solution.grade.steps, strict=True))
