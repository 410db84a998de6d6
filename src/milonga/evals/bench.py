"""Fixed sets of solutions with known first errors, on which verifiers are measured by the ProcessBench protocol.

Tasks that can write solutions make their own set: about half of the solutions are right, the others have one wrong step and go
on consistently from it; where the task can, a fifth of these reach the right answer all the same. ProcessBench files
are read as they are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from milonga.errors import DataError
from milonga.roles import Role, StepSolver
from milonga.roles.solver import as_trace
from milonga.tasks import Task, keyed
from milonga.tasks.worked import NUMBER
from milonga.types import Grade, Problem, Split, Trace

OFFSET = 1_000_000
"""Bench problems are drawn far behind those on which the generator is measured, where a task has no end of them."""


def make_bench(task: Task, solver: Role | None, count: int, split: Split) -> list[Trace]:
    """`count` solutions of held-out problems, or one of each where there are fewer; the same for every run of the task. None
    where nobody solves it by steps."""
    if not isinstance(solver, StepSolver) or not task.demonstrates:
        return []
    bench = []
    size = task.size(split)
    for i in range(count if size is None else min(count, size)):
        problem = task.problem(split, OFFSET + i)
        rng = keyed("bench", task.name, problem.id)
        shown = task.demonstrate(problem, rng)
        if i % 2:
            shown = task.flawed(problem, rng) or shown
            if i % 10 == 1:
                shown = task.compensated(problem, rng) or shown
        bench.append(as_trace(shown, problem, solver, f"bench/{i}"))
    return bench


def read_processbench(path: Path, solver: StepSolver, limit: int | None = None) -> list[Trace]:
    """A ProcessBench file, or `limit` of its items, taken evenly over the file. Labels are 0-based indices of the first wrong
    step, -1 if there is none."""
    try:
        items = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"ProcessBench file '{path}' does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError, OSError) as error:
        raise DataError(f"ProcessBench file '{path}': {error}") from None
    if not isinstance(items, list) or not items:
        raise DataError(f"ProcessBench file '{path}' holds no list of items")
    chosen = range(len(items)) if limit is None else [i * len(items) // limit for i in range(min(limit, len(items)))]
    return [_item(path, number, items[number], solver) for number in chosen]


def _item(path: Path, number: int, item: object, solver: StepSolver) -> Trace:
    fields = {"problem": str, "steps": list, "label": int, "final_answer_correct": bool}
    for name, kind in fields.items():
        if not isinstance(item, dict) or not isinstance(item.get(name), kind):
            raise DataError(f"ProcessBench file '{path}', item {number}: field '{name}' is missing or not a {kind.__name__}")
    assert isinstance(item, dict)
    steps, label = [str(step) for step in item["steps"]], item["label"]
    if not -1 <= label < len(steps):
        raise DataError(f"ProcessBench file '{path}', item {number}: label {label} is not a step of {len(steps)}")
    problem = Problem(str(item.get("id", f"processbench/{number}")), item["problem"], "")
    truth = tuple(label == -1 or k < label for k in range(len(steps)))  # truth after the first error is not labelled
    trace = rewritten(solver, problem.id, problem, steps, grade=Grade(item["final_answer_correct"], truth))
    if trace is None:
        raise DataError(f"ProcessBench file '{path}', item {number}: its steps hold marks of the {solver.dialect} dialect")
    return trace


def rewritten(
    solver: StepSolver, id: str, problem: Problem, steps: Sequence[str], answer: str | None = None, grade: Grade | None = None
) -> Trace | None:
    """Somebody else's steps as a solution in the solver's dialect; None where marks of the dialect stand in them.

    Without an answer, the last number of the last step stands for it: that is where most solutions have theirs.
    """
    numbers = NUMBER.findall(steps[-1]) if steps else []
    text = solver.write([one_line(step) for step in steps], answer or (numbers[-1] if numbers else "?"))
    reading = solver.read(text)
    return Trace.given(id, "generator", problem, text, reading, grade) if len(reading.value.steps) == len(steps) else None


def one_line(step: str) -> str:
    """A step on one line that does not look like the answer line of the terse dialect, as a headline would."""
    flat = step.replace("\n", " ")
    return f" {flat}" if flat.startswith("#") else flat
