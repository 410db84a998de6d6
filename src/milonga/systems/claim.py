"""A claim of a paper as a comparison that can be run. Arms, metric and budget are fixed before any result is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


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
    matters: float = 0.01
    """The smallest difference that would matter: if the whole interval lies below it, the claim does not hold."""
    area: bool = False
    """Whether the area under the curve is compared, not the final value."""
    more: tuple[str, ...] = ()
    """Further arms, with `--full`."""
    gpu: bool = False
    """Whether five seeds take more than half an hour on two cores."""
