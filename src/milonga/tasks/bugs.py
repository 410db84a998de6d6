"""Repairing small repositories: a bug was put into the code and some tests were taken away; the answer is a patch.

A problem shows the broken files and the tests that were taken away. A patch is right if, with all tests put back after it,
every test passes that passed before the bug. Repositories are made up in a tiny dialect, or read from git folders; then their
tests run by pytest in the sandbox. What counts as a bug is said in `bugs_checks`.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence, Set
from typing import Any

from pydantic import Field, model_validator

from milonga.sandbox import Level, Limits
from milonga.tasks.base import DEMONSTRATIONS, TASKS, Capability, Demonstration, Task, TaskOptions
from milonga.tasks.bugs_checks import (
    Artifact,
    Bug,
    Edits,
    Files,
    Injection,
    NoVerdict,
    Repositories,
    Repository,
    Requirements,
    Verdict,
    apply_edits,
    check_bug,
    grade_patches,
    select_files,
)
from milonga.tasks.bugs_tiny import (
    INPUTS,
    NAMES,
    Shape,
    TinyRepositories,
    evaluate_code,
    find_removed_tests,
    mutate_line,
    render_lines,
)
from milonga.types import Grade, Problem, Split


class BugsOptions(TaskOptions):
    path: str | None = None
    """A git folder, or a folder of such folders, instead of made-up repositories. Their tests run by pytest in the sandbox."""
    bugs: int = Field(24, ge=3, le=10_000)
    """Bugs that are made up in each repository of `path`, by changing single lines; they are checked before training."""
    isolation: Level = "isolated"
    """What the tests of `path` run in; see the page of the sandbox."""
    allow_weak_isolation: bool = False
    """Go on where that isolation is not to be had. Only on a machine that you can throw away."""
    environment: str | None = None
    """What the tests of `path` may import besides Python's own library: a virtual environment's folder or interpreter, of the
    Python that Milonga runs in. It is mounted read-only."""
    shown: int = Field(24_000, ge=500)
    """Most characters of code and tests of `path` in one prompt. Of a larger repository each bug shows a part: some tests and
    what they import."""
    cpu_s: float = Field(30.0, gt=0, le=600)
    """Processor time of one run of the tests of `path`."""
    memory_mb: int = Field(512, ge=64)
    """Address space of one run of the tests of `path`; large packages want more."""
    max_tokens: int | None = Field(None, ge=1)
    """Limit of a solution; by default what made-up bugs need, and 2048 for `path`."""
    functions: int = Field(3, ge=2, le=len(NAMES))
    """Files of one line in a made-up repository."""
    ops: int = Field(1, ge=1, le=3)
    """Most operations in a line."""
    tests: int = Field(3, ge=2, le=len(INPUTS))
    """Tests of each file."""
    changed: int = Field(2, ge=1, le=len(NAMES))
    """Most files that a made-up bug changes."""
    min_changed: int = Field(1, ge=1)
    """Least files that it changes."""
    seed: int = 0
    """Keys the repositories and the made-up bugs."""

    @model_validator(mode="after")
    def _ordered(self) -> BugsOptions:
        if not self.min_changed <= self.changed <= self.functions:
            raise ValueError(
                f"of {self.functions} functions a bug cannot change min_changed={self.min_changed} to changed={self.changed}"
            )
        if self.functions * self.tests <= Requirements().passing:
            raise ValueError(
                f"functions={self.functions} with tests={self.tests} each are too few tests for any bug to count: there must "
                f"be more than {Requirements().passing}"
            )
        return self


@TASKS.register("bugs")
class Bugs(Task):
    """Repair of a small repository, graded by its own tests."""

    name = "bugs"
    base = "bugs"
    Options = BugsOptions
    options: BugsOptions

    def __init__(self, options: BugsOptions | None = None) -> None:
        super().__init__(options)
        o = self.options
        self.max_tokens = o.max_tokens or (2048 if o.path else 32 + 24 * o.changed)
        self.repositories = self.make_git_repositories(o.path) if o.path else self.make_tiny_repositories()

    def make_tiny_repositories(self) -> Repositories:
        o = self.options
        return TinyRepositories(Shape(o.functions, o.ops, o.tests, o.min_changed, o.changed, o.seed))

    def make_git_repositories(self, path: str) -> Repositories:
        from milonga.tasks.bugs_git import GitRepositories
        from milonga.tasks.bugs_pytest import PytestRunner

        o = self.options
        limits = Limits(cpu_s=o.cpu_s, wall_s=10 * o.cpu_s, memory_mb=o.memory_mb, open_files=256, file_mb=16, scratch_mb=64)
        runner = PytestRunner(limits, o.isolation, o.allow_weak_isolation, o.environment)
        return GitRepositories(path, o.bugs, o.seed, runner, o.shown)

    def make_ready(self) -> None:
        self.repositories.make_ready()

    def describe(self) -> dict[str, Any]:
        return dict(self.repositories.describe())

    def size(self, split: Split) -> int | None:
        return self.repositories.size(split)

    def problem(self, split: Split, index: int) -> Problem:
        return self.make_problem(f"bugs/{split}/{index}", self.repositories.make_bug(split, index))

    def make_problem(self, id: str, bug: Bug, source: str | None = None, patch: Edits | None = None) -> Problem:
        """Make a problem from a bug. With a failed `patch` on top it is a second-order bug with the same specification."""
        start = apply_edits(bug.state, patch or {})
        text = self.repositories.render_for_solver(start, bug.repository, bug.artifact)
        answer = self.repositories.render_answer(bug.repository, bug.artifact)
        return Problem(id, text, answer, {"bug": bug, "start": start}, source)

    def check_artifact(self, repository: Repository, artifact: Artifact, least: Requirements) -> Verdict:
        return check_bug(repository, artifact, self.repositories.runner, least)

    def parse_artifact(self, repository: Repository, injection: Injection) -> Artifact | None:
        """Parse an injection into an artifact; None if it is invalid."""
        return self.repositories.parse_artifact(repository, injection)

    def parse_patch(self, problem: Problem, answer: str | None) -> Edits | None:
        """Parse the edits of an answer; None if it is invalid, or creates files that the repository never had."""
        repository: Repository = problem.data["bug"].repository
        start = select_files(problem.data["start"], {**repository.code, **repository.tests})
        edits = None if answer is None else self.repositories.parse_patch(answer, start)
        return edits if edits is not None and edits.keys() <= repository.tree.keys() else None

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        return self.grade_all([(problem, answer, steps)])[0]

    def grade_all(self, items: Sequence[tuple[Problem, str | None, Sequence[str]]]) -> list[Grade]:
        """Grade a batch; the patches of one problem are run together."""
        grades: list[Grade] = [Grade(False)] * len(items)
        patches = [self.parse_patch(problem, answer) for problem, answer, _ in items]
        by_problem: dict[str, list[int]] = {}
        for at, (problem, _, _) in enumerate(items):
            if patches[at] is not None:
                by_problem.setdefault(problem.id, []).append(at)
        for places in by_problem.values():
            data = items[places[0]][0].data
            read = [patch for at in places if (patch := patches[at]) is not None]
            try:
                reasons = grade_patches(data["bug"], data["start"], read, self.repositories.runner)
                found: list[bool | None] = [not reason for reason in reasons]
            except NoVerdict:
                found = [None] * len(places)
            for at, right in zip(places, found, strict=True):
                grades[at] = Grade(right)
        return grades

    def matches_on_all_inputs(self, problem: Problem, answer: str | None) -> bool | None:
        """Whether a patch agrees with the original on every input, tested or not; None if that is unknown."""
        if self.options.path is not None:
            return None
        patch, repository = self.parse_patch(problem, answer), problem.data["bug"].repository
        if patch is None:
            return False
        code: Files = {
            path: line for path, line in apply_edits(problem.data["start"], patch).items() if path in repository.code
        }
        return all(evaluate_code(code, x) == evaluate_code(repository.code, x) for x in INPUTS)

    # What a teacher shows: for each broken file its first term and what is wanted of it, and then the lines.

    @property
    def offers(self) -> Set[Capability]:
        return super().offers if self.options.path is None else super().offers - {DEMONSTRATIONS}

    def step_count(self, problem: Problem) -> int:
        return len(problem.data["bug"].artifact.bug)

    def demonstrate(self, problem: Problem, rng: random.Random, errors: Collection[int] = ()) -> Demonstration:
        bug: Bug = problem.data["bug"]
        repository, names = bug.repository, sorted(bug.artifact.bug)
        right = [_render_evidence(repository, bug.artifact, name, 0) for name in names]
        shown, lines = list(right), {name: repository.code[name] for name in names}
        for at in errors:
            shown[at] = _render_evidence(repository, bug.artifact, names[at], rng.choice((-1, 1)))
            lines[names[at]] = mutate_line(lines[names[at]], NAMES[: NAMES.index(names[at])], rng)
        answer = render_lines(lines)
        truth = tuple(at not in errors for at in range(len(names)))
        correct = bool(self.grade(problem, answer, ()).correct)
        return Demonstration(tuple(shown), truth, tuple(right), answer, correct)


def _render_evidence(repository: Repository, artifact: Artifact, name: str, off: int) -> str:
    """Render `b:a4>8,5>10`: the first term of the line, and at each removed test the term's value and the wanted one.

    With `off` the values are off by so much.
    """
    term = repository.code[name][0]
    gone = [
        (int(id[1:]), wanted) for id, wanted in find_removed_tests(repository.tests, artifact.weaken).items() if id[0] == name
    ]
    return f"{name}:{term}" + ",".join(f"{evaluate_code(repository.code, x)[term] + off}>{wanted}" for x, wanted in gone)
