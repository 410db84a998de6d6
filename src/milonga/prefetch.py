"""Asynchronous rollouts: later turns are sampled in a thread while earlier ones are learned, off-policy by k turns.

Invariants: which weights sample a turn follows from its place in the schedule alone, never from timing, so that a run can be
repeated and resumed. Between two barriers (see `Loop.list_prefetchable_turns`), with staleness k, turn n has the weights
after turn n - 1 - k, or those at the first barrier; nothing is sampled beyond the second. Turns are sampled in order by one
thread, which calls samplers alone and cannot reach what learning changes: the state of the recipe, and the preference pairs.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from milonga.context import Context
from milonga.engine import Engine
from milonga.engine.pinned import refuse_in_prefetch
from milonga.recipe import Recipe
from milonga.types import Rollouts


class Denied:
    """Placeholder for an object that learning changes while rollouts are sampled. Any access raises an error."""

    def __init__(self, what: str) -> None:
        self.what = what

    def _refuse(self, *_: Any) -> NoReturn:
        refuse_in_prefetch(self.what)

    __getattr__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __iter__ = __len__ = _refuse


def isolate_recipe(recipe: Recipe) -> Callable[[Context], Rollouts]:
    """Return a function that samples a recipe's rollouts without its state, which depends on what was learned so far. It runs
    on a copy of the recipe, whose attributes must not be set: `credit` would not find what `rollout` noted there."""
    apart: Any = copy.copy(recipe)
    apart.state = Denied("use the recipe's `state`")
    before = dict(vars(apart))

    def rollout(ctx: Context) -> Rollouts:
        rollouts: Rollouts = apart.rollout(ctx)
        if any(before.get(name) is not value for name, value in vars(apart).items()):
            refuse_in_prefetch("set attributes of the recipe")
        return rollouts

    return rollout


@dataclass(frozen=True)
class Prefetched:
    """The rollouts of a turn that is ready to be learned from, and when they were sampled."""

    ctx: Context
    rollouts: Rollouts
    began: float
    ended: float

    def hidden_seconds(self, asked: float) -> float:
        """Rollout seconds hidden behind learning, if the learner began to wait at time `asked`."""
        return max(0.0, self.ended - self.began - max(0.0, self.ended - asked))


class Prefetcher:
    """The rollout thread and its queue of turns: waiting for weights, being sampled, or ready."""

    def __init__(self, rollout: Callable[[Context], Rollouts], engine: Engine, staleness: int) -> None:
        self.rollout, self.engine, self.staleness = rollout, engine, staleness
        self.thread = ThreadPoolExecutor(1, "rollouts")
        self.stop = threading.Event()
        self.waiting: deque[Context] = deque()
        """Turns whose weights are not published yet."""
        self.begun: deque[Future[Prefetched]] = deque()
        self.problem = 0
        """Index of the first problem of the next turn. It is known only after the turn before was sampled."""

    def begin(self, turns: Iterable[Context]) -> None:
        """Queue the turns up to the next barrier, none of which was learned yet. The first ones are sampled from the weights
        published now."""
        assert not self.waiting and not self.begun
        self.waiting.extend(turns)
        self.problem = self.waiting[0].start
        for _ in range(min(self.staleness + 1, len(self.waiting))):
            self.submit_next()

    def submit_next(self) -> None:
        """Submit the next turn to the rollout thread, after one more turn was learned and published."""
        if self.waiting:
            ctx, view = self.waiting.popleft(), self.engine.sampling_view()
            view.stop = self.stop
            pairs: Any = Denied("use the pairs that were kept")
            apart = replace(ctx, run=replace(ctx.run, engine=view), preferences=pairs)
            self.begun.append(self.thread.submit(self._run_turn, apart))

    def _run_turn(self, ctx: Context) -> Prefetched:
        began = time.monotonic()
        ctx.start = self.problem
        rollouts = self.rollout(ctx)
        self.problem = ctx.start + ctx.drawn
        return Prefetched(ctx, rollouts, began, time.monotonic())

    def take_next(self) -> Prefetched:
        """Wait for the next turn and return it; an error of the rollout thread is raised here."""
        return self.begun.popleft().result()

    @property
    def is_empty(self) -> bool:
        """Whether all turns up to the barrier were taken."""
        return not self.waiting and not self.begun

    def close(self) -> None:
        """Drop the turns that were not taken. The sampling call under way is waited for, since its workers are about to be
        ended; no other begins."""
        self.stop.set()
        self.thread.shutdown(cancel_futures=True)
