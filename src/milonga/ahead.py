"""Turns that are played while earlier ones are learned.

Invariants: which weights play a turn follows from its place alone, never from how fast anything was, so that a run can be
repeated and resumed: within a stretch (see `Loop.stretch`) turn n has the weights after turn n - 1 - k, or those of the
stretch's beginning; nothing is played beyond its end. Turns are played in order by one thread, which asks samplers alone, and
cannot reach what learning changes: the state of the recipe, and the pairs that were kept.
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
from milonga.engine.lagged import refuse
from milonga.recipes import Recipe
from milonga.table import Table
from milonga.types import Traces


class Denied:
    """Stands where something is that others change while a turn is played. Whoever looks at it is told so."""

    def __init__(self, what: str) -> None:
        self.what = what

    def _refuse(self, *_: Any) -> NoReturn:
        refuse(self.what)

    __getattr__ = __getitem__ = __setitem__ = __delitem__ = __contains__ = __iter__ = __len__ = _refuse


def player(recipe: Recipe) -> Callable[[Table], Traces]:
    """How a recipe plays ahead: without what it remembers from turn to turn, which depends on what was learned so far. It is
    played by a copy, which must stay one: what `play` noted in it, `credit` would not find."""
    apart: Any = copy.copy(recipe)
    apart.state = Denied("use the recipe's `state`")
    before = dict(vars(apart))

    def play(table: Table) -> Traces:
        traces: Traces = apart.play(table)
        if any(before.get(name) is not value for name, value in vars(apart).items()):
            refuse("set attributes of the recipe")
        return traces

    return play


@dataclass(frozen=True)
class Played:
    """A turn that is ready to be learned from, and when it was played."""

    table: Table
    traces: Traces
    began: float
    ended: float

    def ahead(self, asked: float) -> float:
        """Seconds of its playing for which nobody waited, who began to wait at this time."""
        return max(0.0, self.ended - self.began - max(0.0, self.ended - asked))


class Ahead:
    """The thread that plays, and the turns that wait for it, are played or are ready."""

    def __init__(self, play: Callable[[Table], Traces], engine: Engine, staleness: int) -> None:
        self.play, self.engine, self.staleness = play, engine, staleness
        self.thread = ThreadPoolExecutor(1, "player")
        self.stop = threading.Event()
        self.waiting: deque[Table] = deque()
        """Turns whose weights are not published yet."""
        self.begun: deque[Future[Played]] = deque()
        self.problem = 0
        """Index of the first problem of the next turn: how many a turn draws is known when it was played."""

    def begin(self, stretch: Iterable[Table]) -> None:
        """The turns of a stretch, none of which was learned yet; the first ones are played with what is published now."""
        assert not self.waiting and not self.begun
        self.waiting.extend(stretch)
        self.problem = self.waiting[0].start
        for _ in range(min(self.staleness + 1, len(self.waiting))):
            self.published()

    def published(self) -> None:
        """One more turn was learned and published: one more can be played."""
        if self.waiting:
            table, view = self.waiting.popleft(), self.engine.frozen()
            view.stop = self.stop
            pairs: Any = Denied("use the pairs that were kept")
            apart = replace(table, setting=replace(table.setting, engine=view), preferences=pairs)
            self.begun.append(self.thread.submit(self._play, apart))

    def _play(self, table: Table) -> Played:
        began = time.monotonic()
        table.start = self.problem
        traces = self.play(table)
        self.problem = table.start + table.drawn
        return Played(table, traces, began, time.monotonic())

    def take(self) -> Played:
        """The next turn, waited for; what went wrong in it goes wrong here."""
        return self.begun.popleft().result()

    @property
    def over(self) -> bool:
        """Whether all turns of the stretch were taken."""
        return not self.waiting and not self.begun

    def close(self) -> None:
        """Forget what was not taken. The call under way is waited for, since its workers are about to go; no other begins."""
        self.stop.set()
        self.thread.shutdown(cancel_futures=True)
