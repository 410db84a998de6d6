"""Repositories from git folders: a clean export, its tests run by pytest in the sandbox, bugs made up by changing single lines.

What is exported is the tree of the last commit, alone: no log, no tags, no build products, nothing that is not committed.
Earlier versions of files are shown to an injector, never to a solver. Edits are blocks that replace lines:

    FILE package/sums.py
    <<<<<<< SEARCH
        return left - right
    =======
        return left + right
    >>>>>>> REPLACE
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import random
import re
import subprocess
import tarfile
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path, PurePosixPath

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
    select_files,
)
from milonga.tasks.bugs_pytest import MOST_TESTS, PytestRunner
from milonga.types import SPLITS, Split

TESTS = ("test_*.py", "*_test.py")
VERSIONS = 2
"""Earlier contents of a file that an injector sees."""
LARGEST = 60_000
"""Characters of code and tests of a repository: all of it goes into a prompt."""
PATIENCE = 60
"""Seconds that one call of git may take."""
HELD_OUT = 0.2
"""Share of the made-up bugs that is held out, half for dev and half for test."""
BLOCK = re.compile(r"<<<<<<< SEARCH\n(?P<old>.*?)\n?=======\n(?P<new>.*?)\n?>>>>>>> REPLACE", re.DOTALL)
SWAPS = (
    ("==", "!="), ("!=", "=="), ("<=", "<"), (">=", ">"), ("<", "<="), (">", ">="), ("+", "-"), ("-", "+"), ("*", "+"),
    ("//", "*"), (" and ", " or "), (" or ", " and "), ("True", "False"), ("False", "True"), ("not ", ""), (" in ", " not in "),
    ("0", "1"), ("1", "2"), ("2", "3"),
)  # fmt: skip
"""What a made-up bug writes instead, once in a line. What breaks no test is no bug, so that nothing else need be known."""


def export_repository(folder: Path) -> Repository:
    """Export the last commit of a git folder as files."""
    archive = run_git(folder, "archive", "--format=tar", "HEAD")
    code: dict[str, str] = {}
    tests: dict[str, str] = {}
    rest: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            file = tar.extractfile(member) if member.isfile() else None
            try:
                text = file.read().decode() if file else None
            except UnicodeDecodeError:
                if member.name.endswith(".py"):
                    raise DataError(
                        f"{member.name} of the repository {folder} is not UTF-8; write it so, and commit it"
                    ) from None
                continue
            if text is not None:
                _choose_category(member.name, code, tests, rest)[member.name] = text
    if not code or not tests:
        missing = "no test files (test_*.py)" if code else "no Python files besides its tests"
        raise DataError(f"the repository {folder} has {missing}")
    size = sum(len(text) for text in {**code, **tests}.values())
    if size > LARGEST:
        raise DataError(f"the repository {folder} has {size} characters of code and tests, more than {LARGEST}")
    history = {path: load_history(folder, path) for path in code}
    return Repository(folder.resolve().name, code, tests, history, rest)


def _choose_category(path: str, code: dict[str, str], tests: dict[str, str], rest: dict[str, str]) -> dict[str, str]:
    """Choose the category of a path. Tests have pytest's names; other files among them (fixtures, data) are `rest`."""
    name, parents = PurePosixPath(path).name, PurePosixPath(path).parts[:-1]
    if any(fnmatch(name, pattern) for pattern in TESTS):
        return tests
    among = any(part in ("test", "tests") for part in parents)
    return code if name.endswith(".py") and not among and name not in ("conftest.py", "setup.py") else rest


def run_git(folder: Path, *words: str) -> bytes:
    """Run git in this folder and no other: variables such as GIT_DIR would win over -C."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    asked = ["git", "-C", str(folder), *words]
    try:
        done = subprocess.run(asked, capture_output=True, check=False, timeout=PATIENCE, env=plain)
    except FileNotFoundError:
        raise DataError("git is not installed: repositories are read by it") from None
    except subprocess.TimeoutExpired:
        raise DataError(f"{folder}: git {words[0]} took more than {PATIENCE} s; is it too large, or on a slow disk?") from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise DataError(f"{folder} is no git folder with a commit: {said[-1] if said else 'git says no more'}")
    return done.stdout


def load_history(folder: Path, path: str) -> tuple[str, ...]:
    """Load earlier contents of a file, the newest first."""
    found = []
    for commit in run_git(folder, "rev-list", f"--max-count={VERSIONS + 1}", "HEAD", "--", path).decode().split()[1:]:
        if run_git(folder, "ls-tree", "--name-only", commit, "--", path).strip():
            found.append(run_git(folder, "show", f"{commit}:{path}").decode(errors="replace"))
    return tuple(found)


# Texts.


def _render_files(files: Files) -> str:
    return "\n".join(f"FILE {path}\n{text.rstrip()}\n" for path, text in sorted(files.items()))


def _render_diff(before: Files, after: Edits) -> str:
    """Render a unified diff of the files that differ."""
    pieces = []
    for path in sorted(after):
        old, new = before.get(path, ""), after[path] or ""
        lines = difflib.unified_diff(old.splitlines(), new.splitlines(), f"a/{path}", f"b/{path}", lineterm="")
        pieces.append("\n".join(lines))
    return "\n".join(piece for piece in pieces if piece)


def parse_blocks(text: str, files: Files) -> dict[str, str] | None:
    """Parse edit blocks into new file contents; None without a block, or if a block's lines do not occur exactly once."""
    found: dict[str, str] = {}
    for piece in re.split(r"^FILE ", text, flags=re.MULTILINE)[1:]:
        path, _, body = piece.partition("\n")
        path = path.strip()
        for block in BLOCK.finditer(body):
            content = found.get(path, files.get(path, ""))
            if content.count(block["old"]) != 1 if block["old"] else content:
                return None
            found[path] = content.replace(block["old"], block["new"]) if block["old"] else block["new"] + "\n"
    return found or None


def render_blocks(before: Files, after: Files) -> str:
    """Render edit blocks that replace whole files; `blocks_in` parses them."""
    pieces = []
    for path, new in sorted(after.items()):
        old = before.get(path, "").removesuffix("\n")
        new = new.removesuffix("\n")
        pieces.append(f"FILE {path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE")
    return "\n".join(pieces)


# Made up.


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


def _empty_tests(tests: Files, ids: list[str]) -> dict[str, str]:
    """Empty these tests: return the changed test files, with `pass` as the body of each test."""
    found: dict[str, str] = {}
    for path, text in tests.items():
        names = {id.split("::")[-1].partition("[")[0] for id in ids if id.startswith(f"{path}::")}
        lines = text.splitlines()
        for node in sorted(ast.walk(ast.parse(text)), key=lambda node: -getattr(node, "lineno", 0)):
            if isinstance(node, ast.FunctionDef) and node.name in names:
                indent = " " * node.body[0].col_offset
                lines[node.body[0].lineno - 1 : node.end_lineno] = [f"{indent}pass"]
        if names:
            found[path] = "\n".join(lines) + "\n"
    return found


class GitRepositories(Repositories):
    """Repositories of git folders, with a pool of made-up bugs that pass the checks; it is made when it is first asked for."""

    runner: PytestRunner

    def __init__(self, path: str, bugs: int, seed: int, runner: PytestRunner) -> None:
        root = Path(path)
        if not root.is_dir():
            raise DataError(f"there is no folder {root}: task.path names a git folder, or a folder of such folders")
        found = (
            [root] if (root / ".git").exists() else sorted(folder for folder in root.iterdir() if (folder / ".git").exists())
        )
        if not found:
            raise DataError(f"{root} is no git folder, and no folder in it is one")
        self.repositories = [export_repository(folder) for folder in found]
        self.bugs, self.seed, self.runner = bugs, seed, runner
        self._pools: dict[Split, list[Bug]] | None = None

    def make_ready(self) -> None:
        """Require that all tests of the untouched repositories pass and are stable; then generate the bugs."""
        for repository in self.repositories:
            self.require_passing(repository)
        for split in SPLITS:
            self.get_pool(split)

    def require_passing(self, repository: Repository) -> None:
        report = self.runner.run_original(repository, sorted(repository.tests))
        if report is None:
            said = self.runner.said[repository.name]
            raise DataError(f"the tests of repository {repository.name} do not run in the sandbox: {said or 'no results'}")
        failed = sorted(id for id, passed in report.items() if not passed)
        if failed:
            raise DataError(
                f"{len(failed)} of {len(report)} tests of repository {repository.name} fail before any bug, at least "
                f"sometimes: {', '.join(failed[:3])}; mend or remove them"
            )
        if len(report) > MOST_TESTS:
            raise DataError(f"repository {repository.name} has more than {MOST_TESTS} tests")

    def get_pool(self, split: Split) -> list[Bug]:
        if self._pools is None:
            every = [bug for repository in self.repositories for bug in self.generate_bugs(repository)]
            keyed_rng("split", self.seed).shuffle(every)
            held = max(1, round(HELD_OUT / 2 * len(every)))
            self._pools = {"dev": every[:held], "test": every[held : 2 * held], "train": every[2 * held :]}
            if not self._pools["train"]:
                raise DataError(f"only {len(every)} bugs could be made up in these repositories; at least 3 are needed")
        return self._pools[split]

    def generate_bugs(self, repository: Repository) -> Iterator[Bug]:
        """Generate valid bugs with different texts, up to `bugs` of them."""
        self.require_passing(repository)
        oracle, seen = tuple(sorted(repository.tests)), set[str]()
        candidates = list(_generate_mutants(repository.code))
        random.Random(self.seed).shuffle(candidates)
        for path, text in candidates:
            if len(seen) >= self.bugs:
                return
            report = self.runner.run([{**repository.tree, path: text}], oracle)[0] or {}
            broken = [id for id, passed in report.items() if not passed]
            artifact = Artifact(oracle, {path: text}, _empty_tests(repository.tests, broken))
            problem = normalise_text(self.render_for_solver(apply_edits(repository.tree, artifact.bug), repository, artifact))
            if not broken or problem in seen:
                continue
            verdict = check_bug(repository, artifact, self.runner, Requirements(passing=0))
            if verdict.failed is None:
                seen.add(problem)
                yield Bug(repository, artifact, verdict)

    def make_bug(self, split: Split, index: int) -> Bug:
        pool = self.get_pool(split)
        return pool[index % len(pool)]

    def find_split(self, code: Files) -> Split:
        return self.held_out.get(normalise_text(_render_files(code)), "train")

    @cached_property
    def held_out(self) -> dict[str, Split]:
        """The broken code of held-out bugs: no agent may be shown it in training."""
        held: tuple[Split, ...] = ("dev", "test")
        return {
            normalise_text(_render_files(select_files(bug.state, bug.repository.code))): split
            for split in held
            for bug in self.get_pool(split)
        }

    def size(self, split: Split) -> int | None:
        return len(self.get_pool(split))

    def render_for_solver(self, start: Files, repository: Repository, artifact: Artifact) -> str:
        code = {path: text for path, text in start.items() if path in repository.code}
        weakened = apply_edits(repository.tests, artifact.weaken)
        back = _render_diff(weakened, {path: repository.tests[path] for path in artifact.weaken})
        return f"{_render_files(code)}\nWhat the tests were before:\n{back}"

    def render_for_injector(self, repository: Repository) -> str:
        past = [
            _render_diff({path: repository.code[path]}, {path: old})
            for path, olds in repository.history.items()
            for old in olds
        ]
        return (
            f"{_render_files(repository.code)}\nTests:\n{_render_files(repository.tests)}\nPast changes, taken back:\n"
            + "\n".join(past)
        )

    def parse_patch(self, text: str, start: Files) -> Edits | None:
        return parse_blocks(text, start)

    def parse_artifact(self, repository: Repository, injection: Injection) -> Artifact | None:
        bug, weaken = parse_blocks(injection.bug, repository.tree), parse_blocks(injection.weaken, repository.tree)
        oracle = tuple(injection.oracle.split()) or tuple(sorted(repository.tests))
        return None if bug is None or weaken is None else Artifact(oracle, bug, weaken)

    def render_answer(self, repository: Repository, artifact: Artifact) -> str:
        broken = apply_edits(repository.code, artifact.bug)
        return render_blocks(broken, {path: repository.code[path] for path in artifact.bug})

    def describe(self) -> dict[str, object]:
        sizes = {split: len(self.get_pool(split)) for split in SPLITS}
        return {"repositories": len(self.repositories), "made-up bugs": sizes, "isolation": self.runner.sandbox.level}
