"""`sweep`: make the runs of a study on a machine that may be there only for some minutes.

Invariants: one sweep at a time works in a folder; finished runs are kept and unfinished ones resumed, also on another machine;
at the time limit every run ends after its turn with a checkpoint; a run that is matched waits for its reference; runs side by
side on one GPU have each a share of its memory, and one that runs out of its share gets twice as much; what ends in an error
does not stop the others.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from milonga.comparing.pool import GRACE, STOPPING, Pool, Run, count_cores, is_cpu
from milonga.comparing.progress import Progress, read_last_turn
from milonga.comparing.results import examine_machine
from milonga.comparing.study import StudyArm, order_runs
from milonga.config import is_embedded
from milonga.errors import RunFolderError, UserError
from milonga.health import find_health
from milonga.interrupts import delay_interrupts
from milonga.planning import Shape, find_shape
from milonga.resolve import Plan
from milonga.runfolder.files import JsonLines, write_atomically
from milonga.runfolder.folder import RunFolder, read_config, write_signed_config
from milonga.runfolder.record import read_shape

TICK = 0.5
"""Seconds between two looks at the running processes."""
PLAN, TABLE = "sweep.json", "runs.jsonl"
GIB = 2**30
USED = 0.92
"""Share of a GPU's memory that is divided among runs; every process needs some besides."""
ROOM = {"embedded": 2 * GIB, "other": 32 * GIB}
"""Bytes for the caches and activations of a run: with less it would work too, in smaller pieces. More runs of a large model at
once would only share the same arithmetic. A model of known shape gets as much more than an embedded one as a token of it takes
more in a pass, at most what others get."""
EMBEDDED_TOKEN = 29_720
"""Bytes of a token of an embedded model in a pass: its activations, and its logits over 259 words."""
LOGIT = 8
"""Bytes of a token's logit and its gradient, for each word of the vocabulary."""
BASE, COPY, WHOLE = 6, 2, 22
"""Bytes of a parameter: of a base with adapters (float32, and in half precision while one of them learns), of the copy that
each of its adapters samples with, and of a policy that learns whole."""


@dataclass(frozen=True)
class MadeWith:
    """What `sweep.json` holds: the settings of each arm, and the values of the placeholders."""

    runs: dict[str, Any]
    known: Annotated[dict[str, Any], Field(alias="with")]


@dataclass
class Sweep:
    """What is to be done, what is being done, and what went wrong."""

    runs: list[tuple[StudyArm, Run]]
    shares: dict[Run, float]
    """Share of the GPU's memory that each run gets; 1 on a CPU."""
    waiting: list[Run]
    out: Path
    failed: dict[Run, str] = field(default_factory=dict)
    stopped: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.arms = {run: arm for arm, run in self.runs}

    def config(self, run: Run) -> dict[str, Any]:
        return self.arms[run].config(run.seed, self.out)

    def take_next(self, running: Sequence[Run]) -> Run | None:
        """Take the next run whose share is free beside those that run, and whose budget is known; None if there is none now."""
        free = 1.0 - sum(self.shares[run] for run in running)
        for run in self.waiting:
            if self.shares[run] <= free + 1e-9 and self._find_unfinished_reference(run) is None:
                self.waiting.remove(run)
                return run
        return None

    def give_up(self, running: Sequence[Run]) -> list[Run]:
        """Give up the runs whose budget nobody will know, because their reference has failed or is not to be made."""
        lost = []
        for run in self.waiting:
            reference = self._find_unfinished_reference(run)
            if reference is not None and reference not in running and reference not in self.waiting:
                self.failed[run] = f"its budget is that of {name_run(reference, self.out)}, which is not finished"
                lost.append(run)
        self.waiting = [run for run in self.waiting if run not in lost]
        return lost

    def _find_unfinished_reference(self, run: Run) -> Run | None:
        reference = self.arms[run].reference_run(run.seed, self.out)
        return None if reference is None or reference.finished else reference

    def end(self, run: Run, answer: Mapping[str, Any]) -> str | None:
        """Note how a run ended; return its error, if it is one. A run that ran out of its share of memory waits for twice as
        much."""
        if answer.get("interrupted"):
            self.stopped.append(run)
            return None
        if answer.get("out_of_memory") and self.shares[run] < 1:
            self.shares[run] = min(1.0, 2 * self.shares[run])
            self.waiting.insert(0, run)
            return f"{answer['error']}; it is tried again with {self.shares[run]:.0%} of the memory"
        error = run.note_error(answer)
        if error is not None:
            self.failed[run] = str(answer["error"])
        return error


def sweep(
    arms: Sequence[StudyArm],
    out: Path,
    known: Mapping[str, str],
    *,
    is_over: Callable[[], bool] = lambda: False,
    jobs: int | None = None,
    only: Sequence[str] = (),
    quiet: bool = False,
) -> dict[str, Any]:
    """Make the missing runs of a study in a folder, until all are finished or the time is over; return what was done.

    `known` are the values of the study's placeholders on this machine; `only` are beginnings of names of runs.
    """
    chosen = [(arm, run) for arm, run in order_runs(arms, out) if not only or name_run(run, out).startswith(tuple(only))]
    if not chosen:
        raise UserError(f"no run's name begins with {' or '.join(only)}; --list names them")
    with RunFolder(out, 1):  # only for its lock
        write_plan(out, arms, known)
        on_cpu = is_cpu(chosen[0][0].arm.plan.config.device)
        waiting = [run for _, run in chosen if not run.finished]
        count = jobs or (count_cores() if on_cpu else count_fitting(chosen, measure_gpu()))
        share = 1.0 / count
        work = Sweep(chosen, {run: share for _, run in chosen}, waiting, out)
        try:
            if waiting:
                _run_until(work, on_cpu, is_over, count, quiet, lambda: write_table(out, arms))
        finally:
            write_table(out, arms)
    return {
        "runs": len(chosen),
        "finished": sum(run.finished for _, run in chosen),
        "stopped": [name_run(run, out) for run in [*work.stopped, *work.waiting]],
        "failed": {name_run(run, out): error for run, error in work.failed.items()},
        "health": group_by_badge(out, [name_run(run, out) for _, run in chosen]),
    }


def name_run(run: Run, out: Path) -> str:
    """Name a run by its place in the sweep's folder."""
    return run.folder.relative_to(out).as_posix()


def time_out(minutes: float) -> Callable[[], bool]:
    """Make a function that says whether so many minutes are over."""
    until = time.monotonic() + 60 * minutes
    return lambda: time.monotonic() >= until


def _run_until(
    work: Sweep, on_cpu: bool, is_over: Callable[[], bool], jobs: int, quiet: bool, keep: Callable[[], None]
) -> None:
    """Start runs while there is room, and end them cleanly when the time is over, or when a signal asks to stop. `keep` is
    called after every run, so that a machine that goes away leaves a table of what it finished."""
    turns = {arm.arm.name: None if arm.reference else arm.arm.turns for arm, _ in work.runs}
    done = sum(run.finished for _, run in work.runs)
    with (
        Progress(len(work.runs), done, jobs, turns, quiet) as progress,
        Pool(jobs, on_cpu) as pool,
        delay_interrupts(progress.say, STOPPING) as stop,
    ):
        while pool.busy or (work.waiting and not (is_over() or stop.is_asked)):
            # A reference that was stopped just now will be finished later, and its runs made then.
            lost = [] if is_over() or stop.is_asked else work.give_up(pool.running)
            while not (is_over() or stop.is_asked) and pool.has_room and (run := work.take_next(pool.running)):
                try:
                    config = work.config(run)
                except UserError as unknown:  # the report of its reference cannot be read: the others are as they were
                    work.failed[run] = str(unknown)
                    lost.append(run)
                    continue
                progress.begin(run)
                pool.begin(run, config, None if on_cpu else USED * work.shares[run])
            for run in lost:
                progress.end(run, work.failed[run])
                keep()
            if is_over() or stop.is_asked:
                pool.interrupt(GRACE)
            for run, answer in pool.wait(TICK):
                error = work.end(run, answer)
                progress.end(run, error, stopped=run in work.stopped or run in work.waiting)
                keep()
            progress.tick()
        stop.raise_if_asked()


def write_plan(out: Path, arms: Sequence[StudyArm], known: Mapping[str, str]) -> None:
    """Write what the runs are, or compare it with what the folder's runs were made with. Where only the values of placeholders
    changed, as on another machine, unfinished runs get the new ones."""
    asked = {f"{arm.block}/{arm.arm.folder}": arm.identity for arm in arms}
    file = out / PLAN
    old = read_shape(file, MadeWith) or MadeWith(runs={}, known=dict(known))
    for name, settings in asked.items():
        if name in old.runs and old.runs[name] != json.loads(json.dumps(settings)):
            raise RunFolderError(f"'{out / name}' was made with other settings than the study now has; choose another --out")
    if old.known != dict(known):
        for arm, run in order_runs(arms, out):
            if (run.folder / "config.toml").exists() and not run.finished:
                _replace_config(run.folder, arm.config(run.seed, out))
    write_atomically(file, json.dumps({"runs": old.runs | asked, "with": dict(known)}, indent=1) + "\n")


def _replace_config(folder: Path, config: dict[str, Any]) -> None:
    """Replace the config of a run by that of this machine. The number of threads stays: the run's bits depend on it."""
    write_signed_config(folder, config | {"threads": read_config(folder).threads})


def write_table(out: Path, arms: Sequence[StudyArm]) -> None:
    """Write one line for each run that has begun: what it is, how far it came, its health, its first and last evaluation."""
    rows = [_describe_run(arm, run, out) for arm, run in order_runs(arms, out) if (run.folder / "metrics.jsonl").exists()]
    write_atomically(out / TABLE, "".join(json.dumps(row) + "\n" for row in rows))


def group_by_badge(out: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """Group runs of the table by what is wrong with them: also by what hangs on the machine, which is no part of the table."""
    found: dict[str, list[str]] = {}
    for row in JsonLines(out / TABLE).rows():
        if row["name"] in names:
            here = dict.fromkeys(one.badge for one in examine_machine(out / row["name"]))
            for badge in (*row["health"], *here):
                found.setdefault(badge, []).append(row["name"])
    return found


def _describe_run(arm: StudyArm, run: Run, out: Path) -> dict[str, Any]:
    settings = json.dumps(arm.identity, sort_keys=True)
    rows = JsonLines(run.folder / "metrics.jsonl").rows()
    measured = [row for row in rows if any(key.startswith("eval/") for key in row)]
    return {
        "name": name_run(run, out),
        "recipe": arm.arm.recipe,
        "seed": run.seed,
        "settings": arm.identity,
        "hash": hashlib.blake2b(settings.encode(), digest_size=8).hexdigest(),
        "finished": run.finished,
        "turn": read_last_turn(run.folder),
        "health": list(dict.fromkeys(one.badge for one in find_health(rows, arm.arm.config(run.seed)))),
        "first": _select_evaluation(measured[0]) if measured else None,
        "last": _select_evaluation(measured[-1]) if measured else None,
    }


def _select_evaluation(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith(("eval/", "compute/")) or key == "turn"}


def count_fitting(chosen: Sequence[tuple[StudyArm, Run]], memory: float) -> int:
    """Count how many of these runs fit a GPU of so many bytes side by side, by the largest of them; at most one a core."""
    need = max(estimate_memory(arm.arm.plan) for arm, _ in chosen)
    return max(1, min(count_cores(), int(USED * memory / need)))


def estimate_memory(plan: Plan) -> float:
    """Estimate the bytes that a run takes on a GPU: a base with adapters once, other policies each, and room to work."""
    sections = plan.policies.values()
    bases = {section.model for section in sections if section.lora is not None}
    weights = sum(BASE * _count_parameters(model) for model in bases)
    weights += sum((WHOLE if one.lora is None else COPY) * _count_parameters(one.model) for one in sections)
    return weights + max(_estimate_room(section.model) for section in sections)


def _estimate_room(model: str) -> float:
    """Estimate the bytes for caches and activations of a run of this model; the most where its shape is not known."""
    if is_embedded(model):
        return ROOM["embedded"]
    shape = _find_known_shape(model)
    token = math.inf if shape is None else shape.activation_bytes + LOGIT * shape.vocabulary
    return min(ROOM["other"], ROOM["embedded"] * max(1.0, token / EMBEDDED_TOKEN))


def _count_parameters(model: str) -> float:
    """Count the parameters of a model in a folder or by its size's name; 0 for an embedded one, or one that cannot be told."""
    shape = None if is_embedded(model) else _find_known_shape(model)
    return 0.0 if shape is None else float(shape.parameters)


def _find_known_shape(model: str) -> Shape | None:
    try:
        return find_shape(model)
    except UserError:
        return None


def measure_gpu() -> float:
    """Return the bytes of this machine's first GPU."""
    import torch

    return float(torch.cuda.get_device_properties(0).total_memory)
