"""Dynamic batching: a pair behind a queue. Requests that wait at the same time are answered by one batch of the engine.

One thread owns the pair. It takes the oldest request, and with it all others in the queue with the same parameters (as many
solutions, as many checks), up to `AT_ONCE` items. While it works, further requests queue up: the higher the load, the larger
the batches.

Invariants: a result depends only on the item and the seed of its request, not on other requests; the queue is bounded, and a
request that does not fit is refused; after `close` no request is left waiting.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from milonga.errors import UserError
from milonga.pair import Pair
from milonga.tasks.foreign import make_foreign_problem
from milonga.types import Problem, Rollout
from milonga.using.answers import Rank, answer_problems, answer_to_json, verdict_to_json

AT_ONCE = 256
"""Most items in one batch; a larger request is a batch of its own."""
GATHER = 0.005
"""Seconds that an idle worker waits after the first request for others to batch with it."""
Row = dict[str, Any]


class BusyError(UserError):
    """The queue is full."""


@dataclass(frozen=True)
class Way:
    """The parameters of a job. Without `best_of` its items are solutions to verify."""

    checks: int
    best_of: int | None = None
    rank: Rank = "verifier"


@dataclass(frozen=True, eq=False)
class Job:
    """The items of one request. Jobs with the same `way` can be batched."""

    way: Way
    items: Sequence[Problem] | Sequence[Rollout]
    done: Future[list[Row]] = field(default_factory=Future)


class Service:
    """Answers requests with a pair, in batches. Call `start` and `close` once each."""

    def __init__(self, pair: Pair, waiting: int) -> None:
        self.pair = pair
        self.waiting = waiting
        """Most items in the queue."""
        self.batches = 0
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._worker = threading.Thread(target=self._run_worker, name="milonga-pair", daemon=True)

    def start(self) -> None:
        self._worker.start()

    def close(self) -> None:
        """Finish the current batch, refuse the queued jobs, and close the pair."""
        with self._changed:
            self._closed = True
            left, self._queue = list(self._queue), deque()
            self._changed.notify_all()
        for job in left:
            if job.done.set_running_or_notify_cancel():
                job.done.set_exception(BusyError("the service is stopping"))
        self._worker.join()
        self.pair.close()

    @property
    def queued(self) -> int:
        """Number of queued items whose requests were not cancelled."""
        with self._changed:
            return sum(len(job.items) for job in self._queue if not job.done.cancelled())

    def solve(self, questions: Sequence[str], best_of: int, rank: Rank, checks: int, seed: int) -> Future[list[Row]]:
        """Submit questions; the future returns one answer each. See `milonga.using.answers`."""
        return self._submit(
            Job(Way(checks, best_of, rank), [make_foreign_problem(_make_item_id(seed, text), text) for text in questions])
        )

    def verify(self, solutions: Sequence[tuple[str, Sequence[str], str | None]], checks: int, seed: int) -> Future[list[Row]]:
        """Submit solutions as (question, steps, answer); the future returns one verdict each."""
        given = self.pair.wrap_solution
        rollouts = [given(make_foreign_problem(_make_item_id(seed, *item), item[0]), item[1], item[2]) for item in solutions]
        return self._submit(Job(Way(checks), rollouts))

    def _submit(self, job: Job) -> Future[list[Row]]:
        with self._changed:
            if self._closed:
                raise BusyError("the service is stopping")
            self._queue = deque(one for one in self._queue if not one.done.cancelled())
            # An empty queue accepts any request: one that is larger than the queue could otherwise never be answered.
            if self._queue and self.queued + len(job.items) > self.waiting:
                raise BusyError("too many requests are waiting")
            self._queue.append(job)
            self._changed.notify_all()
        return job.done

    def _run_worker(self) -> None:
        while (taken := self._take_jobs()) is not None:
            # Jobs cancelled meanwhile are dropped; the others can no longer be cancelled.
            jobs = [job for job in taken if job.done.set_running_or_notify_cancel()]
            if not jobs:
                continue
            self.batches += 1
            try:
                rows = self._answer_jobs(jobs)
                found = [[rows[item.id] for item in job.items] for job in jobs]
            except Exception as error:
                for job in jobs:
                    job.done.set_exception(error)
            else:
                for job, answered in zip(jobs, found, strict=True):
                    job.done.set_result(answered)

    def _take_jobs(self) -> list[Job] | None:
        """Take the oldest job and those that can be batched with it; None once the service is closed."""
        with self._changed:
            if not self._queue and not self._closed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                self._changed.wait_for(lambda: self._closed, timeout=GATHER)
            if self._closed:
                return None
            first = self._queue[0]
            taken, size = [first], len(first.items)
            for job in list(self._queue)[1:]:
                if job.way == first.way and size + len(job.items) <= AT_ONCE:
                    taken.append(job)
                    size += len(job.items)
            self._queue = deque(job for job in self._queue if job not in taken)
            return taken

    def _answer_jobs(self, jobs: Sequence[Job]) -> dict[str, Row]:
        """Compute the rows of all items by id; identical items are computed once."""
        items: dict[str, Any] = {item.id: item for job in jobs for item in job.items}
        way, distinct = jobs[0].way, list(items.values())
        if way.best_of is None:
            return {v.solution.id: verdict_to_json(v) for v in self.pair.verify(distinct, way.checks)}
        return {
            a.problem.id: answer_to_json(a) for a in answer_problems(self.pair, distinct, way.best_of, way.rank, way.checks)
        }


def _make_item_id(*parts: object) -> str:
    """Make the id of an item by hashing seed and content: equal items with equal seeds get equal ids."""
    return hashlib.blake2b(repr(parts).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
