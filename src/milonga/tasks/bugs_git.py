"""Repositories from git folders: a clean export, its tests run by pytest in the sandbox, bugs made up by changing single lines.

What is exported is the tree of the last commit, alone: no log, no tags, no build products, nothing that is not committed.
Earlier versions of files are shown to an injector, never to a solver. Of a repository that is too large for a prompt each bug
shows a part (`bugs_parts`); edits are read by `bugs_patches`. Tests that fail before any bug, or not every time, do not count.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from milonga.errors import DataError
from milonga.randomness import keyed_rng
from milonga.tasks.base import normalise_text
from milonga.tasks.bugs_checks import (
    Artifact,
    Bug,
    Edits,
    Files,
    Injection,
    Repositories,
    Repository,
    Requirements,
    apply_edits,
    check_bug,
)
from milonga.tasks.bugs_parts import Category, choose_category, split_repository
from milonga.tasks.bugs_patches import (
    empty_tests,
    find_removed_names,
    parse_changes,
    render_blocks,
    render_diff,
    render_files,
)
from milonga.tasks.bugs_pytest import MOST_TESTS, PytestRunner
from milonga.tasks.git_objects import LARGEST_FILE, GitObjects, open_git
from milonga.types import SPLITS, Split

VERSIONS = 2
"""Earlier contents of a file that an injector sees."""
MOST_PARTS = 16
"""Parts of one repository: the tests of each are run before training."""
PAST_SHARE = 0.25
"""Of the characters that a prompt shows, as many more may be past changes."""
HELD_OUT = 0.2
"""Share of the made-up bugs that is held out, half for dev and half for test."""
SWAPS = (
    ("==", "!="), ("!=", "=="), ("<=", "<"), (">=", ">"), ("<", "<="), (">", ">="), ("+", "-"), ("-", "+"), ("*", "+"),
    ("//", "*"), (" and ", " or "), (" or ", " and "), ("True", "False"), ("False", "True"), ("not ", ""), (" in ", " not in "),
    ("0", "1"), ("1", "2"), ("2", "3"),
)  # fmt: skip
"""What a made-up bug writes instead, once in a line. What breaks no test is no bug, so that nothing else need be known."""


def export_repository(folder: Path) -> Repository:
    """Export the last commit of a git folder as files, without earlier versions."""
    with open_git(folder) as git:
        return _export_files(git)


def _export_files(git: GitObjects) -> Repository:
    """Export the texts of the last commit. A file that is no Python is left out where it is no text, or too large."""
    found: dict[Category, dict[str, str]] = {"code": {}, "tests": {}, "rest": {}}
    files = git.list_files()
    large = next((file for file in files if file.path.endswith(".py") and file.size > LARGEST_FILE), None)
    if large is not None:
        raise DataError(f"{large.path} of the repository {git.folder} has more than {LARGEST_FILE >> 20} MB: take it out")
    for path, content in git.read_files([file for file in files if file.size <= LARGEST_FILE]):
        try:
            found[choose_category(path)][path] = content.decode()
        except UnicodeDecodeError:
            if path.endswith(".py"):
                raise DataError(f"{path} of the repository {git.folder} is not UTF-8; write it so, and commit it") from None
    if not found["code"] or not found["tests"]:
        missing = "no test files (test_*.py)" if found["code"] else "no Python files besides its tests"
        raise DataError(f"the repository {git.folder} has {missing}")
    return Repository(git.folder.resolve().name, found["code"], found["tests"], rest=found["rest"])


def load_parts(folder: Path, room: int, seed: int) -> tuple[list[Repository], str]:
    """Load a git folder as parts that fit into a prompt, with earlier versions of what they show; and say what is left out."""
    with open_git(folder) as git:
        return _load_parts(git, room, seed)


def _load_parts(git: GitObjects, room: int, seed: int) -> tuple[list[Repository], str]:
    whole = _export_files(git)
    parts = split_repository(whole, room)
    if not parts:
        raise DataError(
            f"of the repository {git.folder} no file of tests fits into {room} characters with code that it imports; "
            "raise task.shown"
        )
    if len(parts) > MOST_PARTS:
        parts = keyed_rng("parts", seed, whole.name).sample(parts, MOST_PARTS)
    shown = {path for part in parts for path in part.code}
    history = {path: tuple(old.decode(errors="replace") for old in git.list_versions(path, VERSIONS)) for path in sorted(shown)}
    missing = len(whole.code) - len(shown)
    said = f"{missing} of {len(whole.code)} files of code of {whole.name}" if missing else ""
    return [replace(part, history=select_versions(history, part)) for part in parts], said


def select_versions(history: dict[str, tuple[str, ...]], part: Repository) -> dict[str, tuple[str, ...]]:
    """Select the earlier versions of what a part shows."""
    return {path: versions for path, versions in history.items() if path in part.code}


def _generate_mutants(code: Files) -> Iterator[tuple[str, str]]:
    """Generate mutants: files with one line changed, by swapping one operator or word, or by removing the line."""
    for path, text in sorted(code.items()):
        lines = text.splitlines(keepends=True)
        for at, line in enumerate(lines):
            body = line.strip()
            if not body or body.startswith(("#", '"', "'", "import ", "from ", "def ", "class ", "@")):
                continue
            others = [line.replace(old, new, 1) for old, new in SWAPS if old in line]
            if not body.endswith((":", "(", "[", "{", ",")):
                others.append(line[: len(line) - len(line.lstrip())] + "pass\n")
            yield from (
                (path, "".join([*lines[:at], other, *lines[at + 1 :]])) for other in dict.fromkeys(others) if other != line
            )


def _find_error(said: str) -> str:
    """Find the line of pytest's output that tells most: the first error, but for that of the test that must fail; or else the
    last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("E").strip() for line in lines if line.startswith("E ") and "assert not 1" not in line]
    return (errors or lines[-1:] or [""])[0]


class GitRepositories(Repositories):
    """Repositories of git folders, or parts of them, with a pool of made-up bugs that pass the checks; it is made when it is
    first asked for. Tests that do not pass every time are no part of any bug's specification."""

    runner: PytestRunner

    def __init__(self, path: str, bugs: int, seed: int, runner: PytestRunner, room: int) -> None:
        root = Path(path)
        if not root.is_dir():
            raise DataError(f"there is no folder {root}: task.path names a git folder, or a folder of such folders")
        found = (
            [root] if (root / ".git").exists() else sorted(folder for folder in root.iterdir() if (folder / ".git").exists())
        )
        if not found:
            raise DataError(f"{root} is no git folder, and no folder in it is one")
        loaded = [load_parts(folder, room, seed) for folder in found]
        self.folders = [parts for parts, _ in loaded]
        self.left_out = [said for _, said in loaded if said]
        self.bugs, self.seed, self.runner, self.room = bugs, seed, runner, room
        self._pools: dict[Split, list[Bug]] | None = None

    @property
    def repositories(self) -> list[Repository]:
        """All repositories, or parts of them."""
        return [part for parts in self.folders for part in parts]

    def make_ready(self) -> None:
        """Run the tests of the untouched repositories, and generate the bugs."""
        for split in SPLITS:
            self.get_pool(split)

    @cached_property
    def usable(self) -> list[list[Repository]]:
        """Of each folder, the parts that bugs can be told by; an error if there are none."""
        obstacles = {part.name: self.find_obstacle(part) for part in self.repositories}
        if None not in obstacles.values():
            raise DataError(next(reason for reason in obstacles.values() if reason))
        fit = [[part for part in parts if obstacles[part.name] is None] for parts in self.folders]
        # An injector's bug needs more tests than this; where some parts have them, the others are left out.
        least = Requirements().passing
        return [[part for part in parts if sum(self.run_tests(part).values()) > least] or parts for parts in fit if parts]

    def run_tests(self, repository: Repository) -> dict[str, bool]:
        """Run all tests of an untouched repository several times: whether each passes every time; empty if they do not run."""
        return dict(self.runner.run_original(repository, sorted(repository.tests)) or {})

    def find_obstacle(self, repository: Repository) -> str | None:
        """Find out why no bug in a repository could be told by its tests; None if it can."""
        report = self.run_tests(repository)
        if not report:
            said = _find_error(self.runner.said[repository.name])
            return f"the tests of repository {repository.name} do not run in the sandbox: {said or 'no results'}"
        if not any(report.values()):
            some = ", ".join(sorted(report)[:3])
            return f"of {len(report)} tests of repository {repository.name} none passes every time: {some}; mend one at least"
        return f"repository {repository.name} has more than {MOST_TESTS} tests" if len(report) > MOST_TESTS else None

    def get_pool(self, split: Split) -> list[Bug]:
        if self._pools is None:
            every = [bug for parts in self.usable for bug in self.generate_bugs(parts)]
            keyed_rng("split", self.seed).shuffle(every)
            held = max(1, round(HELD_OUT / 2 * len(every)))
            self._pools = {"dev": every[:held], "test": every[held : 2 * held], "train": every[2 * held :]}
            if not self._pools["train"]:
                raise DataError(f"only {len(every)} bugs could be made up in these repositories; at least 3 are needed")
        return self._pools[split]

    def generate_bugs(self, parts: list[Repository]) -> Iterator[Bug]:
        """Generate valid bugs with different texts in the parts of one folder, up to `bugs` of them, each part in its turn."""
        seen: set[tuple[str, str]] = set()
        ways = [self.generate_part_bugs(part, seen) for part in parts]
        made = 0
        while ways and made < self.bugs:
            way = ways.pop(0)
            bug = next(way, None)
            if bug is not None:
                ways.append(way)
                made += 1
                yield bug

    def generate_part_bugs(self, repository: Repository, seen: set[tuple[str, str]]) -> Iterator[Bug]:
        """Generate valid bugs in one part, none that is `seen` already: files that are broken in the same way."""
        oracle = tuple(sorted(repository.tests))
        passing = {id for id, passed in self.run_tests(repository).items() if passed}
        candidates = list(_generate_mutants(repository.code))
        random.Random(self.seed).shuffle(candidates)
        for path, text in candidates:
            if (path, normalise_text(text)) in seen:
                continue
            report = self.runner.run([{**repository.tree, path: text}], oracle)[0] or {}
            broken = [id for id in passing if not report.get(id, False)]
            names = frozenset(f"{id.partition('::')[0]}::{id.split('::')[-1].partition('[')[0]}" for id in broken)
            artifact = Artifact(oracle, {path: text}, empty_tests(repository.tests, names))
            verdict = check_bug(repository, artifact, self.runner, Requirements(passing=0)) if broken else None
            if verdict is not None and verdict.failed is None:
                seen.add((path, normalise_text(text)))
                yield Bug(repository, artifact, verdict)

    def make_bug(self, split: Split, index: int) -> Bug:
        pool = self.get_pool(split)
        return pool[index % len(pool)]

    def find_split(self, code: Files) -> Split:
        """Find the split of broken code: that of a held-out bug whose broken files it has."""
        for split, broken in self.held_out:
            if all(normalise_text(code.get(path, "")) == text for path, text in broken.items()):
                return split
        return "train"

    @cached_property
    def held_out(self) -> list[tuple[Split, dict[str, str]]]:
        """The broken files of held-out bugs: no agent may be shown them in training."""
        held: tuple[Split, ...] = ("dev", "test")
        return [
            (split, {path: normalise_text(text or "") for path, text in bug.artifact.bug.items()})
            for split in held
            for bug in self.get_pool(split)
        ]

    def size(self, split: Split) -> int | None:
        return len(self.get_pool(split))

    def render_for_solver(self, start: Files, repository: Repository, artifact: Artifact) -> str:
        code = {path: text for path, text in start.items() if path in repository.code}
        weakened = apply_edits(repository.tests, artifact.weaken)
        back = render_diff(weakened, {path: repository.tests[path] for path in artifact.weaken})
        return f"{render_files(code)}\nWhat the tests were before:\n{back}"

    def render_for_injector(self, repository: Repository) -> str:
        past = [
            render_diff({path: repository.code[path]}, {path: old}) for path, olds in repository.history.items() for old in olds
        ]
        shown: list[str] = []
        for diff in past:
            if sum(map(len, shown)) + len(diff) <= PAST_SHARE * self.room:
                shown.append(diff)
        return (
            f"{render_files(repository.code)}\nTests:\n{render_files(repository.tests)}\nPast changes, taken back:\n"
            + "\n".join(shown)
        )

    def parse_patch(self, text: str, start: Files) -> Edits | None:
        return parse_changes(text, start)

    def parse_artifact(self, repository: Repository, injection: Injection) -> Artifact | None:
        files = {**repository.code, **repository.tests}
        oracle = tuple(injection.oracle.split()) or tuple(sorted(repository.tests))
        bug, weaken = parse_changes(injection.bug, files), parse_changes(injection.weaken, files)
        if not injection.weaken and bug is not None:  # one text with both
            removed = empty_tests(repository.tests, frozenset(find_removed_names(injection.bug)))
            weaken = {**removed, **{path: text for path, text in bug.items() if path in repository.tests}}
            bug = {path: text for path, text in bug.items() if path in repository.code}
        return None if bug is None or weaken is None else Artifact(oracle, bug, weaken)

    def render_answer(self, repository: Repository, artifact: Artifact) -> str:
        broken = apply_edits(repository.code, artifact.bug)
        return render_blocks(broken, {path: repository.code[path] for path in artifact.bug})

    def describe(self) -> dict[str, object]:
        sizes = {split: len(self.get_pool(split)) for split in SPLITS}
        parts = [part for parts in self.usable for part in parts]
        tests = {(part.name.partition(":")[0], id): ok for part in parts for id, ok in self.run_tests(part).items()}
        ran = {(folder, id.partition("::")[0]) for folder, id in tests}
        silent = sorted({path for part in parts for path in part.tests if (part.name.partition(":")[0], path) not in ran})
        kept = sum(tests.values())
        apart = {
            (part.name.partition(":")[0], id) for part in parts for id in self.runner.learn(part, sorted(part.tests)).apart
        }
        said: dict[str, object] = {
            "repositories": len(self.folders),
            "parts": len(parts),
            "tests": f"{kept} pass every time, {len(tests) - kept} do not and are dropped",
            "tests that also run apart from the code": f"{len(apart)} of {kept}",
            "files of tests without results (do they want task.environment?)": ", ".join(silent),
            "left out": ", ".join(self.left_out),
            "made-up bugs": sizes,
            "isolation": self.runner.sandbox.level,
        }
        return {name: value for name, value in said.items() if value}
