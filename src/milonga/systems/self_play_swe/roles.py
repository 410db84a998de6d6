"""Roles around a repository: an injector that breaks a repository and weakens its tests, and a repairer."""

from __future__ import annotations

from milonga.roles.base import ROLES, Role
from milonga.roles.prose import skip_thought
from milonga.roles.solver import LOOSE_FORMAT, StepSolver, parse_terse
from milonga.roles.tags import find_frame, find_sequence, find_tags
from milonga.tasks.bugs_checks import Injection
from milonga.tasks.bugs_patches import find_bare_files, find_fences
from milonga.types import Parsed, Part, Problem, Prompt, Rollout, Solution

EDITS = """\
An edit is written as
FILE path/of/file.py
<<<<<<< SEARCH
lines that are there exactly once
=======
lines in their place
>>>>>>> REPLACE
"""
TAGGED_SOLVE = (
    """\
The repository below has a bug. Its tests were weakened; the change at the end shows what they tested before. Repair the code \
so that all original tests pass. They are put back before they are run, so changing them is of no use. Think inside <think> \
and </think>, and then give your edits inside <answer> and </answer>. """
    + EDITS
    + "\n"
)
PLAIN_EDITS = """\
Then give every function that you change, whole, in a code block of its own, with the path of its file on the line before:

path/of/file.py
```python
def name(...):
    ...
```
"""
PLAIN_BROKEN = """\
The Python project below has a bug, and some of its tests were weakened so that it does not show. The diff at the end shows \
what these tests were before: lines with + are what the code must satisfy.

"""
PLAIN_SOLVE = f"""

Find the bug and repair the code. All original tests are put back before they are run, so changing them is of no use. First \
say in a sentence or two what is wrong. {PLAIN_EDITS}"""
KINDS = {
    "removal": "Put a bug into the repository below by removing code, so that the project still runs.",
    "history": "Put a bug into the repository below by taking back a past change, with the least edits that keep it running.",
    "direct": "Put a bug into the repository below.",
}
"""What an injector is asked for, by the first word of its problem's text."""
MARKS = {"removal": "-", "history": "^", "direct": "~"}
TAGGED_INJECT = (
    """\
 Tests that pass now must fail by it, every file you change must matter to them, and nothing may hint at what you did: no \
comments. Then weaken the tests so that the bug no longer shows. Give three things: the paths of the test files that tell \
right from wrong, one in a line, inside <oracle> and </oracle>; edits of code alone inside <bug> and </bug>; edits of those \
tests alone inside <weaken> and </weaken>. """
    + EDITS
    + "\n"
)
PLAIN_INJECT = f"""

That was the project. Put the bug into it: it must still be importable, some tests that pass now must fail, every file that \
you change must matter to them, and nothing may hint at the bug: no comments. First say in a sentence or two what you will \
break. {PLAIN_EDITS}
Last name the tests that fail because of the bug, each on a line of its own in this form, and they are taken out to hide it:

REMOVE test_name
"""
ARTIFACT = ("oracle", "bug", "weaken")
"""The tags of an injection, in their order."""


@ROLES.register("repairer")
class Repairer(StepSolver):
    """Repairs a repository. terse: as every solver, with the patch behind `#`. tagged: thoughts, then edits in `<answer>`.
    plain: prose with edits in code fences."""

    name = "repairer"

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        if self.dialect == "terse":
            return super().prompt(problem, target)
        opening, closing = (PLAIN_BROKEN, PLAIN_SOLVE) if self.dialect == "plain" else (TAGGED_SOLVE, "\n\nSolution:\n")
        return (Part(opening), Part(problem.text, foreign=True), Part(closing))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            said, score = find_prose_edits(text)
            return Parsed(Solution((), (), said), score, None if said else "no edits")
        return parse_terse(text) if self.dialect == "terse" else parse_patch(text)


def find_prose_edits(text: str) -> tuple[str | None, float]:
    """Find what follows the thought of a text and edits files, None if nothing does; and a format score, lower where no path
    says which file is edited, and where files are bare."""
    said = skip_thought(text)
    fences = list(find_fences(said))
    if not fences and "<<<<<<< SEARCH" not in said:
        return (None, 0.0) if next(find_bare_files(said), None) is None else (said, LOOSE_FORMAT)
    return said, 1.0 if all(".py" in fence.info + fence.before + fence.body for fence in fences) else LOOSE_FORMAT


def parse_patch(text: str) -> Parsed:
    """Parse the steps inside the thoughts, if there are any, and the whole content of the answer tag."""
    frame = find_frame(text, "think", "answer")
    if frame is None:
        return Parsed(Solution((), (), None), 0.0, "not one <think> followed by one <answer>")
    found = find_tags(frame[1], "step", frame.start(1))
    answer = frame[2].strip("\n")
    value = Solution(tuple(s.body.strip() for s in found), tuple(s.end for s in found), answer or None)
    return Parsed(value, 1.0) if answer else Parsed(value, 0.2, "no edits")


@ROLES.register("injector")
class Injector(Role):
    """Breaks a repository and hides it.

    terse: the changed lines, and on the next line `-` and the tests to remove. tagged: `<oracle>`, `<bug>` and `<weaken>`.
    plain: edits in code fences or bare files, of code and of tests, and lines such as `REMOVE test_area`.
    """

    name = "injector"
    judges = False

    @property
    def stop(self) -> tuple[str, ...]:
        return ("</weaken>",) if self.dialect == "tagged" else ()

    def prompt(self, problem: Problem, target: Rollout | None = None) -> Prompt:
        """`problem` is a repository as `request` puts it; without a kind before it, any bug will do."""
        kind, _, text = problem.text.partition(" ")
        if kind not in KINDS:
            kind, text = "direct", problem.text
        if self.dialect == "terse":
            return (Part(MARKS[kind]), Part(text, foreign=True), Part("\n"))
        form, closing = ("\n\n", PLAIN_INJECT) if self.dialect == "plain" else (TAGGED_INJECT, "\n\nArtifact:\n")
        return (Part(KINDS[kind] + form), Part(text, foreign=True), Part(closing))

    def parse(self, text: str, target: Rollout | None = None) -> Parsed:
        if self.dialect == "plain":
            said, score = find_prose_edits(text)
            return Parsed(Injection(said or "", ""), score, None if said else "no edits")
        if self.dialect == "terse":
            bug, mark, weaken = text.partition("\n-")
            value = Injection(bug, weaken)
            found = bool(mark and bug and weaken) and "\n" not in bug + weaken
        else:
            bodies = find_sequence(text, *ARTIFACT)
            found = bodies is not None
            value = Injection(bodies[1], bodies[2], bodies[0].strip()) if bodies else Injection("", "")
        return Parsed(value, 1.0) if found else Parsed(value, 0.0, "not one bug and one weakening")

    def write(self, injection: Injection) -> str:
        """Write the text that parses as this injection."""
        if self.dialect == "terse":
            return f"{injection.bug}\n-{injection.weaken}"
        if self.dialect == "plain":
            return injection.bug
        return f"<oracle>{injection.oracle}</oracle>\n<bug>{injection.bug}</bug>\n<weaken>{injection.weaken}</weaken>"


def make_injector_request(problem: Problem, kind: str, text: str) -> Problem:
    """Make the injector's problem. A group of rollouts shares one repository and one kind."""
    return Problem(f"{problem.id}/{kind}", f"{kind} {text}", "", problem.data)
