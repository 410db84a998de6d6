"""The sandbox: batches of programs, each in a process of its own that was started beforehand and is used once.

Invariants:
- The level in force is tested before the first program, and is reported. A weaker one than asked for is never taken silently.
- Programs share nothing: neither process nor folder is carried from one to the next. Outcomes come in the order of the
  programs, whatever the order in which they end.
- How many run at a time is fixed, so that load does not change verdicts; these rest on processor time.
- Failures of ours are counted apart; above one in a hundred the run is stopped.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from milonga.errors import UserError
from milonga.sandbox.folders import remove_abandoned_folders
from milonga.sandbox.isolation import IsolationError, Level, Mount, find_bubblewrap, require_architecture
from milonga.sandbox.process import NotStarted, SingleUse
from milonga.sandbox.program import Failure, Limits, Outcome, Program, Status, make_failed_outcome
from milonga.sandbox.values import to_canonical

T = TypeVar("T")
SEEDS = (1, 2)
"""Hash seeds of the two processes in which a program must do the same."""
STARTS = 3
"""Tries to start a process; a program that has been handed over is never run again."""
FEW_ERRORS, ERROR_SHARE = 5, 0.01
"""Failures of ours that a run survives: this many, or this share of all programs."""

PROBE = Program(
    """
import os, socket

def escapes(home):
    found = []
    def tried(name, attempt):
        try:
            attempt()
        except OSError:
            return
        found.append(name)
    tried("network", socket.socket)
    tried("processes", lambda: os.fork() or os._exit(0))
    tried("files", lambda: os.listdir(home))
    tried("accounts", lambda: open("/etc/passwd"))
    tried("writing", lambda: open("/escaped", "w"))
    if os.getuid() == 0 or os.getpid() > 2:
        found.append("namespaces")
    return found
""",
    "escapes",
    ((os.path.expanduser("~"),),),
)
"""A probe: tries what an isolated process must not be able to do, and returns what succeeded."""
Ends = tuple[int, int]
"""Of a wire between two programs: the descriptors to read from and to write to."""
MakePair = Callable[[Ends, Ends], tuple[Program, Program]]
HARMLESS = Program("def nothing(): pass", "nothing", ((),))
COUNT = Program("import os\ndef files(): return os.statvfs('.').f_files", "files", ((),))
"""Returns how many files its scratch folder can hold."""


class SandboxBroken(UserError):
    """Too many programs could not be run, for reasons that are not theirs."""


def try_level(level: Level) -> str | None:
    """Try a level by running a program in it; return why it is not available, None if it is."""
    try:
        require_architecture()
        if level == "isolated":
            find_bubblewrap()
        generous = Limits(cpu_s=10, wall_s=60)
        outcome = SingleUse(level, generous, seed=0).run(PROBE if level == "isolated" else HARMLESS)
    except (IsolationError, NotStarted, OSError) as error:
        return str(error)
    if outcome.status != "ok":
        return outcome.reason
    if level == "isolated" and outcome.results != (to_canonical([]),):
        return f"a process in it can reach beyond it: {outcome.results[0]}"
    return None


def is_file_count_bounded() -> bool:
    """Whether the number of files of an isolated program is bounded here: some systems forbid the mount that it takes."""
    limits = Limits(cpu_s=10, wall_s=60)
    try:
        outcome = SingleUse("isolated", limits, seed=0).run(COUNT)
    except (NotStarted, OSError):
        return False
    return outcome.results == (to_canonical(limits.scratch_files),)


def choose_level(isolation: Level, allow_weak: bool) -> tuple[Level, str]:
    """Choose the isolation level; return it and why it is not the requested one. `IsolationError` if none is allowed."""
    allowing = "on a machine that you can throw away, set allow_weak_isolation = true"
    if isolation == "limited" and not allow_weak:
        raise IsolationError(f"isolation 'limited' lets programs read and write what you can: {allowing}")
    why = ""
    if isolation == "isolated":
        reason = try_level("isolated")
        if reason is None:
            return "isolated", ""
        why = f"isolation 'isolated' is not to be had here: {reason}"
        if not allow_weak:
            raise IsolationError(f"{why}; install or enable what is missing, or {allowing}")
    reason = try_level("limited")
    if reason is not None:
        raise IsolationError(f"programs cannot be run here: {reason}")
    return "limited", why


class Sandbox:
    """Runs programs at a level of isolation, several at a time. To be used in `with`, or closed."""

    def __init__(
        self,
        limits: Limits | None = None,
        isolation: Level = "isolated",
        allow_weak: bool = False,
        workers: int | None = None,
        mounts: tuple[Mount, ...] = (),
    ) -> None:
        """`mounts` are extra folders that programs may read; enforced only if isolated."""
        self.limits = limits or Limits()
        self.mounts = mounts
        remove_abandoned_folders()
        self.level, self.weaker_because = choose_level(isolation, allow_weak)
        self.workers = workers or max(1, (os.cpu_count() or 1) - 1)
        self.counts: Counter[Status] = Counter()
        """Programs run, by how they ended."""
        self._lock = threading.Lock()
        self._waiting: dict[int, deque[SingleUse]] = {}
        """Started and unused processes, by hash seed."""
        self._last_error = ""
        self._closed = False
        # Threads that live as long as the sandbox: a process dies with the thread that started it.
        self._threads = ThreadPoolExecutor(self.workers, thread_name_prefix="sandbox")
        atexit.register(self.close)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, programs: Sequence[Program], seed: int = 0) -> list[Outcome]:
        """Run programs; return outcomes in their order. `seed` is the hash seed of all of them: it orders their sets."""
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        outcomes = self._gather([self._threads.submit(self._run_one, program, seed) for program in programs])
        self._count(outcomes)
        return outcomes

    def run_pairs(self, pairs: Sequence[MakePair], seed: int = 0) -> list[tuple[Outcome, Outcome]]:
        """Run pairs of programs that can talk to each other, each in a process of its own; return outcomes in their order. A
        pair is made when its wire is known: what one program writes there the other reads."""
        if self._closed:
            raise RuntimeError("the sandbox is closed")
        outcomes = self._gather([self._threads.submit(self._run_pair, pair, seed) for pair in pairs])
        self._count([outcome for pair in outcomes for outcome in pair])
        return outcomes

    def _gather(self, futures: Sequence[Future[T]]) -> list[T]:
        try:
            return [future.result() for future in futures]
        except BaseException:  # an interrupt: nothing may go on behind our back
            for future in futures:
                future.cancel()
            self.close()
            raise

    def _count(self, outcomes: Sequence[Outcome]) -> None:
        self.counts.update(outcome.status for outcome in outcomes)
        self._check_error_share()

    def run_deterministic(self, programs: Sequence[Program]) -> list[Outcome]:
        """Run programs twice; return each outcome if both runs agree, else `nondeterministic`.

        Each is run in two fresh processes that differ in hash seed, number and place in memory, and does all its calls twice in
        each, with arguments made anew. So it has the limits of one program for twice the calls.
        """
        doubled = [replace(program, calls=(*program.calls, *program.calls)) for program in programs]
        runs = [self.run(doubled, seed) for seed in SEEDS]
        return [_merge_outcomes(*pair) for pair in zip(programs, *runs, strict=True)]

    def close(self) -> None:
        """End all processes; a program that is running has until its wall time is over. Nothing is left afterwards."""
        self._closed = True
        self._threads.shutdown(cancel_futures=True)  # first: until then more may be started
        for waiting in self._waiting.values():
            while waiting:
                waiting.pop().discard()
        atexit.unregister(self.close)

    def _run_one(self, program: Program, seed: int) -> Outcome:
        if len(program.source) > self.limits.source_kb << 10:
            return make_failed_outcome(program, Failure("forbidden", "", f"source of more than {self.limits.source_kb} kB"))
        reason = ""
        for _ in range(STARTS):
            try:
                process = self._take_process(seed)
                self._prepare_processes(seed)  # the next one starts while this one works
            except OSError as error:
                reason = f"no process can be started: {error}"
                continue
            try:
                return self._note_error(process.run(program))
            except NotStarted as error:
                reason = str(error)
            except OSError as error:
                reason = f"no word can be had with the process: {error}"
                break
        return self._note_error(make_failed_outcome(program, Failure("sandbox_error", "", reason)))

    def _run_pair(self, make_pair: MakePair, seed: int) -> tuple[Outcome, Outcome]:
        one, other = os.pipe(), os.pipe()
        ends = ((one[0], other[1]), (other[0], one[1]))
        try:
            programs = make_pair(*ends)
            with contextlib.ExitStack() as started:
                processes = []
                for own in ends:
                    processes.append(SingleUse(self.level, self.limits, seed, self.mounts, own))
                    started.callback(processes[-1].discard)
                started.pop_all()
        except OSError as error:
            failure = Failure("sandbox_error", "", f"no process can be started: {error}")
            return self._note_error(make_failed_outcome(programs[0], failure)), make_failed_outcome(programs[1], failure)
        finally:
            for end in (*one, *other):  # or nobody would see that the other has ended
                os.close(end)
        with ThreadPoolExecutor(1) as beside:
            second = beside.submit(self._run_in, processes[1], programs[1])
            return self._run_in(processes[0], programs[0]), second.result()

    def _run_in(self, process: SingleUse, program: Program) -> Outcome:
        try:
            return self._note_error(process.run(program))
        except (NotStarted, OSError) as error:
            return self._note_error(make_failed_outcome(program, Failure("sandbox_error", "", str(error))))

    def _note_error(self, outcome: Outcome) -> Outcome:
        if outcome.status == "sandbox_error":
            self._last_error = outcome.reason
        return outcome

    def _take_process(self, seed: int) -> SingleUse:
        """Take a started process; one that died while it waited is discarded."""
        while True:
            with self._lock:
                waiting = self._waiting.setdefault(seed, deque())
                process = waiting.popleft() if waiting else None
            if process is None:
                return SingleUse(self.level, self.limits, seed, self.mounts)
            if not process.has_ended():
                return process
            process.discard()

    def _prepare_processes(self, seed: int) -> None:
        """Start processes in advance, one more than workers: starting takes longer than most programs.

        If none can be started, the next `_take` will raise.
        """
        with self._lock:
            missing = 0 if self._closed else self.workers + 1 - len(self._waiting[seed])
        with contextlib.suppress(OSError):
            for _ in range(min(missing, 2)):  # several threads may find the same ones missing
                self._waiting[seed].append(SingleUse(self.level, self.limits, seed, self.mounts))

    def _check_error_share(self) -> None:
        errors, total = self.counts["sandbox_error"], self.counts.total()
        if errors > max(FEW_ERRORS, ERROR_SHARE * total):
            raise SandboxBroken(
                f"{errors} of {total} programs could not be run, for reasons that are not theirs; the last: {self._last_error}"
            )


def _merge_outcomes(program: Program, first: Outcome, second: Outcome) -> Outcome:
    """Merge the outcomes of two processes in which every call was made twice."""
    for outcome in (first, second):
        if outcome.status not in ("ok", "exception"):
            return replace(outcome, results=outcome.results[: len(program.calls)])
    count = len(program.calls)
    rounds = {
        _collect_observations(outcome, part) for outcome in (first, second) for part in (slice(0, count), slice(count, None))
    }
    cpu_s = max(first.cpu_s, second.cpu_s)
    if len(rounds) > 1:
        return make_failed_outcome(
            program, Failure("nondeterministic", "", "its runs differ"), first.stdout, first.stderr, cpu_s
        )
    return replace(first, results=first.results[:count], cpu_s=cpu_s, mutates=first.mutates or second.mutates)


def _collect_observations(outcome: Outcome, part: slice) -> tuple[str | tuple[Status, str], ...]:
    """Collect what must agree between runs: results and kinds of failures, a script's output; not exception texts."""
    results: list[str | tuple[Status, str]] = [
        (each.status, each.error) if isinstance(each, Failure) else each for each in outcome.results[part]
    ]
    return (outcome.status, *results) if outcome.results else (outcome.status, outcome.stdout)
