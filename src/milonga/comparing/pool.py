"""A pool of processes that execute the runs of a comparison or of a sweep in parallel.

Invariants: a run on a CPU has one torch thread, so that its bits do not depend on how many run in parallel; a process
that dies fails only its current run; leaving the `with` block, however that happens, ends every process.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from milonga.errors import RunFolderError
from milonga.runfolder.files import write_atomically
from milonga.runfolder.record import Costs, read_shape

GRACE = 60.0
"""Seconds that runs have to finish their turn and write a checkpoint, when they are asked to stop."""
STOPPING = "every run ends after its turn, with a checkpoint"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Run:
    """One run of a comparison or of a sweep, by arm and seed."""

    arm: str
    seed: int
    folder: Path

    @property
    def finished(self) -> bool:
        """Whether the run is finished: the report is what a run writes last."""
        return (self.folder / "report.json").exists()

    def __str__(self) -> str:
        return f"{self.arm} seed {self.seed}"

    def read_compute(self, what: str) -> float:
        """Return how many tokens, or FLOPs, this finished run used: the budget of those that are matched with it."""
        report = read_shape(self.folder / "report.json", Costs)
        used = None if report is None else report.compute.get(what)
        if used is None:
            raise RunFolderError(f"'{self.folder}' has no report that says how many {what} it used")
        return used

    def note_error(self, answer: Mapping[str, Any]) -> str | None:
        """Return the error that a run ended with, or None; its traceback, if it has one, is written into the run's folder."""
        notes, error = self.folder / "error.txt", answer["error"]
        if error is None:
            notes.unlink(missing_ok=True)
            return None
        if not answer.get("traceback"):
            return str(error)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(notes, answer["traceback"])
        return f"{error} (see {notes})"


class Worker:
    """A process that works on one run at a time."""

    def __init__(self, one_thread: bool, gpu_share: float | None = None) -> None:
        self.run: Run | None = None
        self.kill_at: float | None = None
        """When it is killed, if it has been interrupted and is still there."""
        share = [] if gpu_share is None else [str(gpu_share)]
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self.process = subprocess.Popen(
            # -P: no module of the folder that we happen to be in is imported in the place of one of ours.
            [sys.executable, "-P", "-m", "milonga.comparing.worker", *share],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env=os.environ | (dict.fromkeys(THREADS, "1") if one_thread else {}),
            # Ctrl-C in the terminal is for the parent alone, which then ends its children.
            start_new_session=True,
        )

    @property
    def answers(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def begin(self, run: Run, config: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.run = run
        # A process that died meanwhile is noticed when its answer is read.
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"folder": str(run.folder), "config": config}) + "\n")
            self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Read the result of the run; for a process that died, its exit status and the last line of its output."""
        line = self.answers.readline()
        self.run = None
        if line:
            found: dict[str, Any] = json.loads(line)
            return found
        code = self.process.wait()
        if self.kill_at is not None:
            return {"error": None, "interrupted": True}
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.log.seek(0)
        said = self.log.read().decode(errors="replace")
        last = (said.strip().splitlines() or ["it said nothing"])[-1]
        return {"error": f"its process ended with {how}: {last}", "traceback": said}

    def interrupt(self, grace: float) -> None:
        """Ask the run to end after its turn, with a checkpoint; kill the process if that takes longer than `grace` seconds."""
        if self.kill_at is None:
            self.kill_at = time.monotonic() + grace
            self.process.send_signal(signal.SIGINT)
        elif time.monotonic() >= self.kill_at:
            self.process.kill()

    def close(self) -> None:
        """End the process by closing its stdin; kill it if it does not end within two seconds."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(2)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.answers.close()
        self.log.close()


class Pool:
    """Up to `size` processes, started when they are needed."""

    def __init__(self, size: int, on_cpu: bool) -> None:
        self.size, self.on_cpu = size, on_cpu
        self.workers: list[Worker] = []

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for worker in self.workers:
            worker.close()

    @property
    def busy(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.run is not None]

    @property
    def has_room(self) -> bool:
        return len(self.busy) < self.size

    @property
    def running(self) -> list[Run]:
        return [worker.run for worker in self.workers if worker.run is not None]

    def begin(self, run: Run, config: Mapping[str, Any], gpu_share: float | None = None) -> None:
        """Begin a run, in a process that may take this share of the GPU's memory; None: all of it."""
        idle = [worker for worker in self.workers if worker.run is None and worker.process.poll() is None]
        if not idle:
            idle = [Worker(self.on_cpu, gpu_share)]
            self.workers += idle
        idle[0].begin(run, config)

    def interrupt(self, grace: float) -> None:
        """Ask all runs to end after their turn. Called again, it kills those that were asked `grace` seconds ago."""
        for worker in self.busy:
            worker.interrupt(grace)

    def wait(self, seconds: float) -> list[tuple[Run, dict[str, Any]]]:
        """Wait up to this many seconds; return the runs that ended, each with its result."""
        with selectors.DefaultSelector() as selector:
            for worker in self.busy:
                selector.register(worker.answers, selectors.EVENT_READ, worker)
            ready: list[Worker] = [key.data for key, _ in selector.select(seconds)]
        return [self._finish_run(worker) for worker in ready]

    def _finish_run(self, worker: Worker) -> tuple[Run, dict[str, Any]]:
        run = worker.run
        assert run is not None
        answer = worker.answer()
        # On a GPU every run gets its own process: only the end of a process frees all of its device memory.
        if not self.on_cpu or worker.process.poll() is not None:
            self.workers.remove(worker)
            worker.close()
        return run, answer


def count_cores() -> int:
    """Count the cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def is_cpu(device: str) -> bool:
    """Whether runs on this device are runs on a CPU. Only `auto` needs torch to tell."""
    if device == "auto":
        import torch

        return not torch.cuda.is_available()
    return device == "cpu"
