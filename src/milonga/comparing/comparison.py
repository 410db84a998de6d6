"""`compare`: plan the arms, run the missing runs, analyse the results.

Invariants: finished runs are kept, unfinished ones resumed; one comparison at a time works in a folder; a run that
fails is reported with its arm and seed and does not stop the others; the result depends only on the runs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from milonga import api
from milonga.comparing.arms import METRIC, Arm, Comparison, check_folder, plan_comparison, write_plan
from milonga.comparing.pool import GRACE, STOPPING, Pool, Run, count_cores, is_cpu
from milonga.errors import UserError
from milonga.interrupts import delay_interrupts
from milonga.text import escape_invisible

TICK = 0.5
"""Seconds between two polls of the running processes."""


def compare(
    recipes: Sequence[str],
    *,
    task: str | Mapping[str, Any] | None = None,
    seeds: int | str | Sequence[int] = 5,
    turns: int | None = None,
    match: str = "auto",
    metric: str = METRIC,
    baseline: str | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    quiet: bool = False,
) -> dict[str, Any]:
    """Compare recipes fairly: same start, same problems, paired seeds, with intervals and verdicts.

        milonga.compare(["tango", "grpo"], task="chain", turns=100, seeds=5)

    All arms get the same `match`: `flops`, `tokens` or `turns`. `auto` is flops where the arms are of different recipes, as far
    as the FLOPs are known, else turns. The first arm is the reference whose compute the others get. The runs go into
    OUT/ARM/seed-S; calling it again with the same `out` goes on where it stopped. Returns what OUT/compare.json holds.
    """
    comparison = plan_comparison(
        recipes,
        task=task,
        seeds=seeds,
        turns=turns,
        match=match,
        metric=metric,
        baseline=baseline,
        device=device,
        config=config,
        settings=[settings] if settings else (),
    )
    return run_planned_comparison(comparison, Path(out) if out is not None else api.choose_run_folder("compare"), jobs, quiet)


def run_planned_comparison(comparison: Comparison, out: Path, jobs: int | None = None, quiet: bool = False) -> dict[str, Any]:
    """Run a planned comparison in a folder, or the missing part of it, and write its results there."""
    from milonga.comparing.results import analyse
    from milonga.comparing.tables import write_results
    from milonga.report import write_report_safely
    from milonga.runfolder.folder import RunFolder
    from milonga.runfolder.machine import describe_machine

    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs must be at least 1, not {jobs}")
    check_folder(out)
    with RunFolder(out, 1) as folder:  # only for its lock and the machine's description
        notes = write_plan(out, comparison)
        folder.machine.append(describe_machine(0))
        failed = _run_all(comparison, out, jobs, quiet)
        result = analyse(comparison, out, failed, notes)
        write_results(result, out)
        write_report_safely(out, print_warning)
    return result


def print_warning(text: str) -> None:
    sys.stderr.write(f"{escape_invisible(text)}\n")


def _list_runs(comparison: Comparison, out: Path) -> list[Run]:
    """List all runs, seed by seed, so that an unfinished comparison already has pairs."""
    return [Run(arm.name, seed, out / arm.folder / f"seed-{seed}") for seed in comparison.seeds for arm in comparison.arms]


def _run_all(comparison: Comparison, out: Path, jobs: int | None, quiet: bool) -> dict[Run, str]:
    """Run all unfinished runs; return the failed ones with their errors."""
    from milonga.comparing.progress import Progress

    runs = _list_runs(comparison, out)
    waiting = [run for run in runs if not run.finished]
    if not waiting:
        return {}
    on_cpu = is_cpu(comparison.reference.plan.config.device)
    jobs = min(jobs or (count_cores() if on_cpu else 1), len(waiting))
    work = Work(comparison, out, waiting)
    with (
        Progress(len(runs), len(runs) - len(waiting), jobs, work.turns(), quiet) as progress,
        Pool(jobs, on_cpu) as pool,
        delay_interrupts(progress.say, STOPPING) as stop,
    ):
        while pool.busy or (work.waiting and not stop.is_asked):
            while not stop.is_asked and pool.has_room and (order := work.take_next()):
                progress.begin(order[0])
                pool.begin(*order)
            if stop.is_asked:
                pool.interrupt(GRACE)
            for run, answer in pool.wait(TICK):
                progress.end(run, work.end(run, answer), stopped=bool(answer.get("interrupted")))
            progress.tick()
        stop.raise_if_asked()
    return work.failed


class Work:
    """The queue of runs. With matched compute a run waits for the reference run of its seed, whose compute is its budget."""

    def __init__(self, comparison: Comparison, out: Path, waiting: list[Run]) -> None:
        self.comparison, self.out, self.waiting = comparison, out, waiting
        self.arms: dict[str, Arm] = {arm.name: arm for arm in comparison.arms}
        self.failed: dict[Run, str] = {}

    def is_matched(self, arm: str) -> bool:
        return self.comparison.match != "turns" and arm != self.comparison.reference.name

    def turns(self) -> dict[str, int | None]:
        return {name: None if self.is_matched(name) else arm.turns for name, arm in self.arms.items()}

    def reference(self, seed: int) -> Run:
        first = self.comparison.reference
        return Run(first.name, seed, self.out / first.folder / f"seed-{seed}")

    def take_next(self) -> tuple[Run, dict[str, Any]] | None:
        """Take the next run that can begin, with its config; None if there is none now."""
        for run in list(self.waiting):
            if not self.is_matched(run.arm):
                self.waiting.remove(run)
                return run, self.arms[run.arm].config(run.seed)
            reference = self.reference(run.seed)
            if reference in self.failed:
                self.waiting.remove(run)
                self.failed[run] = f"its budget is that of {reference}, which failed"
            elif reference.finished:
                self.waiting.remove(run)
                match = self.comparison.match
                return run, self.arms[run.arm].config(run.seed, {match: reference.read_compute(match)})
        return None

    def end(self, run: Run, answer: Mapping[str, Any]) -> str | None:
        """Record the result of a run; a traceback is written into its folder. Return the error message, if any."""
        if answer.get("interrupted"):
            answer = {"error": "asked to stop; it goes on from its newest checkpoint"}
        error = run.note_error(answer)
        if error is not None:
            self.failed[run] = str(answer["error"])
        return error
