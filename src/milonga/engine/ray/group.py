"""A group of workers that act as one, and how it is noticed that one of them was lost.

Invariants: a call to a group answers for all of its workers, or raises `Lost`, after which none of them is left; an error of a
worker that is the user's to mend comes out as what it was.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from ray import exceptions
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from milonga.config import PlacementSection
from milonga.engine.base import Ledger
from milonga.engine.ray.worker import Charges, Facts, Setup, Worker
from milonga.errors import Notice, UserError

GONE = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.NodeDiedError,
    exceptions.OutOfMemoryError,
    exceptions.ObjectLostError,
    exceptions.ObjectFetchTimedOutError,
    exceptions.ActorUnschedulableError,
    exceptions.ActorPlacementGroupRemoved,
)
"""What Ray raises where a process, a machine or what it held is no more."""
GRACE = 60.0
"""Seconds after an error of one worker in which another may turn out to be its cause: the rest then only see that a
connection broke. Ray takes so long to be sure that a machine is lost."""
FULL = "allocate memory"
"""What torch and safetensors say where the system gives them no more."""


class Lost(Exception):
    """A worker was lost; the text says how."""


@dataclass(frozen=True)
class Call:
    """A call in progress. Values stay where they were computed until somebody takes them."""

    values: list[Any]
    charges: list[Any]


class Group:
    """Workers on places that Ray keeps for them."""

    def __init__(self, name: str, setup: Setup, size: int, placement: PlacementSection) -> None:
        self.name, self.setup, self.size, self.placement = name, setup, size, placement
        self.workers: list[Any] = []
        self.places: Any = None
        self.building: list[Any] = []
        self.facts: dict[str, Facts] = {}

    @property
    def alive(self) -> bool:
        return bool(self.workers)

    def start(self) -> None:
        """Start the workers: reserve places, start processes, load models."""
        self.begin()
        self.complete()

    def begin(self) -> None:
        """Begin to start, without waiting for the models: several groups load theirs in parallel."""
        if not ray.is_initialized():  # Ray would start a cluster for a thread that has not noticed the end
            raise UserError(f"{self.name}: not started, since the engine was closed")
        placement = self.placement
        share = {"CPU": placement.cpus, "GPU": placement.gpus or 0.0}
        needs = {kind: amount for kind, amount in share.items() if amount} or {"CPU": 0.001}
        self.places = placement_group([needs] * self.size, strategy=placement.strategy.upper())
        if not self.places.wait(placement.start_s):
            self.stop()
            raise UserError(
                f"{self.name}: no place for {self.size} workers of {needs} each within {placement.start_s:g} s; "
                f"the cluster has {_describe_free_resources()} to spare (placement.cpus, placement.gpus, placement.start_s)"
            )
        for rank in range(self.size):
            strategy = PlacementGroupSchedulingStrategy(self.places, placement_group_bundle_index=rank)
            options = {"num_cpus": needs.get("CPU", 0), "num_gpus": needs.get("GPU", 0), "scheduling_strategy": strategy}
            self.workers.append(Worker.options(max_restarts=0, **options).remote(self.setup, rank, self.size))  # type: ignore[attr-defined]
        place = self.workers[0].meet.remote() if self.size > 1 else None
        self.building = [worker.build.remote(place, placement.start_s) for worker in self.workers]

    def complete(self) -> None:
        try:
            self.facts = self._collect_answers(self.building, self.placement.start_s)[0]
        except BaseException:
            self.stop()  # one without its models is none
            raise

    def stop(self) -> None:
        """End all workers, and give back their places."""
        for worker in self.workers:
            ray.kill(worker)
        if self.places is not None:
            remove_placement_group(self.places)  # Ray ends what still computes there, whether it answers or not
        self.workers, self.places = [], None

    def submit(self, method: str, *args: Any) -> Call:
        sent = [worker.call.options(num_returns=2).remote(method, *args) for worker in self.workers]
        return Call([value for value, _ in sent], [charges for _, charges in sent])

    def wait_until_done(self, call: Call) -> list[Charges]:
        """Wait until all workers are done."""
        return self._collect_answers(call.charges, None)

    def fetch_values(self, call: Call) -> list[Any]:
        """Fetch the return values of the workers."""
        return self._collect_answers(call.values, None)

    def _collect_answers(self, refs: Sequence[Any], limit: float | None) -> list[Any]:
        """Collect the answers of all workers to one call; after an error the group is stopped."""
        try:
            return self._wait_for_answers(refs, limit)
        except BaseException as error:
            # A worker alone has left its call behind with an error; others may be waiting for each other, or still compute.
            if self.size > 1 or isinstance(error, Lost | KeyboardInterrupt):
                self.stop()
            raise

    def _wait_for_answers(self, refs: Sequence[Any], limit: float | None) -> list[Any]:
        """Wait for all answers within the limit; without one, as long as the workers make progress."""
        found: dict[Any, Any] = {}
        patience = limit or min(30.0, self.placement.heartbeat_s / 2)
        silent = 0.0
        while waiting := [ref for ref in refs if ref not in found]:
            done, others = ray.wait(waiting, timeout=patience)
            for ref in done:
                found[ref], silent = self._get_answer(ref, others), 0.0
            if not done and limit is not None:
                raise Lost(f"a worker was not ready after {limit:g} s (placement.start_s)")
            if not done:
                silent = 0.0 if self._is_busy() else silent + patience
            if silent >= self.placement.heartbeat_s:
                raise Lost(f"what a worker has found was under way for {silent:g} s (placement.heartbeat_s)")
        return [found[ref] for ref in refs]

    def _get_answer(self, ref: Any, others: Sequence[Any]) -> Any:
        """Get the answer of a worker, or raise what went wrong with it or with one that it waited for."""
        try:
            return ray.get(ref)
        except GONE as error:  # so too where what it was given is no more, or whom it called
            raise Lost(first_line(error)) from None
        except exceptions.RayTaskError as error:
            raise self._find_cause(error, others) from None

    def _find_cause(self, error: exceptions.RayTaskError, others: Sequence[Any]) -> BaseException:
        ended, _ = ray.wait(list(others), num_returns=len(others), timeout=GRACE) if others else ([], [])
        for other in ended:
            try:
                ray.get(other)
            except GONE as loss:
                return Lost(first_line(loss))
            except exceptions.RayTaskError:
                continue
        if isinstance(error.cause, torch.OutOfMemoryError):
            return UserError(
                f"{self.name}: the memory of a GPU is full: {first_line(error.cause)}; use more learners or smaller models"
            )
        if isinstance(error.cause, MemoryError) or FULL in str(error.cause).lower():
            return Lost(f"a worker ran out of memory: {first_line(error.cause)}")
        cause: BaseException = error.cause or error
        cause.add_note(str(error))  # where it happened, should it be a bug
        return cause

    def _is_busy(self) -> bool:
        """Whether a worker is at work; raise `Lost` if it makes no progress."""
        limit = self.placement.heartbeat_s
        try:
            idle = max(ray.get([worker.beat.remote() for worker in self.workers], timeout=limit / 2))
        except exceptions.GetTimeoutError:
            raise Lost(f"a worker did not answer for {limit:g} s (placement.heartbeat_s)") from None
        except GONE as error:
            raise Lost(first_line(error)) from None
        if idle > limit:
            raise Lost(f"a worker got nowhere for {idle:.0f} s; {limit:g} are allowed (placement.heartbeat_s)")
        return bool(idle)


def report_loss(group: Group, lost: Lost, attempt: int) -> None:
    """Stop a lost group and warn the user; raise an error if it was lost too often."""
    group.stop()
    most = group.placement.retries
    if attempt >= most:
        raise UserError(
            f"{group.name}: lost {attempt + 1} times in a row, and {most} retries are allowed (placement.retries): {lost}; "
            "what was saved goes on with 'milonga resume'"
        ) from None
    said = str(lost).rstrip(".")
    warnings.warn(f"{group.name}: {said}; starting again ({attempt + 1} of {most})", Notice, stacklevel=2)


def add_charges(ledger: Ledger, charges: Sequence[Charges]) -> None:
    """Add the compute of workers to a ledger."""
    for worker in charges:
        for policy, used in worker.items():
            kinds = {kind: amount for kind, amount in used.items() if kind != "flops" and amount}
            for kind, tokens in kinds.items():
                ledger.charge(policy, kind, int(tokens), 0.0)
            ledger.charge(policy, "learn", 0, used["flops"])


def first_line(error: Exception) -> str:
    """What Ray says of a loss, without its pages of advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    starved = "a machine ran low on memory: " if "low on memory" in str(error) else ""
    return starved + (lines[0][:300] if lines else type(error).__name__)


def _describe_free_resources() -> str:
    free = ray.available_resources()
    return ", ".join(f"{free.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU"))
