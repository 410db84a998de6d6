"""Every reader of text that a model wrote, and hostile texts for them. Shared by the tests and by `soak_readers.py`.

Nothing is listed by hand that can be found: readers are the concrete subclasses of `Role` in every dialect, the tasks of the
registry, and the public functions of the layers below whose first argument is a text. A reader that needs something which is
not known here is an error that says so: it cannot be left out by forgetting it.
"""

from __future__ import annotations

import gc
import importlib
import inspect
import json
import pkgutil
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

import milonga.credit
import milonga.evals.suites.critic
import milonga.patterns
import milonga.roles
import milonga.systems
import milonga.tasks
import milonga.text
from milonga.roles import DIALECTS, Dialect, Role, StepSolver
from milonga.roles.grades import Scale
from milonga.tasks import TASKS, Task, make_task
from milonga.types import Grade, Problem, Rollout, Verification

LAYERS = (milonga.roles, milonga.tasks, milonga.systems, milonga.patterns, milonga.credit, milonga.text)
TEXTS = ("text", "message", "reply", "body", "answer", "conclusion", "worked", "one")
"""What the first argument of a reader is called."""
NO_READERS = {
    "milonga.tasks.code_words.corrupt_result": "reads values of its own",
}
"""Modules and functions whose arguments have such names, and which read no text of a model here."""
PROBLEM = Problem("p", "3+4%100", "7", {"start": 3, "chain": [("+", 4)], "mod": 100, "whole": "3+4%100"})
ARGUMENTS: dict[str, Any] = {
    "answer": "7",
    "count": 3,
    "dialect": "tagged",
    "entry": "f",
    "files": {"a.py": "x = 1\n"},
    "first": "think",
    "kind": "#",
    "label": True,
    "last": "final_verification",
    "levels": (0.0, 0.5, 1.0),
    "longest": 400,
    "most": 80,
    "most_similar": 0.7,
    "name": "input",
    "problem": PROBLEM,
    "question": "How many?",
    "scale": Scale(0, 5, 4.0),
    "second": "answer",
    "shown": ("What is 3 and 4?",),
    "tag": "step",
    "rng": random.Random(0),
    "tests": {"test_a.py": "1=2"},
    "thought_steps": False,
    "value": Verification((True, False), False),
    "words": ("CORRECT", "INCORRECT"),
}
"""What the other arguments of a reader are called, and a value for each."""
BY_TEXT = ("other",)
"""Arguments that a model writes too: they are given the same text."""


@dataclass(frozen=True)
class Reader:
    """A reader under its name: it returns something for every text, and never raises."""

    name: str
    read: Callable[[str], object]


def load_readers(folder: Path) -> list[Reader]:
    """Load all readers; files that tasks need are written to the folder."""
    modules = list(_import_modules())
    return [*_list_roles(), *_list_tasks(folder), *(reader for module in modules for reader in _list_functions(module))]


def _import_modules() -> Iterator[ModuleType]:
    for layer in LAYERS:
        yield layer
        for found in pkgutil.walk_packages(getattr(layer, "__path__", ()), f"{layer.__name__}."):
            yield importlib.import_module(found.name)


# ----------------------------------------------------------------------------------------------------------------- roles


def _list_roles() -> Iterator[Reader]:
    """List what each role reads: a completion against a solution with as many steps as the text
    has lines, or some more, and tool calls."""
    for kind in sorted(_find_roles(Role), key=lambda kind: (kind.__module__, kind.__name__)):
        for dialect in DIALECTS:
            role = kind(dialect)
            name = f"{kind.__module__.removeprefix('milonga.')}.{kind.__name__}/{dialect}"
            yield Reader(name, partial(parse_completion, role))
            if kind.parse_tool_call is not Role.parse_tool_call:
                yield Reader(f"{name}/tool", role.parse_tool_call)


def parse_completion(role: Role, text: str) -> object:
    """Parse a text by a role, against a solution where it judges one."""
    return role.parse(text, make_target(role.dialect, text.count("\n").bit_length()))


def _find_roles(kind: type[Role]) -> Iterator[type[Role]]:
    for one in kind.__subclasses__():
        if "name" in vars(one) and not inspect.isabstract(one) and one.__module__.startswith("milonga."):
            yield one
        yield from _find_roles(one)


@cache
def make_target(dialect: Dialect, bits: int) -> Rollout:
    """Make a solution of 2**bits steps for judges of it."""
    solver = StepSolver(dialect)
    written = solver.write(["3+4=7"] * 2**bits, "7")
    steps = solver.parse(written)
    return Rollout.from_text("s", "generator", PROBLEM, written, steps, Grade(True, (True,) * len(steps.value.steps)))


# ----------------------------------------------------------------------------------------------------------------- tasks


def make_tasks(folder: Path) -> dict[str, Task]:
    """Make a task of every name in the registry, small ones."""
    for split, start in (("train", 0), ("test", 100)):
        rows = [
            {"question": f"What are {n} and {n}?", "answer": f"{n} + {n} = {2 * n}\n#### {2 * n}"}
            for n in range(start, start + 40)
        ]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own: dict[str, dict[str, Any]] = {"jsonl": {"path": str(folder / "train.jsonl")}, "gsm8k": {"path": str(folder), "dev": 9}}
    # The hub's rows are read as those of a file are.
    return {name: make_task({"name": name, **own.get(name, {})}) for name in TASKS if name != "hub"}


def _list_tasks(folder: Path) -> Iterator[Reader]:
    for name, task in make_tasks(folder).items():
        problem = task.problem("train", 0)
        reads: dict[str, Callable[[str], object]] = {
            "extract": lambda text, task=task, problem=problem: task.extract(text, problem),  # type: ignore[misc]
            "steps": lambda text, task=task, problem=problem: task.grade(problem, "", text.split("\n")),  # type: ignore[misc]
            "votes": lambda text, task=task: task.group_equal_answers(text.split("\n")),  # type: ignore[misc]
            "is_step": task.is_step,
            "is_computation_right": task.is_computation_right,
        }
        yield from (Reader(f"tasks/{name}/{what}", read) for what, read in reads.items())


# ------------------------------------------------------------------------------------------------------------- functions


def _list_functions(module: ModuleType) -> Iterator[Reader]:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if function.__module__ != module.__name__ or name.startswith("_"):
            continue
        first, *rest = [*inspect.signature(function).parameters.values(), None]
        if first is None or first.name not in TEXTS or first.annotation not in ("str", "str | None"):
            continue
        place = f"{module.__name__}.{name}"
        if module.__name__ not in NO_READERS and place not in NO_READERS:
            yield Reader(place.removeprefix("milonga."), _bind_arguments(function, place, [p for p in rest if p is not None]))


def _bind_arguments(
    function: Callable[..., object], place: str, others: Sequence[inspect.Parameter]
) -> Callable[[str], object]:
    wanted = [p for p in others if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    for one in wanted:
        if one.name not in ARGUMENTS and one.name not in BY_TEXT:
            raise LookupError(f"{place} reads text: say in reader_attacks.ARGUMENTS what its argument '{one.name}' is")

    def read(text: str) -> object:
        found = function(text, *(text if one.name in BY_TEXT else ARGUMENTS[one.name] for one in wanted))
        return list(found) if isinstance(found, Iterator) else found

    return read


# ----------------------------------------------------------------------------------------------------------------- texts

WORDS = [
    "step_verification",
    "final_verification",
    "think",
    "step",
    "answer",
    "question",
    "input",
    "output",
    "program",
    "inputs",
]
WORDS += ["oracle", "bug", "weaken", "level", "search", "verdict", "analysis", "score"]
TAGS = [mark for word in WORDS for mark in (f"<{word}>", f"</{word}>")]
MARKS = [
    *"`~#*_=+-<>[](){}$\\'\",.:;!?/|&@%^ \t\n\r0aA",
    *(
        "```",
        "~~~",
        "```\n",
        "```python\n",
        "$$",
        "\\[",
        "\\]",
        "\\(",
        "\\begin{",
        "\\end{",
        "\\boxed{",
        "\\boxed{7}",
        "\\frac{",
    ),
    *("\\times ", "<<", ">>", "<<1+1=2>>", "\n\n", " \n", "\n ", "\r\n", "\u2028", "\u202e", "\u200b", "é", "٣", "²", "\x00"),
    *("1+1=2\n", "1 + ", "= ", "=\n", "1,", "1,000", "1.", "1. ", "1/2", "-1", "7\n", "#7\n", "=+\n", "+\n", "x+", "x+1\n"),
    *("Step 1: ", "Step 1: correct\n", "1. CORRECT\n", "CORRECT ", "incorrect\n", "not ", "the solution is correct\n"),
    *("Final verdict: ", "Score: 3\n", "score ", "3/5 ", "yes\n", "no ", "YES or NO\n", "[[A]]", "A or B\n", "level 1\n"),
    *("Answer: ", "the answer is (A) ", "FINAL ANSWER\n", "Question: x\n", "SEARCH: a\n", "Issue: step 1\n", "Evaluation:\n"),
    *("def f(x):\n", " return x\n", "assert f(1) == 2\n", "f(", "[1,", "'", "'a',", "n = 1\n", "# a\n", "input: ", "@a=\n"),
    *("a=b\n", "a1\n", "\n-", "\n!", "word ", "<think>\n", "the ", "REMOVE test_a\n", "SEARCH\n=======\n"),
]
PIECES = list(dict.fromkeys([*TAGS, *MARKS]))


def repeat_piece(piece: str, length: int) -> str:
    """Make a text of about so many characters."""
    return piece * (length // len(piece) + 1)


# ---------------------------------------------------------------------------------------------------------------- growth

STEEPEST = 1.6
"""Time grows with less than this power of the length: a linear reader does on a busy machine too, a quadratic one nowhere."""
FACTOR = 8
LENGTH = 1024
FLOOR = 1e-3
"""Seconds of processor time below which nothing can be told."""


@contextmanager
def no_collection() -> Iterator[None]:
    """Collect no garbage for a while: it would be collected at times of its own, on anybody's account."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def measure_seconds(read: Callable[[str], object], text: str, times: int = 1) -> float:
    """Measure the processor time of a reader on a text, the least of a few times."""
    best = float("inf")
    for _ in range(times):
        start = time.process_time()
        read(text)
        best = min(best, time.process_time() - start)
    return best


def find_growth(read: Callable[[str], object], make: Callable[[int], str], length: int) -> float | None:
    """Find by which factor the time grows when a text grows by `FACTOR` to `length`; None where it is too short to tell."""
    text = make(length)
    with no_collection():
        if measure_seconds(read, text) < FLOOR:
            return None
        return measure_seconds(read, text, 3) / max(measure_seconds(read, make(length // FACTOR), 5), 1e-6)
