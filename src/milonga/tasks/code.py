"""Function synthesis with hidden tests: a function is told in words, and the answer is a program.

In the dialect `tiny` a program is one expression of Milonga's own interpreter; the steps of a solution are its pieces, and each
has an exact truth. In the dialect `python` it is real Python, which runs in the sandbox alone. Functions are made up by a
generator, or come from a file. A program is right if it gives what every hidden test expects. What that is never reaches a
program, but for assertions of a file that are no call with literals and must run as they are.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence, Set
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from milonga.errors import ConfigError, DataError, suggest_name
from milonga.randomness import keyed_rng
from milonga.sandbox import Level, Limits, is_same_value
from milonga.sandbox.values import Canonical
from milonga.tasks.base import (
    DEMONSTRATIONS,
    TASKS,
    Capability,
    Demonstration,
    Task,
    TaskOptions,
    assign_split,
    normalise_text,
)
from milonga.tasks.code_data import FunctionParser, FunctionRow, Test, render_test
from milonga.tasks.code_python import PythonRunner, Ran, build_source, find_blocks
from milonga.tasks.code_questions import ENTRY, PROGRAM, parse_output, plan_run, rename_function
from milonga.tasks.code_tests import judge_outcomes, plan_programs
from milonga.tasks.code_words import (
    FAMILIES,
    Row,
    call_program,
    draw_arguments,
    draw_row,
    has_same_meaning,
    render_arguments,
    render_value,
)
from milonga.tasks.rows import Row as FileRow
from milonga.tasks.splits import Splits, make_splits
from milonga.types import SPLITS, Grade, Problem, Split

MOST_WORDS = 8
MOST_DRAWS = 2000
"""Functions that are drawn before giving up on a split: only a handful of texts can miss a tenth of all so often."""
HELD_OUT: tuple[Split, ...] = ("dev", "test")
SCANNED = 40
"""Functions of a held-out split that are looked at for each whose right program is held out too; of those that are made up
about a tenth are."""
TRIES = 200
"""Calls that are drawn for the tests of one function."""
FILE_OPTIONS, FILE_OPTIONS_BEFORE = '"dev":null,"test":null', '"dev_share":0.1,"test_share":0.1'
"""Options of a file, now and when results were published. The key of made-up functions keeps the latter: they stay the same."""


class CodeOptions(TaskOptions):
    dialect: Literal["tiny", "python"] = "tiny"
    """tiny: an expression, for the embedded model. python: a function in real Python, run in the sandbox."""
    level: int = Field(3, ge=1, le=MOST_WORDS)
    """The number of words in the row that says what a function does; the largest one where `min_level` is given."""
    min_level: int | None = Field(None, ge=1)
    """Draw the number of words from min_level to level."""
    families: list[str] = Field(default_factory=lambda: list(FAMILIES))
    """Shapes of functions to draw from."""
    hidden: int = Field(8, ge=1, le=64)
    """Hidden tests of a function."""
    seed: int = 0
    """Keys the functions and their tests, or the order of those of a file."""
    path: str | None = None
    """A file of functions instead of made-up ones (.jsonl, .json, .csv or .parquet), in our own form or in that of MBPP,
    HumanEval or LiveCodeBench; for the dialect python."""
    dev_path: str | None = None
    """A file with the dev split; without it the published one, or a part of `path`."""
    test_path: str | None = None
    """A file with the test split; without it the published one, or a part of `path`."""
    dev: int | None = Field(None, ge=0)
    """Functions of `path` that become the dev split, where it has none; by default about 5 % of them, 16 to 512, and never more
    than a quarter."""
    test: int | None = Field(None, ge=0)
    """Functions that become the test split; by default as many."""
    prompt: str = "prompt"
    """The field of a line that holds what is asked for."""
    entry_point: str = "entry_point"
    """The field with the name of the function."""
    tests: str = "tests"
    """The field with the tests: data, assertions, or a piece of Python with assertions."""
    solution: str = "canonical_solution"
    """The field with a right program, where there is one; it measures tests, and is never shown."""
    unreadable: Literal["error", "skip"] = "error"
    """What to do about tests that are no call with literals and a literal: stop, or leave them out. Those of MBPP and HumanEval
    run as they are, unless they are left out."""
    show_tests: int = Field(1, ge=0)
    """Tests of MBPP's form that the prompt shows; other forms show none but what their prompts hold."""
    tolerance: float | None = Field(None, gt=0, lt=1)
    """Floats that differ by less, relatively, are equal."""
    isolation: Level = "isolated"
    """What Python programs run in; see the page of the sandbox."""
    allow_weak_isolation: bool = False
    """Go on where that isolation is not to be had. Only on a machine that you can throw away."""
    cpu_s: float = Field(1.0, gt=0, le=600)
    """Processor time of a program with all its calls."""
    max_tokens: int | None = Field(None, ge=1)
    """Limit of a solution; by default what a row of so many words needs, and 1024 in Python."""

    @field_validator("families")
    @classmethod
    def _known(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in FAMILIES:
                raise ValueError(f"there is no family '{name}': {suggest_name(name, FAMILIES)}")
        if not names:
            raise ValueError("no family is left to draw from")
        return names

    @model_validator(mode="after")
    def _from_files(self) -> CodeOptions:
        if self.dialect == "tiny" and self.path is not None:
            raise ValueError("functions of a file are written in Python: set dialect=python")
        if self.path is None and (self.dev_path, self.test_path, self.dev, self.test) != (None,) * 4:
            raise ValueError("functions are held out of a file, and a file of them needs one to train on: set path")
        return self

    @model_validator(mode="after")
    def _possible(self) -> CodeOptions:
        if self.min_level is not None and self.min_level > self.level:
            raise ValueError(f"min_level={self.min_level} is larger than level={self.level}")
        least = min(FAMILIES[name].least for name in self.families)
        if (self.min_level or self.level) < least:
            raise ValueError(f"functions of these families have at least {least} words")
        return self


@TASKS.register("code")
class Code(Task):
    """Functions to be written, in a tiny dialect or in Python; difficulty is the number of words that tell one."""

    name = "code"
    base = "code"
    Options = CodeOptions
    options: CodeOptions

    def __init__(self, options: CodeOptions | None = None) -> None:
        super().__init__(options)
        o = self.options
        self.tiny = o.dialect == "tiny"
        self.knows_steps = self.tiny
        self.max_tokens = o.max_tokens or (24 * o.level + 40 if self.tiny else 1024)
        self.runner = PythonRunner(Limits(cpu_s=o.cpu_s, wall_s=max(5.0, 5 * o.cpu_s)), o.isolation, o.allow_weak_isolation)
        self.rows = _load_file_rows(o) if o.path is not None else None
        self.order = (
            {} if self.rows is None else {split: _shuffle_order(self.rows.rows[split], o.seed, split) for split in SPLITS}
        )

    def make_ready(self) -> None:
        """Start the sandbox where Python is to run: what is missing is said before anything is trained."""
        if not self.tiny:
            self.runner.start()

    def describe(self) -> dict[str, Any]:
        about: dict[str, Any] = {}
        if not self.tiny:
            box = self.runner.sandbox
            about["isolation"] = box.level + (f" ({box.weaker_because})" if box.weaker_because else "")
        if self.rows is not None:
            about |= {"sizes": {split: self.size(split) for split in SPLITS}, "overlaps_removed": dict(self.rows.overlaps)}
        return about

    def size(self, split: Split) -> int | None:
        return None if self.rows is None else len(self.rows.rows[split])

    def holds_out_program(self, program: str, split: Split | None = None) -> bool:
        """Whether a program is kept for measuring: in one held-out split, or in any. Of made-up functions the hash of its text
        says so; of those of a file, whether a function that is held out has it as its right program."""
        splits = HELD_OUT if split is None else (split,)
        if self.rows is None:
            return assign_split(program) in splits
        return any(normalise_text(program) in self._right_programs[split] for split in splits)

    def find_held_out_functions(self, split: Split, count: int) -> list[Problem]:
        """Find `count` functions of a held-out split whose right program is held out too; fewer, where there are no more."""
        size, most = self.size(split), SCANNED * count
        problems = (self.problem(split, index) for index in range(most if size is None else min(size, most)))
        return list(islice((one for one in problems if one.answer and self.holds_out_program(one.answer, split)), count))

    @cached_property
    def _right_programs(self) -> dict[Split, frozenset[str]]:
        """The normalised right programs of each held-out split of a file: as they are, and as a proposer would name them."""
        assert self.rows is not None
        found: dict[Split, frozenset[str]] = {}
        for split in HELD_OUT:
            rows = [row for row in self.rows.rows[split] if isinstance(row, FunctionRow)]
            programs = [text for row in rows for text in (row.answer, rename_function(row.before + row.answer, row.entry))]
            found[split] = frozenset(normalise_text(text) for text in programs if text)
        return found

    @property
    def levels(self) -> tuple[int, ...]:
        if self.rows is not None:
            return ()
        least = min(FAMILIES[name].least for name in self.options.families)
        return tuple(range(max(least, self.options.min_level or 1), self.options.level + 1))

    def at_level(self, level: int) -> Task:
        return type(self)(self.options.model_copy(update={"min_level": None, "level": level}))

    def make_harder(self) -> Task | None:
        level = min(MOST_WORDS, 2 * self.options.level)
        return self.at_level(level) if level > self.options.level and self.rows is None else None

    def problem(self, split: Split, index: int) -> Problem:
        if self.rows is not None:
            return self._make_file_problem(self.rows.rows[split], split, index)
        key = self.options.model_dump_json(exclude={"show_tests"}).replace(FILE_OPTIONS, FILE_OPTIONS_BEFORE)
        rng = keyed_rng("code", key, split, index)
        for _ in range(MOST_DRAWS):
            count = rng.randint(self.options.min_level or self.options.level, self.options.level)
            fitting = [name for name in self.options.families if FAMILIES[name].least <= count]
            row = draw_row(rng.choice(fitting), count, rng)
            calls = _draw_tests(row, self.options.hidden + 1, rng) if assign_split(row.text) == split else None
            if calls is not None:
                return (make_problem if self.tiny else _make_python_problem)(row, f"code/{split}/{index}", calls)
        raise ConfigError(f"task 'code' made no {split} function in {MOST_DRAWS} tries; give it more families or levels")

    def _make_file_problem(self, rows: Sequence[FileRow], split: Split, index: int) -> Problem:
        if not rows:
            raise DataError(f"task 'code' has no {split} functions; name a file for them, or raise task.{split}")
        row = rows[self.order[split][index % len(rows)]]
        assert isinstance(row, FunctionRow)
        others = {"checks": row.checks, "printed": row.printed, "before": row.before, "columns": row.columns}
        others |= PROGRAM
        data = _make_test_data(row.entry, row.public, row.tests) | others
        return Problem(f"code/{split}/{row.number}", row.question + row.note, row.answer, data)

    def run_programs(
        self, items: Sequence[tuple[Problem, str, Sequence[Sequence[Any]]]], twice: bool = False, apart: bool = False
    ) -> list[Ran | None]:
        """Run programs on calls with these arguments; None if the sandbox could not tell.

        With `twice` a program that does not do the same in another process gives nothing; the tiny dialect cannot differ. With
        `apart` a call that goes beyond a limit takes no other with it.
        """
        if self.tiny:
            return [
                tuple(call_program(program, problem.data["signature"], call) for call in calls)
                for problem, program, calls in items
            ]
        sources = [build_source(problem, program) for problem, program, _ in items]
        calls = [(problem.data["entry"], tuple(map(tuple, given))) for problem, _, given in items]
        return self.runner.run_programs([(source, *call) for source, call in zip(sources, calls, strict=True)], twice, apart)

    def draw_extra_calls(self, problem: Problem, count: int) -> list[tuple[Any, ...]]:
        """Draw calls beyond the hidden tests, to see whether these were enough; none if the function comes from a file."""
        if self.rows is not None:
            return []
        rng = keyed_rng("further", problem.id, problem.text)
        signature = restore_row(problem).signature
        return [draw_arguments(signature, rng) for _ in range(count)]

    def is_equal(self, one: Canonical | None, other: Canonical) -> bool:
        """Whether a program's output equals the expected one."""
        numeric = self.rows is not None  # tests of files mean Python's own equality, by which 1 is 1.0
        return one is not None and is_same_value(one, other, numeric=numeric, tolerance=self.options.tolerance)

    def extract(self, text: str, problem: Problem) -> str | None:
        """Extract the last block of Python that defines the function; the last of all, if none does."""
        blocks = [] if self.tiny or "asks" in problem.data else find_blocks(text)
        named = [block for block in blocks if f"def {problem.data['entry']}(" in block]
        return next(reversed(named or blocks), None)

    def run_hidden_tests(
        self, items: Sequence[tuple[Problem, str | None]], apart: bool = False
    ) -> list[tuple[bool, ...] | None]:
        """Run the hidden tests; one bool per test, None if the sandbox could not tell. A missing program passes none.

        For a question about a program: whether its answer is right. `apart`, as for `run_programs`: for who counts the tests
        that pass, rather than asking whether all do.
        """
        called, others = self._run_calls(items, apart), self._run_other_tests(items)
        return [None if one is None or other is None else one + other for one, other in zip(called, others, strict=True)]

    def _run_calls(self, items: Sequence[tuple[Problem, str | None]], apart: bool) -> list[tuple[bool, ...] | None]:
        """Run the hidden tests that are calls."""
        runs = [plan_run(problem, answer) for problem, answer in items]
        results = iter(self.run_programs([run for run in runs if run is not None and run[2]], apart=apart))
        out: list[tuple[bool, ...] | None] = []
        for (problem, answer), run in zip(items, runs, strict=True):
            if run is None:
                out.append((self.is_equal(parse_output(problem, answer), problem.data["outputs"][0]),))
                continue
            found = next(results) if run[2] else ()
            wanted = problem.data["outputs"]
            out.append(None if found is None else tuple(self.is_equal(*pair) for pair in zip(found, wanted, strict=True)))
        return out

    def _run_other_tests(self, items: Sequence[tuple[Problem, str | None]]) -> list[tuple[bool, ...] | None]:
        """Run the hidden tests that are no calls, all in one batch; only functions of a file have any."""
        if self.rows is None:
            return [() for _ in items]
        planned = [plan_programs(problem, build_source(problem, answer or "")) for problem, answer in items]
        outcomes = iter(self.runner.run([program for programs in planned for program in programs]))
        return [
            judge_outcomes(problem, [next(outcomes) for _ in programs], self.options.tolerance)
            for (problem, _), programs in zip(items, planned, strict=True)
        ]

    def grade(self, problem: Problem, answer: str | None, steps: Sequence[str]) -> Grade:
        return self.grade_all([(problem, answer, steps)])[0]

    def grade_all(self, items: Sequence[tuple[Problem, str | None, Sequence[str]]]) -> list[Grade]:
        """Extra steps are wrong; a solution that leaves words out is wrong in its last step, where it stops."""
        passed = self.run_hidden_tests([(problem, answer) for problem, answer, _ in items])
        return [
            Grade(None if right is None else all(right), self._grade_steps(problem, steps))
            for (problem, _, steps), right in zip(items, passed, strict=True)
        ]

    def _grade_steps(self, problem: Problem, steps: Sequence[str]) -> tuple[bool, ...] | None:
        if not self.tiny or "slots" not in problem.data:  # the latter: it was not made of words
            return None
        right = restore_row(problem).derive_pieces(steps)
        truth = [k < len(right) and has_same_meaning(step, right[k]) for k, step in enumerate(steps)]
        if truth and len(steps) < len(right):
            truth[-1] = False
        return tuple(truth)

    def redo_steps(self, problem: Problem, steps: Sequence[str]) -> tuple[str, ...]:
        right = restore_row(problem).derive_pieces(steps)
        return tuple([*right, *[""] * len(steps)][: len(steps)])

    @property
    def offers(self) -> Set[Capability]:
        return super().offers if self.rows is None else super().offers - {DEMONSTRATIONS}

    def step_count(self, problem: Problem) -> int:
        return len(problem.data["slots"])

    def demonstrate(self, problem: Problem, rng: random.Random, errors: Collection[int] = ()) -> Demonstration:
        row = restore_row(problem)
        steps: list[str] = []
        for k in range(len(row.slots)):
            steps.append(row.draw_wrong_piece(k, steps, rng) if k in errors else row.derive_pieces(steps)[k])
        answer = row.build_program(steps) if self.tiny else _render_python(row.signature, row.build_program(steps))
        truth = tuple(k not in errors for k in range(len(steps)))
        correct = self.grade(problem, answer, ()).correct is True
        return Demonstration(tuple(steps), truth, tuple(row.derive_pieces(steps)), answer, correct)


def _draw_tests(row: Row, count: int, rng: random.Random) -> list[tuple[tuple[Any, ...], Canonical]] | None:
    """Draw different calls with their results; None if the function fails too often or has too few distinct results."""
    program = row.build_program(row.right_pieces())
    found: dict[str, tuple[tuple[Any, ...], Canonical]] = {}
    for _ in range(TRIES):
        arguments = draw_arguments(row.signature, rng)
        value = call_program(program, row.signature, arguments)
        if value is not None:
            found.setdefault(render_arguments(arguments), (arguments, value))
        if len(found) == count:
            break
    distinct = {value for _, value in found.values()}
    return list(found.values()) if len(found) == count and len(distinct) >= min(3, count) else None


def make_problem(row: Row, id: str, calls: Sequence[tuple[tuple[Any, ...], Canonical]]) -> Problem:
    """Make a problem from a row; the first call is public, the others are hidden tests."""
    (public, value), hidden = calls[0], calls[1:]
    told = {"signature": row.signature, "public": f"{render_arguments(public)}={render_value(value)}"}
    return Problem(
        id, row.text, row.build_program(row.right_pieces()), _serialise_row(row) | _make_test_data("", "", hidden) | told
    )


def _make_python_problem(row: Row, id: str, calls: Sequence[tuple[tuple[Any, ...], Canonical]]) -> Problem:
    """Make the same problem for the Python dialect."""
    head = f"{ENTRY}({', '.join(row.signature)})"
    text = f"Write a Python function `{head}`. {row.render_english()}"
    return Problem(
        id,
        text,
        _render_python(row.signature, row.build_program(row.right_pieces())),
        _serialise_row(row) | _make_test_data(ENTRY, render_test(ENTRY, calls), calls[1:]) | PROGRAM,
    )


def _render_python(signature: str, expression: str) -> str:
    return f"def {ENTRY}({', '.join(signature)}):\n    return {expression}"


def _serialise_row(row: Row) -> dict[str, Any]:
    return {"family": row.family, "slots": [list(slot) for slot in row.slots]}


def _make_test_data(entry: str, public: str, hidden: Sequence[Test]) -> dict[str, Any]:
    """Make the problem data of a function's tests; the public one may be shown."""
    return {
        "entry": entry,
        "public": public,
        "inputs": [list(given) for given, _ in hidden],
        "outputs": [output for _, output in hidden],
    }


def _shuffle_order(rows: Sequence[FileRow], seed: int, split: Split) -> list[int]:
    order = list(range(len(rows)))
    keyed_rng("order", "code", seed, split).shuffle(order)
    return order


def _load_file_rows(options: CodeOptions) -> Splits:
    """Load the functions of the files, in disjoint splits. Where splits were published, every function stays in its own."""
    o = options
    assert o.path is not None
    parser = FunctionParser(
        o.prompt, o.entry_point, o.tests, o.solution, o.unreadable == "skip", hidden=o.hidden, show_tests=o.show_tests
    )
    paths: dict[Split, str | None] = {"train": o.path, "dev": o.dev_path, "test": o.test_path}
    files = {path: parser.read_file(Path(path)) for path in paths.values() if path is not None}
    own: dict[Split, list[FunctionRow]] = {}
    for split, path in paths.items():
        rows = files[path or o.path]
        found = [row for row in rows if row.published_split == split or (path and row.published_split is None)]
        if found or path:
            own[split] = found
    return make_splits("code", own, o.dev, o.test)


def restore_row(problem: Problem) -> Row:
    return Row(problem.data["family"], tuple((track, text) for track, text in problem.data["slots"]))


def get_code_task(task: Task) -> Code:
    """Return the task as the code task that it is, for recipes that take no other."""
    assert isinstance(task, Code)
    return task
