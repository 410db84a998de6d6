"""A claim of a paper as a comparison that can be run. Arms, metric, conditions and budget are fixed before any result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from milonga.errors import ConfigError


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
    """What must be so in a pilot, or the claim cannot be tested in this setting. Bounds are inclusive."""

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
"""These are about the claim's own metric, and so for claims of which a higher one is better."""
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
    """The smallest difference of interest: if one as large can be ruled out, the claim does not hold."""
    conditions: tuple[Condition, ...] = ()
    """Checked in a pilot of seeds that are not reported, before any other seed."""
    effect: float | None = None
    """The difference that is expected, at least `matters`; None: just that."""
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

    def __post_init__(self) -> None:
        """Refuse what could not be tested, or would be tested against itself."""
        if not 2 <= len(self.arms) <= 3:
            raise ConfigError(f"the claim of '{self.recipe}' has {len(self.arms)} arms; it needs two, or three")
        if len({*self.arms}) < len(self.arms):
            raise ConfigError(f"the claim of '{self.recipe}' has an arm twice")
        if self.matters <= 0:
            raise ConfigError(f"the claim of '{self.recipe}': matters is {self.matters}; it is a size, and above 0")
        if self.effect is not None and self.effect < self.matters:
            raise ConfigError(
                f"the claim of '{self.recipe}': an effect of {self.effect} is expected, and one below {self.matters} does not"
                " matter; lower `matters` or raise `effect`"
            )
        if self.spread is not None and self.spread < 0:
            raise ConfigError(f"the claim of '{self.recipe}': spread is {self.spread}; a standard deviation is not below 0")
        for condition in self.conditions:
            if condition.least == float("-inf") and condition.most == float("inf"):
                raise ConfigError(f"the claim of '{self.recipe}': “{condition.why}” has no bound, and could not be missed")
            if not self.higher and condition in USUAL:
                raise ConfigError(f"the claim of '{self.recipe}': “{condition.why}” is for metrics of which higher is better")
            for one in (condition.of, condition.minus):
                if one is not None and not 0 <= one.arm < len(self.arms):
                    raise ConfigError(f"the claim of '{self.recipe}': a condition is on arm {one.arm}; there is none")
