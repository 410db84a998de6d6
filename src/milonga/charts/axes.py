"""Axes of charts: what can be drawn of a number, and ticks that people would choose.

Invariant: a value that is None, not finite, or not positive on a logarithmic axis is a gap, never a zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from milonga.charts.svg import Value
from milonga.text import UNITS, format_amount

LARGEST, SMALLEST = 1e300, 1e-300
"""Larger and smaller numbers are clamped to these, so that no difference of two overflows."""


def to_drawable(value: Value, log: bool = False) -> float | None:
    """Clamp a number to what can be drawn; None for a gap."""
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    size = min(abs(float(value)), LARGEST)
    if log:
        return max(size, SMALLEST)
    return 0.0 if size < SMALLEST else math.copysign(size, value)


@dataclass(frozen=True)
class Axis:
    """A range of numbers with its ticks; `low < high`."""

    low: float
    high: float
    ticks: Sequence[float]
    names: Sequence[str]
    label: str = ""
    log: bool = False

    def to_fraction(self, value: float) -> float:
        """Position of a number on the axis, from 0 at `low` to 1 at `high`."""
        if self.log:
            return (math.log10(value) - math.log10(self.low)) / (math.log10(self.high) - math.log10(self.low))
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Rows:
    """Categories from top to bottom, in place of a vertical axis."""

    names: Sequence[str]
    label: str = ""


def make_axis(values: Iterable[Value], log: bool = False, label: str = "", outward: bool = False, whole: bool = False) -> Axis:
    """Make an axis that contains all values. `outward` extends it to begin and end at a tick; with `whole` the ticks of whole
    numbers are whole, however few there are."""
    known = [v for value in values if (v := to_drawable(value, log)) is not None]
    if log:
        return _make_log_axis(known, label)
    low, high = min(known, default=0.0), max(known, default=1.0)
    size = max(abs(low), abs(high))
    counts = bool(known) and all(v == round(v) for v in known) and (whole or high - low > 1)  # 0 and 1 may be a share's ends
    if high - low <= size * 1e-9:  # one value, or too near for floating point to tell ticks apart
        around = 0.5 if counts and size < 1e6 else size * 0.1 or 1.0
        low, high = low - around, high + around
    step = max(_nice_step(high - low, 5, (1.0, 2.0, 5.0)), 1.0) if counts else _nice_step(high - low, 5)
    if outward:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    ticks = [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
    return Axis(low, high, ticks, _format_ticks(ticks, step), label)


def _nice_step(span: float, target: int, nice: Sequence[float] = (1.0, 2.0, 2.5, 5.0)) -> float:
    """Round a step to a nice number times a power of ten, so that `span` has about `target` steps."""
    raw = span / target
    power = 10.0 ** math.floor(math.log10(raw))
    return next((m * power for m in nice if m * power >= raw * (1 - 1e-9)), 10.0 * power)


def _format_ticks(ticks: Sequence[float], step: float) -> list[str]:
    """Format all ticks alike: the same unit, and as many decimals as the step needs."""
    largest = max((abs(tick) for tick in ticks), default=0.0)
    unit, name = next(((size, name) for size, name in UNITS if 1e4 <= largest < 1e21 and largest >= size), (1.0, ""))
    whole = (places for places in range(7) if math.isclose(scaled := step / unit * 10**places, round(scaled), rel_tol=1e-6))
    decimals = next(whole, None)
    if decimals is None or largest >= 1e21:
        digits = max(1, math.ceil(math.log10(largest / step)) + 1) if largest else 1
        return [f"{tick:.{min(digits, 12)}g}" for tick in ticks]
    return ["0" if tick == 0 else f"{tick / unit:.{decimals}f}{name}" for tick in ticks]


def _make_log_axis(known: Sequence[float], label: str) -> Axis:
    low, high = min(known, default=1.0), max(known, default=10.0)
    if high / low < 1.5:
        low, high = low / 1.5, high * 1.5
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / 6))
    factors = (1, 2, 5) if last - first <= 2 else (1,)
    ticks = [m * 10.0**e for e in range(first, last + 1, every) for m in factors if low * 0.999 <= m * 10.0**e <= high * 1.001]
    ticks = ticks or [low, high]
    return Axis(min(low, ticks[0]), max(high, ticks[-1]), ticks, [_format_log_tick(tick) for tick in ticks], label, log=True)


def _format_log_tick(tick: float) -> str:
    return format_amount(tick) if 1e-3 <= tick < 1e21 else f"{tick:.3g}"
