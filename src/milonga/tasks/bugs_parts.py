"""Parts of repositories that fit into a prompt: a file of tests, and the code that it imports.

Invariants: a part has the whole tree of its repository; what it does not show is `rest`, which nobody may change. What a part
shows, code and tests together, has at most so many characters. Parts are a pure function of the files.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Literal

from milonga.tasks.bugs_checks import Files, Repository, select_files
from milonga.tasks.bugs_patches import parse_source

ROOTS = ("", "src/")
"""Folders that modules are imported from."""
TESTS = ("test_*.py", "*_test.py")
Category = Literal["code", "tests", "rest"]


def choose_category(path: str) -> Category:
    """Choose the category of a path. Tests have pytest's names; other files among them (fixtures, data) are `rest`."""
    name, parents = PurePosixPath(path).name, PurePosixPath(path).parts[:-1]
    if any(fnmatch(name, pattern) for pattern in TESTS):
        return "tests"
    among = any(part in ("test", "tests") for part in parents)
    return "code" if name.endswith(".py") and not among and name not in ("conftest.py", "setup.py") else "rest"


def split_repository(repository: Repository, room: int) -> list[Repository]:
    """Split a repository into parts that each show at most `room` characters of code and tests; one part if all of it fits.

    A part begins with one file of tests. Then comes the code that it imports, then what that imports, the smallest files first;
    then other files of tests that need no other code. Tests that no code fits beside are in no part.
    """
    if _measure(repository.code) + _measure(repository.tests) <= room:
        return [repository]
    modules = name_modules(repository.code)
    imports = {path: _find_imports(path, text, modules) for path, text in {**repository.code, **repository.tests}.items()}
    found: dict[tuple[frozenset[str], frozenset[str]], Repository] = {}
    for path in sorted(repository.tests, key=lambda path: len(repository.tests[path])):
        left = room - len(repository.tests[path])
        code = _choose_fitting(_walk_imports(path, imports, repository.code), repository.code, left)
        left -= _measure(select_files(repository.code, code))
        others = sorted(repository.tests.keys() - {path}, key=lambda other: (len(repository.tests[other]), other))
        fitting = [other for other in others if imports[other] and imports[other] <= code.keys()]
        tests = {path: "", **_choose_fitting(iter(fitting), repository.tests, left)}
        if code:
            found.setdefault((frozenset(code), frozenset(tests)), _show_part(repository, code, tests))
    return list(found.values())


def _show_part(repository: Repository, code: Files, tests: Files) -> Repository:
    """Make the part of a repository that shows these files of code and tests."""
    own, suites = select_files(repository.code, code), select_files(repository.tests, tests)
    rest = {path: text for path, text in repository.tree.items() if path not in own and path not in suites}
    return Repository(f"{repository.name}:{next(iter(tests))}", own, suites, repository.history, rest)


def _measure(files: Files) -> int:
    return sum(map(len, files.values()))


def _choose_fitting(paths: Iterator[str], files: Files, room: int) -> dict[str, str]:
    """Choose the files that fit into what is left of the room, in their order."""
    chosen: dict[str, str] = {}
    for path in paths:
        if len(files[path]) <= room:
            chosen[path] = files[path]
            room -= len(files[path])
    return chosen


def _walk_imports(start: str, imports: Mapping[str, set[str]], code: Files) -> Iterator[str]:
    """Walk from a file to what it imports, and to what that imports, and so on: the nearest first, of these the smallest."""
    seen, level = {start}, {start}
    while level:
        level = {path for source in level for path in imports[source]} - seen
        seen |= level
        yield from sorted(level, key=lambda path: (len(code[path]), path))


def name_modules(code: Files) -> dict[str, str]:
    """Map the names under which files of code can be imported to their paths."""
    found: dict[str, str] = {}
    for path in sorted(code):
        for root in ROOTS:
            if path.startswith(root):
                parts = PurePosixPath(path.removeprefix(root)).with_suffix("").parts
                found.setdefault(".".join(parts[:-1] if parts[-1] == "__init__" else parts), path)
    return found


def _find_imports(path: str, text: str, modules: Mapping[str, str]) -> set[str]:
    """Find the files of code that a file imports, wherever in it. A package stands for its `__init__.py`."""
    tree = parse_source(text)
    names: set[str] = set()
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = _resolve_relative(path, node)
            names |= {base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)}
    return {modules[name] for name in names if name in modules} - {path}


def _resolve_relative(path: str, node: ast.ImportFrom) -> str:
    """Return the full name of the module that names are imported from."""
    if not node.level:
        return node.module or ""
    inside = next(path.removeprefix(root) for root in reversed(ROOTS) if path.startswith(root))
    parts = PurePosixPath(inside).parts[: -node.level]
    return ".".join([*parts, *([node.module] if node.module else [])])
