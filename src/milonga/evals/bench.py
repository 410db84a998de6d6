"""Fixed sets of solutions with known first errors, on which verifiers are measured by the ProcessBench protocol.

Tasks that can write solutions make their own set: about half of the solutions are right, the others have one wrong step and go
on consistently from it; where the task can, a fifth of these reach the right answer all the same. ProcessBench files
are read as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

from milonga.errors import DataError
from milonga.randomness import keyed_rng
from milonga.reading import TEXT, explain_unreadable, read_bytes
from milonga.roles import Role, StepSolver
from milonga.roles.solver import demonstration_to_rollout
from milonga.tasks import Task
from milonga.tasks.answers import find_last_box
from milonga.tasks.base import ANSWERS, DEMONSTRATIONS, LABELS
from milonga.tasks.rows import parse_json
from milonga.tasks.worked import NUMBER
from milonga.types import Grade, Parsed, Problem, Rollout, Solution, Split

OFFSET = 1_000_000
"""Bench problems are drawn far behind those on which the generator is measured, where a task has no end of them."""
RELEASED = {"gsm8k": (207, 193), "math": (594, 406), "olympiadbench": (661, 339), "omnimath": (759, 241)}
"""Items with and without an error in the files of ProcessBench."""


def make_bench(task: Task, solver: Role | None, count: int, split: Split) -> list[Rollout]:
    """Make `count` labelled solutions of held-out problems (one of each if there are fewer), the same for every run of the
    task; those of a file with labelled steps are its own. Empty if the solver is no step solver or the task cannot demonstrate
    right answers."""
    if not isinstance(solver, StepSolver) or not has_bench(task):
        return []
    if LABELS in task.offers and not task.knows_steps:
        return _collect_labelled(task, solver, count, split)
    bench = []
    size = task.size(split)
    for i in range(count if size is None else min(count, size)):
        problem = task.problem(split, OFFSET + i)
        rng = keyed_rng("bench", task.name, problem.id)
        shown = task.demonstrate(problem, rng)
        if i % 2:
            shown = task.demonstrate_flawed(problem, rng) or shown
            if i % 10 == 1:
                shown = task.demonstrate_compensated(problem, rng) or shown
        bench.append(demonstration_to_rollout(shown, problem, solver, f"bench/{i}"))
    return bench


def has_bench(task: Task) -> bool:
    """Whether labelled solutions of a task's problems can be had: from its data, or by demonstrating right answers."""
    return (LABELS in task.offers and not task.knows_steps) or {ANSWERS, DEMONSTRATIONS} <= task.offers


def _collect_labelled(task: Task, solver: StepSolver, count: int, split: Split) -> list[Rollout]:
    """Collect the solutions of held-out problems whose steps are labelled in the data."""
    problems = task.draw_problems(split, 0, min(count, task.size(split) or 0))
    return [found for problem in problems if (found := write_labelled(solver, problem)) is not None]


def write_labelled(solver: StepSolver, problem: Problem) -> Rollout | None:
    """Write the labelled solution of a problem of the data in the solver's dialect; None if there is none, or if its steps
    contain marks of the dialect. It counts as right if none of its steps is wrong."""
    steps, truth = zip(*problem.labelled_steps, strict=True) if problem.labelled_steps else ((), ())
    return rewrite_steps(solver, f"{problem.id}/labelled", problem, steps, grade=Grade(all(truth), truth)) if steps else None


def read_processbench(path: Path, solver: StepSolver | None, limit: int | None = None) -> list[Rollout]:
    """Load a ProcessBench file, or `limit` items taken evenly from it, in the solver's dialect; without a solver as plain
    paragraphs. Labels are 0-based indices of the first wrong step, -1 if there is none.

    A file with the name of a released one must hold as many items with and without errors as that does.
    """
    try:
        items = parse_json(read_bytes(path, TEXT), f"ProcessBench file '{path}'")
    except FileNotFoundError:
        raise DataError(f"ProcessBench file '{path}' does not exist") from None
    except OSError as error:
        raise DataError(f"ProcessBench file '{path}' cannot be read: {explain_unreadable(error)}") from None
    if not isinstance(items, list) or not items:
        raise DataError(f"ProcessBench file '{path}' holds no list of items")
    rollouts = [_parse_item(path, number, item, solver) for number, item in enumerate(items)]
    if len({rollout.id for rollout in rollouts}) < len(rollouts):
        raise DataError(f"ProcessBench file '{path}': two items have the same id")
    errors = sum(rollout.grade is not None and rollout.grade.first_error != -1 for rollout in rollouts)
    found = (errors, len(rollouts) - errors)
    if found != RELEASED.get(path.stem, found):
        raise DataError(
            f"ProcessBench file '{path}' holds {found[0]} items with an error and {found[1]} without, the released "
            f"'{path.stem}' {RELEASED[path.stem][0]} and {RELEASED[path.stem][1]}; give a file of yours another name"
        )
    return rollouts if limit is None else [rollouts[i * len(rollouts) // limit] for i in range(min(limit, len(rollouts)))]


def _parse_item(path: Path, number: int, item: object, solver: StepSolver | None) -> Rollout:
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
    grade = Grade(item["final_answer_correct"], truth)
    if solver is None:
        return _make_paragraphs(problem.id, problem, steps, grade)
    rollout = rewrite_steps(solver, problem.id, problem, steps, grade=grade)
    if rollout is None:
        raise DataError(f"ProcessBench file '{path}', item {number}: its steps hold marks of the {solver.dialect} dialect")
    return rollout


def rewrite_steps(
    solver: StepSolver, id: str, problem: Problem, steps: Sequence[str], answer: str | None = None, grade: Grade | None = None
) -> Rollout | None:
    """Rewrite given steps as a solution in the solver's dialect; None if the steps contain marks of the dialect.

    Without an answer, the last box of the last step is it. Where there is none, none is shown: a made-up one would be judged.
    In prose the steps stay as they are, and their box with them.
    """
    if solver.dialect == "plain":
        return _make_paragraphs(id, problem, steps, grade)
    said = answer or _find_answer(solver, steps[-1] if steps else "")
    text = solver.write([_flatten_step(step) for step in steps], _flatten_step(said or ""))
    parsed = solver.parse(text)
    if len(parsed.ends) != len(steps):
        return None
    if not said:
        text = text[: max(parsed.ends, default=0)]
        parsed = Parsed(replace(parsed.get(Solution), answer=None), parsed.format, parsed.invalid)
    return Rollout.from_text(id, "generator", problem, text, parsed, grade)


def _find_answer(solver: StepSolver, step: str) -> str | None:
    """Find the answer that a last step gives: what is in its box; in the terse dialect, where a step ends in its result, also
    its last number."""
    numbers = NUMBER.findall(step) if solver.dialect == "terse" else []
    return find_last_box(step) or next(reversed(numbers), None)


def _make_paragraphs(id: str, problem: Problem, steps: Sequence[str], grade: Grade | None) -> Rollout:
    """Make a solution of given steps as plain paragraphs; the answer is somewhere among them. Steps end where they do in the
    data, also where a reader of prose would cut elsewhere."""
    text = "\n\n".join(steps)
    ends = [*accumulate(len(step) + len("\n\n") for step in steps[:-1]), len(text)]
    parsed = Parsed(Solution(tuple(steps), tuple(ends), None), 1.0)
    return Rollout.from_text(id, "generator", problem, text, parsed, grade)


def _flatten_step(step: str) -> str:
    """Put a step or an answer on one line that cannot be taken for the terse dialect's answer line, as a headline could."""
    flat = step.replace("\n", " ")
    return f" {flat}" if flat.startswith("#") else flat
