"""Who learns when: phases, warm-up, turns taken in a ratio, gates, plateaus.

Invariant: where a schedule stands is a `Cursor` of two integers, and conditions look only at the metrics rows of the run; a
resumed run therefore takes the same path.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Row = Mapping[str, Any]


class Condition(Protocol):
    """A function that says whether a phase is over. `rows` are the metrics rows of this phase so far."""

    def __call__(self, rows: Sequence[Row]) -> bool: ...


@dataclass(frozen=True)
class Gate:
    """A condition that ends a phase when a metric has reached a bound."""

    metric: str
    at_least: float

    def __call__(self, rows: Sequence[Row]) -> bool:
        values = _collect_metric(rows, self.metric)
        return bool(values) and values[-1] >= self.at_least


@dataclass(frozen=True)
class Plateau:
    """A condition that ends a phase when the best value of a metric is `patience` measurements old."""

    metric: str
    patience: int = 3
    least_gain: float = 0.0

    def __call__(self, rows: Sequence[Row]) -> bool:
        best, age = -math.inf, 0
        for value in _collect_metric(rows, self.metric):
            best, age = (value, 0) if value > best + self.least_gain else (best, age + 1)
        return age >= self.patience


def _collect_metric(rows: Sequence[Row], metric: str) -> list[float]:
    return [float(row[metric]) for row in rows if row.get(metric) is not None]


@dataclass(frozen=True)
class Action:
    """A change of a policy's weights on entering a phase: a copy, a reset or a snapshot."""

    kind: Literal["copy", "reset", "snapshot"]
    policy: str
    source: str = ""
    """copy: the policy to copy from. snapshot: the name to keep the weights under. reset: the snapshot to go back to; the
    policy's own start where none is named."""


@dataclass(frozen=True)
class Phase:
    """Turns in which one agent learns: a number of them, or until a condition holds (at most `turns`, if both are given)."""

    learner: str
    turns: int | None = None
    until: Condition | None = None
    enter: tuple[Action, ...] = ()
    name: str = ""
    """Name of what is learned, if an agent learns several things: the recipe finds it in the context."""
    counts: bool = True
    """Whether turns of the lead agent in it count as turns of the run."""

    def is_over(self, done: int, rows: Sequence[Row]) -> bool:
        return (self.turns is not None and done >= self.turns) or (self.until is not None and done > 0 and self.until(rows))


@dataclass(frozen=True)
class Cursor:
    """Where a schedule stands: the phase, counted from the start, and the turns done in it."""

    phase: int = 0
    done: int = 0


@dataclass(frozen=True)
class Schedule:
    """Phases that come once, then phases that come again and again."""

    intro: tuple[Phase, ...] = ()
    cycle: tuple[Phase, ...] = ()

    def __add__(self, other: Schedule) -> Schedule:
        if self.cycle:
            raise ValueError("nothing can follow a cycle")
        return Schedule(self.intro + other.intro, other.cycle)

    def get_phase(self, number: int) -> Phase | None:
        if number < len(self.intro):
            return self.intro[number]
        return self.cycle[(number - len(self.intro)) % len(self.cycle)] if self.cycle else None

    def count_rounds(self, number: int) -> int:
        """Count the phases of the same learner and name before this one."""
        earlier, this = [self.get_phase(k) for k in range(number)], self.get_phase(number)
        alike = [p for p in earlier if p and this and (p.learner, p.name) == (this.learner, this.name)]
        return len(alike)

    def advance(self, cursor: Cursor, rows: Sequence[Row]) -> Cursor:
        """Return the cursor of the next turn: the same phase, or the next one that is not over at once."""
        for _ in range(len(self.intro) + 2 * len(self.cycle) + 1):
            phase = self.get_phase(cursor.phase)
            if phase is None or not phase.is_over(cursor.done, rows[len(rows) - cursor.done :] if cursor.done else ()):
                return cursor
            cursor = Cursor(cursor.phase + 1, 0)
        raise ValueError("no phase of the schedule has any turns")

    def count_turns_until(self, learner: str, count: int) -> int | None:
        """Count all turns until `learner` has learned `count` times; None if conditions make that unknown."""
        counted = self.count_turns_by_learner(learner, count)
        return None if counted is None else counted.total()

    def count_turns_by_learner(self, learner: str, count: int) -> Counter[str] | None:
        """Count the turns of each learner until `learner` has learned `count` times; None if conditions make that unknown."""
        phases = self.intro + self.cycle
        if any(p.until is not None or p.turns is None for p in phases):
            return Counter({learner: count}) if all(p.learner == learner and p.counts for p in phases) else None
        total, led, number = Counter[str](), 0, 0
        while led < count:
            phase = self.get_phase(number)
            if phase is None or (number >= len(self.intro) and all(p.learner != learner for p in self.cycle)):
                return None
            turns = phase.turns or 0
            if phase.learner == learner and phase.counts:
                turns = min(turns, count - led)
                led += turns
            total[phase.learner] += turns
            number += 1
        return total


def always(learner: str) -> Schedule:
    return Schedule(cycle=(Phase(learner, 1),))


def warm_up(learner: str, turns: int) -> Schedule:
    return Schedule(intro=(Phase(learner, turns),) if turns else ())


def alternate(**turns: int) -> Schedule:
    """Alternate learners: `alternate(generator=3, verifier=1)` repeats three turns of one and one of the other."""
    return Schedule(cycle=tuple(Phase(learner, count) for learner, count in turns.items() if count))


def rounds(learner: str, turns: int, policy: str, tag: str) -> Schedule:
    """Repeat rounds of `turns` turns; a snapshot of the policy is taken under `tag` at the start of each round."""
    return Schedule(cycle=(Phase(learner, turns, enter=(Action("snapshot", policy, tag),)),))


def until(learner: str, condition: Condition, at_most: int | None = None) -> Schedule:
    """Learn until a condition holds (a gate or a plateau), for at most `at_most` turns."""
    return Schedule(intro=(Phase(learner, at_most, condition),))
