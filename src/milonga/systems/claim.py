"""A claim of a paper as a comparison that can be run. Arms, metric, conditions and budget are fixed before any result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Measured:
    """One measured number of an arm: at its end, or at its start."""

    metric: str = ""
    """Empty: the claim's own."""
    arm: int = 1
    """The place among the claim's arms: 0 is the one that should be better, 1 the one that it is compared with."""
    start: bool = False


@dataclass(frozen=True)
class Condition:
    """What must be so in a pilot run, or the claim cannot be tested in this setting. Bounds are inclusive."""

    why: str
    """What is wrong where it is not so, as the beginning of a sentence."""
    of: Measured = Measured()
    minus: Measured | None = None
    """Taken off, where a difference is meant."""
    least: float = float("-inf")
    most: float = float("inf")


CEILING = 0.85
"""A comparator that ends above this leaves too little to be gained."""
ROOM = Condition("nothing is left to be gained", most=CEILING)
ROOM_FOR_SOLUTIONS = Condition("nearly all solutions are right", Measured("eval/generator/accuracy"), most=CEILING)
LEARNS = Condition("what it is compared with gets worse than it was at its start", minus=Measured(start=True), least=-0.02)
USUAL = (ROOM, LEARNS)
SHARPENING = Condition(
    "greedy solutions are mostly right at the start, so that sharpening alone would be measured",
    Measured("eval/generator/greedy_accuracy", start=True),
    most=0.6,
)


def beat_blind_choice(accuracy: str, picks: str = "") -> Condition:
    """Of a metric that picks one of many solutions: the comparator picks no worse than chance, which is this accuracy."""
    return Condition("what it is compared with picks worse than blind choice", Measured(picks), Measured(accuracy), least=0.0)


@dataclass(frozen=True)
class Claim:
    """A claim: the first arm is better than the second in the metric. A third arm, if any, is only shown beside them."""

    recipe: str
    says: str
    """The claim in one sentence."""
    arms: tuple[str, ...]
    """Two or three arms, as `milonga compare` takes them: RECIPE or RECIPE:key=value,key=value."""
    metric: str
    turns: int
    task: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Config of all arms. Evaluations are on `test`."""
    higher: bool = True
    """Whether a higher metric is better."""
    matters: float = 0.05
    """The smallest difference of interest: if a larger one can be ruled out, the claim does not hold."""
    conditions: tuple[Condition, ...] = ()
    """Checked in a pilot run of a seed that is not reported, before any other seed."""
    effect: float | None = None
    """The difference that is expected; `matters`, if none is."""
    spread: float | None = None
    """Standard deviation of the paired differences, as earlier runs had it: with it the number of seeds is planned."""
    area: bool = False
    """Whether the area under the curve is compared, not the final value."""
    threshold: float | None = None
    """Where runs break through or do not: what is compared is the share of seeds that end above this."""
    more: tuple[str, ...] = ()
    """Further arms, with `--full`."""
    gpu: bool = False
    """Whether five seeds take more than half an hour on two cores."""
