"""Pass rates of train problems: how often the model that a run starts from solves each, and which are kept for that.

Invariants: they are measured once, before the first turn, and lie in the run folder, where a resumed run reads them. Held-out
problems are never chosen by them. The samples count as compute of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from milonga.context import Context, RunContext
from milonga.errors import RunFolderError, TooLongError, UserError
from milonga.evals.metrics import mean
from milonga.resolve import Plan
from milonga.runfolder.files import to_json, write_atomically
from milonga.runfolder.record import read_shape
from milonga.tasks import PassRate, Task

FILE = "pass_rates.json"
CHUNK = 64
"""Problems whose samples are in memory at a time."""
Rates = dict[int, float | None]
"""Index of a train problem to its pass rate; None where no solution could be graded."""


@dataclass(frozen=True)
class Measured:
    """What the file holds: an index and a pass rate for each problem that was measured."""

    rates: list[tuple[int, float | None]]


def choose_problems(plan: Plan, run_context: RunContext, folder: Path, say: Callable[[str], None]) -> None:
    """Measure the pass rates of a new run, write them into its folder, and keep the problems within the range."""
    wanted, task = plan.task.pass_rate, plan.task
    if wanted is None:
        return
    count = count_measured(task, wanted)
    say(f"measuring pass rates: {count} train problems, {wanted.pass_rate_samples} solutions of each")
    rates = measure_pass_rates(run_context, plan.recipe.solving, wanted, count)
    write_atomically(folder / FILE, to_json({"rates": [[index, rate] for index, rate in rates.items()]}) + "\n")
    task.kept = select_problems(rates, wanted, say)


def recall_problems(task: Task, folder: Path, say: Callable[[str], None]) -> None:
    """Keep the same problems in a run that is resumed."""
    if task.pass_rate is None:
        return
    found = read_shape(folder / FILE, Measured)
    if found is None:
        raise RunFolderError(f"'{folder / FILE}' is missing: the pass rates that this run chose its problems by")
    task.kept = select_problems(dict(found.rates), task.pass_rate, say)


def count_measured(task: Task, wanted: PassRate) -> int:
    size = task.size("train")
    return wanted.pass_rate_problems if size is None else min(size, wanted.pass_rate_problems)


def measure_pass_rates(run_context: RunContext, agent: str, wanted: PassRate, count: int) -> Rates:
    """Measure the share of right solutions of the first train problems; a prompt that does not fit has none."""
    task, rates = run_context.task, Rates()
    for first in range(0, count, CHUNK):
        indices = range(first, min(first + CHUNK, count))
        problems = {index: task.problem("train", index) for index in indices}
        right: dict[str, list[float]] = {}
        with suppress(TooLongError):
            # Keys that no turn of a run has.
            ctx = Context(run_context, "pass_rate", "")
            for solution in ctx.ask(agent, list(problems.values()), wanted.pass_rate_samples):
                right.setdefault(solution.problem.id, []).append(solution.correct)
        rates |= {index: mean(right.get(problem.id, ())) for index, problem in problems.items()}
    return rates


def select_problems(rates: Rates, wanted: PassRate, say: Callable[[str], None]) -> dict[int, float]:
    """Select the problems within the range, and say how many there are; none is an error."""
    low, high = wanted.pass_rate
    known = {index: rate for index, rate in rates.items() if rate is not None}
    kept = {index: rate for index, rate in known.items() if low <= rate <= high}
    below, above = sum(rate < low for rate in known.values()), sum(rate > high for rate in known.values())
    found = f"{below} lie below {low:g}, {above} above {high:g}"
    if not kept:
        raise UserError(
            f"none of {len(rates)} train problems has a pass rate within task.pass_rate=[{low:g},{high:g}]: {found}; widen the "
            "range, measure more of them (task.pass_rate_problems), or choose other problems or another model"
        )
    unknown = f", {len(rates) - len(known)} are unknown" if len(known) < len(rates) else ""
    say(f"pass rates: {len(kept)} of {len(rates)} train problems are kept; {found}{unknown}")
    return kept
