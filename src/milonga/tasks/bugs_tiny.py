"""Tiny repositories: a few files of one line each, tests as pairs of input and value, and earlier versions of every line.

A file `b` with the line `a*2` is a function of `x` that calls the file `a`; a test `b4` says what it gives for 4. Lines are
expressions of Milonga's own interpreter, so that everything here is exact, total and deterministic. In texts:

    a=x+3;b=a*3|b1=8 b4=14                  what a solver sees: the broken files, and the tests that were removed
    a=x+3|x+5|x*2@027;b=a*2|a*3|a-1@148     what an injector sees: files, earlier versions, inputs of tests
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from milonga.randomness import keyed_rng
from milonga.sandbox.values import decode
from milonga.tasks.base import assign_split
from milonga.tasks.bugs_checks import (
    Artifact,
    Bug,
    Edits,
    Files,
    Injection,
    Report,
    Repositories,
    Repository,
    Requirements,
    Runner,
    apply_edits,
    check_bug,
)
from milonga.tasks.expressions import evaluate
from milonga.types import Split

NAMES = "abcdef"
INPUTS = range(10)
LARGEST = 99
"""Values of functions are small: two digits and a sign."""
OPERATIONS = "+-*"
TERM = r"(?:x|[a-f]|[1-9][0-9]?)"
LINE = re.compile(rf"{TERM}(?:[+*-]{TERM}){{0,3}}")
"""Every line of such a repository, whoever wrote it."""
TEST = re.compile(r"([0-9])=(-?[0-9]{1,6})")
EDIT = re.compile(r"([a-f])=(.*)")
REMOVED = re.compile(r"([a-f])([0-9]+)")
PREFIX = "test_"
TRIES = 60
"""Bugs that are drawn for one repository before another is taken."""


@dataclass(frozen=True)
class Shape:
    """The sizes of repositories and bugs."""

    functions: int
    ops: int
    tests: int
    least_changed: int
    most_changed: int
    seed: int


class TinyRunner(Runner):
    """Runs tests by the interpreter. Nothing in a tree can reach it."""

    def run(self, trees: Sequence[Files], oracle: Sequence[str]) -> list[Report | None]:
        return [run_tests(tree, oracle) for tree in trees]

    def perturb_code(self, code: Files) -> dict[str, str]:
        return {path: f" {line} " for path, line in code.items()}


def run_tests(tree: Files, oracle: Sequence[str]) -> Report | None:
    """Run every test of the oracle files; None if one of the files cannot be parsed."""
    code = {path: line for path, line in tree.items() if not path.startswith(PREFIX)}
    found: dict[str, bool] = {}
    for path in oracle:
        tests = parse_tests(tree.get(path, ""))
        if tests is None:
            return None
        name = path.removeprefix(PREFIX)
        found |= {f"{name}{x}": evaluate_code(code, x).get(name) == wanted for x, wanted in tests.items()}
    return found


def parse_tests(content: str) -> dict[int, int] | None:
    """Parse a test file into {input: expected value}; None if a line is invalid."""
    lines = [TEST.fullmatch(line) for line in content.splitlines()]
    return {int(line[1]): int(line[2]) for line in lines if line} if all(lines) else None


def evaluate_code(code: Files, x: int) -> dict[str, int]:
    """Evaluate each function at `x`; a function that fails, or calls one that does, is missing."""
    known = {"x": x}
    for name in sorted(code):
        line = code[name].strip()
        value = _evaluate_line(line, tuple((term, known[term]) for term in known if term in line))
        if value is not None:
            known[name] = value
    return known


@lru_cache(maxsize=1 << 16)
def _evaluate_line(line: str, known: tuple[tuple[str, int], ...]) -> int | None:
    found = evaluate(line, dict(known))
    value = None if found.value is None else decode(found.value)
    return value if type(value) is int else None


# Texts.


def render_lines(code: Files) -> str:
    return ";".join(f"{name}={line}" for name, line in sorted(code.items()))


def parse_edits(text: str) -> dict[str, str] | None:
    """Parse edits such as `b=a*2;c=b-x`; None unless each is a line of the language and none is there twice."""
    found: dict[str, str] = {}
    for piece in text.split(";"):
        edit = EDIT.fullmatch(piece.strip())
        if edit is None or LINE.fullmatch(edit[2]) is None or edit[1] in found:
            return None
        found[edit[1]] = edit[2]
    return found


def parse_removed_tests(text: str, tests: Files) -> Edits | None:
    """Parse test names such as `b14 c0` into test files without them. An unknown test becomes an edit of a missing file."""
    found: dict[str, str] = dict(tests)
    for piece in text.split():
        group = REMOVED.fullmatch(piece)
        if group is None:
            return None
        path = PREFIX + group[1]
        for x in group[2]:
            line = next((line for line in found.get(path, "").splitlines() if line.startswith(f"{x}=")), None)
            if line is None:
                return {f"{path}/{x}": None}
            found[path] = "\n".join(kept for kept in found[path].splitlines() if kept != line)
    return {path: content for path, content in found.items() if content != tests[path]}


def render_test_ids(ids: Sequence[str]) -> str:
    """Render test ids, grouped by function."""
    grouped: dict[str, str] = {}
    for id in sorted(ids):
        grouped[id[0]] = grouped.get(id[0], "") + id[1:]
    return " ".join(name + inputs for name, inputs in grouped.items())


def find_removed_tests(tests: Files, weaken: Edits) -> dict[str, int]:
    """Find the tests that a weakening removes, with their expected values."""
    gone: dict[str, int] = {}
    for path, content in sorted(weaken.items()):
        before, after = parse_tests(tests[path]) or {}, parse_tests(content or "") or {}
        gone |= {f"{path.removeprefix(PREFIX)}{x}": value for x, value in sorted(before.items()) if x not in after}
    return gone


# Made up.


def _draw_repository(rng: random.Random, shape: Shape, split: Split) -> Repository:
    """Draw a repository of this split: no function is constant, values have at most two digits, some call others."""
    code: dict[str, str] = {}
    while not code or assign_split(render_lines(code)) != split or not _is_good(code):
        code = {}
        for name in NAMES[: shape.functions]:
            code[name] = _draw_line(rng, sorted(code), rng.randint(1, shape.ops))
    history = {name: _draw_versions(line, NAMES[: NAMES.index(name)], rng) for name, line in code.items()}
    suites = {PREFIX + name: sorted(rng.sample(INPUTS, shape.tests)) for name in code}
    wanted = {
        path: [f"{x}={evaluate_code(code, x)[path.removeprefix(PREFIX)]}" for x in inputs] for path, inputs in suites.items()
    }
    return Repository(render_lines(code), code, {path: "\n".join(lines) for path, lines in wanted.items()}, history)


def _draw_line(rng: random.Random, earlier: Sequence[str], ops: int) -> str:
    first = rng.choice(earlier) if earlier and rng.random() < 0.7 else "x"
    return first + "".join(rng.choice(OPERATIONS) + _draw_term(rng, earlier) for _ in range(ops))


def _draw_first_term(rng: random.Random, earlier: Sequence[str]) -> str:
    return rng.choice(["x", *earlier, str(rng.randint(1, 9))])


def _draw_term(rng: random.Random, earlier: Sequence[str]) -> str:
    return rng.choice(["x", *earlier]) if rng.random() < 0.3 else str(rng.randint(1, 9))


def _is_good(code: Files) -> bool:
    table = [evaluate_code(code, x) for x in INPUTS]
    return all(len({row[name] for row in table}) > 1 and max(abs(row[name]) for row in table) <= LARGEST for name in code)


def _draw_versions(line: str, earlier: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    """Draw two earlier versions, different from the line and from each other."""
    found: list[str] = []
    while len(found) < 2:
        other = mutate_line(line, earlier, rng)
        if other not in (line, *found):
            found.append(other)
    return tuple(found)


def mutate_line(line: str, earlier: Sequence[str], rng: random.Random) -> str:
    """Mutate a line: another operation or another operand."""
    pieces = re.findall(rf"{TERM}|[+*-]", line)
    at = rng.randrange(len(pieces))
    old = pieces[at]
    draw = _draw_term if at else _draw_first_term
    while pieces[at] == old:
        pieces[at] = rng.choice(OPERATIONS) if old in OPERATIONS else draw(rng, earlier)
    return "".join(pieces)


def _shorten_line(line: str) -> str | None:
    """Drop the last operation of a line; None if it has none."""
    head = re.fullmatch(rf"(.*)[+*-]{TERM}", line)
    return head[1] if head else None


Way = Callable[[Repository, str, random.Random], str | None]
WAYS: Mapping[str, Way] = {
    "removal": lambda repository, name, rng: _shorten_line(repository.code[name]),
    "history": lambda repository, name, rng: rng.choice(repository.history[name]),
    "direct": lambda repository, name, rng: mutate_line(repository.code[name], NAMES[: NAMES.index(name)], rng),
}
"""How a bug is put into a line; the prompts of an injector by the same names."""


def draw_edits(repository: Repository, way: str, count: int, rng: random.Random) -> dict[str, str]:
    """Draw edits of `count` files in this way."""
    names = sorted(rng.sample(sorted(repository.code), count))
    return {name: line for name in names if (line := WAYS[way](repository, name, rng)) is not None}


def hide_bug(repository: Repository, bug: Mapping[str, str], rng: random.Random) -> Artifact:
    """Make an artifact: the edits, and the removal of some tests that they break; it may not be a valid bug."""
    names, oracle = sorted(bug), tuple(sorted(repository.tests))
    report = run_tests({**repository.tree, **bug}, oracle) or {}
    broken = [id for id, passed in report.items() if not passed]
    rng.shuffle(broken)
    own = [[id for id in broken if id[0] == name][:2] for name in names]
    chosen = [id for some in own for id in some] or broken[:2]
    return Artifact(oracle, bug, parse_removed_tests(render_test_ids(chosen), repository.tests) or {})


class TinyRepositories(Repositories):
    """Repositories that are made up. A repository is of one split by its lines, and so are the lines of a bug."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.runner = TinyRunner()

    def make_bug(self, split: Split, index: int) -> Bug:
        shape, rng = self.shape, keyed_rng("bugs", self.shape, split, index)
        while True:
            repository = _draw_repository(rng, shape, split)
            for _ in range(TRIES):
                count = rng.randint(shape.least_changed, shape.most_changed)
                edits = draw_edits(repository, rng.choice(sorted(WAYS)), count, rng)
                if self.find_split(apply_edits(repository.code, edits)) != split:
                    continue
                artifact = hide_bug(repository, edits, rng)
                verdict = check_bug(repository, artifact, self.runner, Requirements())
                if verdict.failed is None:
                    return Bug(repository, artifact, verdict)

    def find_split(self, code: Files) -> Split:
        return assign_split(render_lines(code))

    def render_for_solver(self, start: Files, repository: Repository, artifact: Artifact) -> str:
        code = {path: line for path, line in start.items() if path in repository.code}
        removed = find_removed_tests(repository.tests, artifact.weaken)
        return f"{render_lines(code)}|{' '.join(f'{id}={value}' for id, value in removed.items())}"

    def render_for_injector(self, repository: Repository) -> str:
        shown = []
        for name, line in sorted(repository.code.items()):
            inputs = "".join(str(x) for x in sorted(parse_tests(repository.tests[PREFIX + name]) or {}))
            shown.append(f"{name}={'|'.join((line, *repository.history[name]))}@{inputs}")
        return ";".join(shown)

    def parse_patch(self, text: str, start: Files) -> Edits | None:
        return parse_edits(text)

    def parse_artifact(self, repository: Repository, injection: Injection) -> Artifact | None:
        bug, weaken = parse_edits(injection.bug), parse_removed_tests(injection.weaken, repository.tests)
        return None if bug is None or weaken is None else Artifact(tuple(sorted(repository.tests)), bug, weaken)

    def render_answer(self, repository: Repository, artifact: Artifact) -> str:
        return render_lines({path: repository.code[path] for path in artifact.bug})
