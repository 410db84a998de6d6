"""Asynchronous rollouts: later turns are sampled in a thread while earlier ones are learned.

Invariants: which weights sample a turn follows from its place in the schedule alone, never from timing, so that a run can be
repeated and resumed. Within a stretch (see `Loop.stretch`), with staleness k, turn n has the weights after turn n - 1 - k, or
those at the stretch's beginning; nothing is sampled beyond its end. Turns are sampled in order by one thread, which calls
samplers alone and cannot reach what learning changes: the state of the recipe, and the preference pairs.
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

from milonga.engine import Engine
from milonga.engine.lagged import refuse_in_prefetch
from milonga.recipes import Recipe
from milonga.table import Table
from milonga.types import Traces


class Denied:
    """Placeholder for an object that learning changes while rollouts are sampled. Any access raises an error."""

    def __init__(self, what: str) -> None:
        self.what = what

    def _refuse(self, *_: Any) -> NoReturn:
        refuse_in_prefetch(self.what)

    __getattr__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __iter__ = __len__ = _refuse


def isolate_recipe(recipe: Recipe) -> Callable[[Table], Traces]:
    """Return a function that samples a recipe's rollouts without its state, which depends on what was learned so far. It runs
    on a copy of the recipe, whose attributes must not be set: `credit` would not find what `play` noted there."""
    apart: Any = copy.copy(recipe)
    apart.state = Denied("use the recipe's `state`")
    before = dict(vars(apart))

    def play(table: Table) -> Traces:
        traces: Traces = apart.play(table)
        if any(before.get(name) is not value for name, value in vars(apart).items()):
            refuse_in_prefetch("set attributes of the recipe")
        return traces

    return play


@dataclass(frozen=True)
class Played:
    """The rollouts of a turn that is ready to be learned from, and when they were sampled."""

    table: Table
    traces: Traces
    began: float
    ended: float

    def hidden_seconds(self, asked: float) -> float:
        """Rollout seconds hidden behind learning, if the learner began to wait at time `asked`."""
        return max(0.0, self.ended - self.began - max(0.0, self.ended - asked))


class Ahead:
    """The rollout thread and its queue of turns: waiting for weights, being sampled, or ready."""

    def __init__(self, play: Callable[[Table], Traces], engine: Engine, staleness: int) -> None:
        self.play, self.engine, self.staleness = play, engine, staleness
        self.thread = ThreadPoolExecutor(1, "player")
        self.stop = threading.Event()
        self.waiting: deque[Table] = deque()
        """Turns whose weights are not published yet."""
        self.begun: deque[Future[Played]] = deque()
        self.problem = 0
        """Index of the first problem of the next turn. It is known only after the turn before was sampled."""

    def begin(self, stretch: Iterable[Table]) -> None:
        """Queue the turns of a stretch, none of which was learned yet. The first ones are sampled from the weights published
        now."""
        assert not self.waiting and not self.begun
        self.waiting.extend(stretch)
        self.problem = self.waiting[0].start
        for _ in range(min(self.staleness + 1, len(self.waiting))):
            self.submit_next()

    def submit_next(self) -> None:
        """Submit the next turn to the rollout thread, after one more turn was learned and published."""
        if self.waiting:
            table, view = self.waiting.popleft(), self.engine.frozen()
            view.stop = self.stop
            pairs: Any = Denied("use the pairs that were kept")
            apart = replace(table, setting=replace(table.setting, engine=view), preferences=pairs)
            self.begun.append(self.thread.submit(self._run_turn, apart))

    def _run_turn(self, table: Table) -> Played:
        began = time.monotonic()
        table.start = self.problem
        traces = self.play(table)
        self.problem = table.start + table.drawn
        return Played(table, traces, began, time.monotonic())

    def take_next(self) -> Played:
        """Wait for the next turn and return it; an error of the rollout thread is raised here."""
        return self.begun.popleft().result()

    @property
    def is_empty(self) -> bool:
        """Whether all turns of the stretch were taken."""
        return not self.waiting and not self.begun

    def close(self) -> None:
        """Drop the turns that were not taken. The sampling call under way is waited for, since its workers are about to be
        ended; no other begins."""
        self.stop.set()
        self.thread.shutdown(cancel_futures=True)
