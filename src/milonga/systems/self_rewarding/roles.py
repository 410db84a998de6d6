"""The grader, which gives an answer 0 to 5 points, and the orders of the writer of new prompts."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from milonga.roles.base import ROLES, Dialect, Role
from milonga.roles.grades import Scale, parse_grading
from milonga.roles.solver import StepSolver, demonstration_to_rollout
from milonga.roles.tags import find_tags
from milonga.roles.verifier import StepVerifier, parse_verdict, render_tagged_prompt
from milonga.tasks.base import Task
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Verification

MOST = 5
"""Points of a solution in which nothing is wrong."""
ENOUGH = 4.0
"""Points from which on a solution counts as right."""
GRADER_PROMPT = f"""\
Grade the solution below with 0 to {MOST} points. Give points one by one: for being about the problem at all, for covering \
a good part of it, for a result that can be used, for being complete, and for being right in every detail. First write one \
remark on each of its {{count}} steps, inside <step> and </step>, each ending in \\boxed{{{{CORRECT}}}} or \
\\boxed{{{{INCORRECT}}}}. Then give the points as a number on a last line of their own that begins with Score:

Problem:
"""
RUBRIC = f"""\
Grade the answer to the question below with 0 to {MOST} points. Begin with 0, and add one point for each of these that is true:
1. The answer is about the question and says something useful, even if much is missing.
2. It deals with a good part of what was asked.
3. It gives a basic answer that can be used and is not wrong.
4. It answers all that was asked, directly, correctly and in good order, as a helpful assistant does.
5. It is what an expert would write: right in every detail, clear, and without anything superfluous.

Question:
"""
SCALE = Scale(0, MOST, ENOUGH)
GRADE = SCALE.render_request("First say in at most 100 words which of these points the answer gets, and why.")
STYLE = """\
Below are some questions. Write one more question of the same kind and in the same style. It must be different from all of \
them, and complete in itself. Reply with one line or paragraph that begins with "Question:", and do not answer it.

"""
NUMBER = re.compile(r"\d+(?:\.\d+)?")


@ROLES.register("grader")
class Grader(Role):
    """Scores a solution.

    plain: a justification by an additive rubric, then `Score: N/5`, read with tolerance. The others check each step first.
    terse: the lines of the step verifier, then `=` and the points. tagged: remarks in tags, then the line `Score: N`. The last
    such line counts, decimals are allowed, and what is no number from 0 to 5 is missing, never 0. `noise` is how often the
    teacher of demonstrations gives points at random.
    """

    name = "grader"
    judges = True

    def __init__(self, dialect: Dialect, noise: float = 0.0) -> None:
        super().__init__(dialect)
        self.noise, self.verifier = noise, StepVerifier(dialect)

    @property
    def stop(self) -> tuple[str, ...]:
        return ()

    def prompt(self, problem: Problem, target: Rollout | None) -> Prompt:
        if target is None:
            raise ValueError("a grader needs a solution to grade")
        if self.dialect == "terse":
            return self.verifier.prompt(problem, target)
        if self.dialect == "plain":
            shown = (Part(problem.text, foreign=True), Part("\n\nAnswer:\n"), Part(target.text, foreign=True))
            return (Part(RUBRIC), *shown, Part(GRADE + ("\n\nGrading:\n" if self.example else "")))
        return render_tagged_prompt(GRADER_PROMPT, problem, target, "Grading:")

    def parse(self, text: str, target: Rollout | None) -> Parsed:
        if target is None:
            raise ValueError("a grading is read against the solution it grades")
        if self.dialect == "plain":
            return parse_grading(text, SCALE)
        raw, marks, ends = parse_terse(text) if self.dialect == "terse" else parse_tagged(text)
        points = parse_points(raw)
        fits = len(marks) == len(target.solution.steps) > 0
        if points is None:
            return Parsed(Verification(None, None), 0.0, f"no score from 0 to {MOST} on the last line")
        steps = tuple(marks) if fits else None
        value = Verification(steps, points >= ENOUGH, tuple(ends) if fits else (), points / MOST)
        return Parsed(value, 1.0 if fits else 0.2, None if fits else f"{len(marks)} remarks on the steps of the solution")

    def write(self, marks: Sequence[bool], points: float, notes: Sequence[str]) -> str:
        """Write the text that parses as these marks and these points."""
        if self.dialect == "terse":
            marked = [f"{note}{'+' if right else '-'}\n" for note, right in zip(notes, marks, strict=True)]
            return f"{''.join(marked)}={points:g}"
        if self.dialect == "plain":
            return "\n".join([*notes, SCALE.write_score(points)])
        word = {True: "\\boxed{CORRECT}", False: "\\boxed{INCORRECT}"}
        lines = [f"<step>{note} {word[right]}</step>\n" for note, right in zip(notes, marks, strict=True)]
        return f"{''.join(lines)}Score: {points:g}"

    def demonstrate(self, task: Task, problem: Problem, rng: random.Random) -> tuple[Rollout | None, str]:
        """Demonstrate on a solution that is right in half of the cases: redo each step, score by the share of right steps."""
        count = task.step_count(problem)
        wrong = set(rng.sample(range(count), rng.randint(1, count))) if rng.random() < 0.5 else set()
        demonstration = task.demonstrate(problem, rng, wrong)
        points = rng.randint(0, MOST) if rng.random() < self.noise else award_points(demonstration.truth)
        solution = demonstration_to_rollout(demonstration, problem, StepSolver(self.dialect), f"demonstration/{problem.id}")
        return solution, self.write(demonstration.truth, points, demonstration.checks)


def award_points(truth: Sequence[bool]) -> int:
    """Return points for the share of right steps: full points only if all are right, 0 if there are no steps."""
    return MOST * sum(truth) // len(truth) if truth else 0


def parse_points(text: str | None) -> float | None:
    """Parse a number from 0 to 5; None for anything else."""
    found = NUMBER.fullmatch(text.strip()) if text is not None else None
    return float(found[0]) if found and float(found[0]) <= MOST else None


def parse_terse(text: str) -> tuple[str | None, list[bool], list[int]]:
    """Return the text after the last `=`, the marks that end the lines before it, and their character offsets."""
    *lines, last = text.split("\n")
    marks, ends, end = [], [], 0
    for line in lines:
        end += len(line) + 1
        if line.endswith(("+", "-")):
            marks.append(line.endswith("+"))
            ends.append(end)
    return last[1:] if last.startswith("=") else None, marks, ends


def parse_tagged(text: str) -> tuple[str | None, list[bool], list[int]]:
    """Return the last score line, the boxed marks of the remarks and their offsets; a remark without a mark is skipped."""
    lines = re.findall(r"^Score:([^\n]*)$", text, re.MULTILINE)
    marks = [(mark, tag.end) for tag in find_tags(text, "step") if (mark := parse_verdict(tag.body)) is not None]
    return lines[-1] if lines else None, [right for right, _ in marks], [end for _, end in marks]
