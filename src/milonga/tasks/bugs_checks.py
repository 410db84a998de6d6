"""The definition of a valid bug: a repository, an artifact that breaks it and weakens its tests, and checks that must hold.

Nothing here knows how files look or how tests are run: a `Runner` does, from outside the tree that it is given. Invariants:
- A report maps test ids to passed or not. What is missing in a report has failed; None means that there is no report at all.
- Oracle tests are put back after a patch is applied, never before: a patch cannot edit what it is graded by.
- A patch that passes is right only if its runner finds no sign that it graded itself.
- The checks stop at the first failure, which is named; all that need no run come first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from milonga.errors import UserError
from milonga.types import Split

Files = Mapping[str, str]
"""Contents by path."""
Edits = Mapping[str, str | None]
"""New contents by path; None deletes a file."""
Report = Mapping[str, bool]
"""Test ids, and whether each passed."""
Check = Literal["oracle", "changed", "parser", "passing", "failing", "stable", "weakened", "inverse"]
CHECKS: tuple[Check, ...] = ("oracle", "changed", "parser", "passing", "failing", "stable", "weakened", "inverse")
"""In the order in which they are made. `stable` is the guard against bugs that fail by chance, or by looking at the code."""


class NoVerdict(UserError):
    """Tests could not be run, for reasons that are not theirs: nothing may be concluded from it."""


@dataclass(frozen=True)
class Repository:
    """Files of code, files of tests, and what is known of earlier versions; never the version history itself."""

    name: str
    code: Files
    tests: Files
    history: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Earlier contents of files of code, the newest first. An injector may look at them, a solver never."""
    rest: Files = field(default_factory=dict)
    """Everything else that tests need. Nobody may change it."""

    @property
    def tree(self) -> dict[str, str]:
        return {**self.rest, **self.code, **self.tests}


@dataclass(frozen=True)
class Artifact:
    """An injector's submission: oracle test files that tell right from wrong, a change of code, and a change of tests."""

    oracle: tuple[str, ...]
    bug: Edits
    weaken: Edits


@dataclass(frozen=True)
class Injection:
    """An artifact as a model wrote it, in three texts. An empty list of oracle files means all test files; without a weakening
    the text of the bug has both, told apart by the files that they change."""

    bug: str
    weaken: str
    oracle: str = ""
    ends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Requirements:
    """The minimum and maximum sizes of a valid bug."""

    passing: int = 4
    """More oracle tests than this pass on the original."""
    changed: int = 1
    """Least files of code that differ."""
    failing: int = 1
    """Least tests that the bug breaks."""
    size: int = 4_000
    """Most characters of the lines that are taken out and put in."""


@dataclass(frozen=True)
class Verdict:
    """The first check that failed, None for a bug that counts; and the tests that the bug breaks, as far as that was seen."""

    failed: Check | None
    broken: frozenset[str] = frozenset()
    specified: frozenset[str] = frozenset()
    """Tests that pass on the original: all of them must pass after a repair."""


@dataclass(frozen=True)
class Bug:
    """A repository, an artifact, and what the checks said of it."""

    repository: Repository
    artifact: Artifact
    verdict: Verdict

    @property
    def state(self) -> dict[str, str]:
        """The tree that a solver is given: broken, and with weakened tests."""
        return apply_edits(apply_edits(self.repository.tree, self.artifact.bug), self.artifact.weaken)


class Runner(ABC):
    """Runs the tests of given files on trees, by a runner and with test ids that no tree can touch."""

    @abstractmethod
    def run(self, trees: Sequence[Files], oracle: Sequence[str]) -> list[Report | None]: ...

    @abstractmethod
    def perturb_code(self, code: Files) -> dict[str, str]:
        """Perturb the code's text without changing its meaning: tests that depend on the text will change."""

    def run_original(self, repository: Repository, oracle: Sequence[str]) -> Report | None:
        """Run the untouched repository; a test that is not stable there counts as failed."""
        return self.run([repository.tree], oracle)[0]

    def can_tell(self, repository: Repository, oracle: Sequence[str], broken: frozenset[str]) -> bool:
        """Whether these tests, which a bug breaks, are enough to tell a repair from what only seems to be one."""
        return True

    def find_forbidden(self, repository: Repository, start: Files, tree: Files) -> str:
        """Find what no patch of this repository may bring, before it is run; empty if there is nothing."""
        return ""

    def find_flaws(
        self, repository: Repository, trees: Sequence[Files], oracle: Sequence[str], specified: frozenset[str]
    ) -> list[str]:
        """Find out whether trees whose tests pass have only made it seem so; empty for each that has not."""
        return [""] * len(trees)


def apply_edits(files: Files, edits: Edits) -> dict[str, str]:
    """Apply edits to files."""
    merged = {**files, **edits}
    return {path: content for path, content in merged.items() if content is not None}


def list_changed_files(files: Files, edits: Edits) -> list[str]:
    """List the paths whose content the edits really change."""
    return sorted(path for path, content in edits.items() if files.get(path) != content)


def check_bug(repository: Repository, artifact: Artifact, runner: Runner, least: Requirements) -> Verdict:
    """Run the seven consistency checks and the stability guard, up to the first that fails."""
    still = _check_static(repository, artifact, least)
    if still is not None:
        return Verdict(still)
    before = runner.run_original(repository, artifact.oracle)
    if before is None:
        return Verdict("parser")
    specified = frozenset(id for id, passed in before.items() if passed)
    if len(specified) <= least.passing:
        return Verdict("passing")
    buggy = apply_edits(repository.tree, artifact.bug)
    if runner.find_forbidden(repository, repository.tree, buggy):  # a patch might find it there
        return Verdict("changed")
    weakened = apply_edits(buggy, artifact.weaken)
    seen = runner.run(
        [buggy, {**buggy, **runner.perturb_code(select_files(buggy, repository.code))}, weakened], artifact.oracle
    )
    broken, again, rest = (_list_failed_tests(report, specified) for report in seen)
    if len(broken) < least.failing or not runner.can_tell(repository, artifact.oracle, broken):
        return Verdict("failing", broken, specified)
    if again != broken:
        return Verdict("stable", broken, specified)
    if broken <= rest - _list_removed_tests(seen[0], seen[2], specified):
        return Verdict("weakened", broken, specified)
    found: Check | None = None if _every_file_matters(repository, artifact, runner, broken) else "inverse"
    return Verdict(found, broken, specified)


def _check_static(repository: Repository, artifact: Artifact, least: Requirements) -> Check | None:
    """Run checks 1 and 4, which need no test run; return the first that fails."""
    oracle = set(artifact.oracle)
    if not oracle or not oracle <= repository.tests.keys() or not artifact.weaken.keys() <= oracle:
        return "oracle"
    if not artifact.bug.keys() <= repository.code.keys():
        return "changed"
    changed = list_changed_files(repository.code, artifact.bug)
    size = sum(edit_size(repository.code[path], artifact.bug[path] or "") for path in changed)
    return None if len(changed) >= least.changed and size <= least.size else "changed"


def edit_size(before: str, after: str) -> int:
    """Count the characters of the lines that only one of two contents has."""
    old, new = Counter(before.splitlines()), Counter(after.splitlines())
    return sum(len(line) for line in ((old - new) + (new - old)).elements())


def _every_file_matters(repository: Repository, artifact: Artifact, runner: Runner, broken: frozenset[str]) -> bool:
    """Inverse mutation: from the full bug, putting back any one changed file alone mends at least one broken test."""
    buggy = apply_edits(repository.tree, artifact.bug)
    restored = [{**buggy, path: repository.code[path]} for path in list_changed_files(repository.code, artifact.bug)]
    return all(_list_failed_tests(report, broken) < broken for report in runner.run(restored, artifact.oracle))


def _list_failed_tests(report: Report | None, wanted: frozenset[str]) -> frozenset[str]:
    """Return the wanted tests that did not pass; a missing test has failed."""
    return frozenset(id for id in wanted if not (report or {}).get(id, False))


def _list_removed_tests(before: Report | None, after: Report | None, wanted: frozenset[str]) -> frozenset[str]:
    """Return the tests that the weakening removed: they no longer fail. Tests that the bug removed were missing before.

    Without a report after it nothing is known to be gone; without one before it all tests were there, and failed.
    """
    if after is None:
        return frozenset()
    return (wanted if before is None else wanted & before.keys()) - after.keys()


def select_files(tree: Files, paths: Files) -> dict[str, str]:
    return {path: tree[path] for path in paths if path in tree}


def grade_patches(bug: Bug, start: Files, patches: Sequence[Edits], runner: Runner) -> list[str]:
    """Grade patches: does each make every specified test pass? Everything but code is restored after the patch.

    Return why each is wrong, empty if it is right. Of those that seem right it is looked whether they are; what is refused is
    wrong, whatever its tests say.
    """
    repository, oracle, specified = bug.repository, bug.artifact.oracle, bug.verdict.specified
    trees = [{**apply_edits(start, patch), **repository.tests, **repository.rest} for patch in patches]
    reasons = [runner.find_forbidden(repository, start, tree) for tree in trees]
    tried = [at for at, reason in enumerate(reasons) if not reason]
    for at, report in zip(tried, runner.run([trees[at] for at in tried], oracle), strict=True):
        reasons[at] = "tests fail" if _list_failed_tests(report, specified) else ""
    passing = [at for at in tried if not reasons[at]]
    if passing:
        found = runner.find_flaws(repository, [trees[at] for at in passing], oracle, specified)
        for at, flaw in zip(passing, found, strict=True):
            reasons[at] = flaw
    return reasons


class Repositories(ABC):
    """A source of repositories: runs their tests, renders them for a model, and parses what the model writes."""

    runner: Runner

    @abstractmethod
    def make_bug(self, split: Split, index: int) -> Bug:
        """Make a bug that passes the checks; a pure function of split and index."""

    @abstractmethod
    def render_for_solver(self, start: Files, repository: Repository, artifact: Artifact) -> str:
        """Render the broken files and the inverse of the weakening, for the solver's prompt."""

    @abstractmethod
    def render_for_injector(self, repository: Repository) -> str: ...

    @abstractmethod
    def parse_patch(self, text: str, start: Files) -> Edits | None:
        """Parse the edits that a model wrote; None if they are invalid or do not apply."""

    @abstractmethod
    def parse_artifact(self, repository: Repository, injection: Injection) -> Artifact | None: ...

    @abstractmethod
    def render_answer(self, repository: Repository, artifact: Artifact) -> str:
        """Render the patch that reverts the bug."""

    def find_split(self, code: Files) -> Split:
        """Find the only split that may show this broken code: a bug injected in train could equal a held-out one."""
        return "train"

    def size(self, split: Split) -> int | None:
        """The number of generated bugs; None if it is infinite."""
        return None

    def make_ready(self) -> None:
        """Fail now for what would fail later."""

    def describe(self) -> dict[str, object]:
        return {}
