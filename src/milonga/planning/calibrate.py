"""Calibrate the cost model: the efficiency reached of a data sheet, fitted to measurements on one GPU, and its errors.

Every time in the model is linear in the unknowns (one over a share of a peak, or seconds of one thing), so that least squares
of relative errors fit them. Invariant: no measurement is left out because it fits badly; each is also predicted by a fit that
did not see it, and those on the larger model by a fit that saw only the smaller one.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from milonga.planning import memory
from milonga.planning.hardware import ACCELERATORS, Accelerator
from milonga.planning.model import OPTIMIZER_BYTES, Efficiencies, sum_parts
from milonga.planning.shapes import SHAPES, Shape

MEASURED = Path(__file__).with_name("measured.json")
"""Written by scripts/calibrate_plan.py from benchmarks/results."""
UNKNOWNS = {
    "sampling": ("bandwidth", "layer_s", "prefill", "token_s"),
    "learning": ("products", "traffic", "read_s"),
    "between": ("rollout_s",),
}
"""Unknowns that are fitted to each group of measurements."""
SHARES = ("bandwidth", "prefill", "products")
"""Unknowns that divide: fitted as their inverses."""


@dataclass(frozen=True)
class Measurement:
    """Seconds of one piece of work on one GPU."""

    name: str
    kind: str
    """step, sample, learn, score or between."""
    shape: str
    seconds: float
    source: str
    rows: int = 0
    prompts: int = 0
    prompt: float = 0
    new: int = 0
    tokens: int = 0
    flops: float = 0
    """Operations of learning or scoring, if the benchmark counted them itself."""

    @property
    def group(self) -> str:
        return {"step": "sampling", "sample": "sampling", "between": "between"}.get(self.kind, "learning")


@dataclass(frozen=True)
class Held:
    """Measured peak memory while one GPU learned from `tokens` tokens in one pass. Nothing is fitted to it. The learner of the
    measurement also held the weights of its start in float32, as one that uses them would."""

    name: str
    shape: str
    tokens: int
    size: float
    """Bytes."""
    source: str

    @property
    def predicted_bytes(self) -> float:
        shape = SHAPES[self.shape]
        return sum_parts(memory.compute_pass_memory(shape, 1, self.tokens, recompute=False)) + 4 * shape.parameters


def _make_features(one: Measurement, gpu: Accelerator, bandwidth: float) -> tuple[list[float], float]:
    """Features of a measurement: the coefficient of each unknown of its group, and the seconds that do not depend on them."""
    shape = SHAPES[one.shape]
    if one.kind == "between":
        return [float(one.rows)], 0.0
    if one.group == "sampling":
        return _sampling_features(one, shape, gpu), 0.0
    passes = 3 if one.kind == "learn" else 1
    tokens = one.tokens or one.rows * (one.prompt + one.new)
    forward = one.flops / 3 if one.flops else _row_flops(one, shape)
    fixed = OPTIMIZER_BYTES * shape.parameters / (gpu.bandwidth * bandwidth) if one.kind == "learn" else 0.0
    moved = passes / 3 * tokens * shape.activation_bytes
    return [passes * forward / gpu.flops, moved / gpu.bandwidth, float(tokens)], fixed


def _row_flops(one: Measurement, shape: Shape) -> float:
    length = one.prompt + one.new
    return shape.flops(one.rows * length, one.rows * length**2 / 2, heads=one.rows * one.new)


def _sampling_features(one: Measurement, shape: Shape, gpu: Accelerator) -> list[float]:
    """Features of a sampling measurement. All rows have one length: all steps have all rows. A single step is measured around
    the middle of the call."""
    steps = 1 if one.kind == "step" else one.new
    context = one.prompt + (0 if one.kind == "step" else one.new / 2)
    moved = steps * (float(shape.count_bytes_read(np.array(float(one.rows)))) + one.rows * context * shape.cache_bytes)
    operations = shape.flops(one.prompts * one.prompt, one.prompts * one.prompt**2 / 2, heads=one.prompts)
    prefill = 0.0 if one.kind == "step" else operations / gpu.flops
    return [moved / gpu.bandwidth, steps * shape.layers, prefill, 0.0 if one.kind == "step" else float(one.rows * one.new)]


def fit_efficiencies(seen: Sequence[Measurement], gpu: Accelerator) -> Efficiencies:
    """Fit the efficiencies by least squares of relative errors, group by group; a negative unknown is set to zero."""
    found: dict[str, float] = {}
    for group, names in UNKNOWNS.items():
        members = [one for one in seen if one.group == group]
        pairs = [_make_features(one, gpu, found.get("bandwidth", 1.0)) for one in members]
        matrix = np.array([[value / one.seconds for value in row] for one, (row, _) in zip(members, pairs, strict=True)])
        target = np.array([1 - fixed / one.seconds for one, (_, fixed) in zip(members, pairs, strict=True)])
        solved = _solve_non_negative(matrix, target)
        for name, value in zip(names, solved, strict=True):
            found[name] = (1 / value if value else 1.0) if name in SHARES else float(value)
    return Efficiencies(**found)


def _solve_non_negative(matrix: Any, target: Any) -> list[float]:
    """Solve least squares without negative unknowns: those that would be negative are dropped, the worst first. Columns are
    scaled, since their units differ by many powers of ten."""
    scale = np.maximum(np.abs(matrix).max(axis=0), 1e-300)
    kept = list(range(matrix.shape[1]))
    while kept:
        solved = np.linalg.lstsq(matrix[:, kept] / scale[kept], target, rcond=None)[0]
        if (solved >= 0).all():
            break
        kept.pop(int(np.argmin(solved)))
    out = [0.0] * matrix.shape[1]
    for place, value in zip(kept, solved if kept else [], strict=True):
        out[place] = float(value / scale[place])
    return out


def predict_seconds(one: Measurement, gpu: Accelerator, reached: Efficiencies) -> float:
    row, fixed = _make_features(one, gpu, reached.bandwidth)
    found = asdict(reached)
    values = [1 / found[name] if name in SHARES else found[name] for name in UNKNOWNS[one.group]]
    return fixed + float(np.dot(values, row))


@dataclass(frozen=True)
class Check:
    """A measurement and its predictions: by a fit with it, without it, and without all larger models."""

    one: Measurement
    fitted: float
    unseen: float
    foreign: float | None

    def error(self, predicted: float) -> float:
        """Relative error of a prediction; positive if the prediction is too slow."""
        return predicted / self.one.seconds - 1


@dataclass(frozen=True)
class Calibration:
    """A fit, and its errors."""

    gpu: Accelerator
    measurements: tuple[Measurement, ...]
    held: tuple[Held, ...] = ()

    @cached_property
    def reached(self) -> Efficiencies:
        return fit_efficiencies(self.measurements, self.gpu)

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        return tuple(self._check(one) for one in self.measurements)

    def _check(self, one: Measurement) -> Check:
        def without(leave: Callable[[Measurement], bool]) -> float:
            return predict_seconds(
                one, self.gpu, fit_efficiencies([other for other in self.measurements if not leave(other)], self.gpu)
            )

        smallest = min(SHAPES[other.shape].parameters for other in self.measurements)
        foreign = None
        if SHAPES[one.shape].parameters > smallest:
            foreign = without(lambda other: SHAPES[other.shape].parameters > smallest)
        return Check(one, predict_seconds(one, self.gpu, self.reached), without(lambda other: other is one), foreign)

    def errors(self) -> dict[str, float]:
        """Median and largest error of predictions of what the fit did not see; and of the larger models from the smallest."""
        unseen = [abs(check.error(check.unseen)) for check in self.checks]
        foreign = [abs(check.error(check.foreign)) for check in self.checks if check.foreign is not None]
        return {
            "median": statistics.median(unseen),
            "worst": max(unseen),
            "from the smallest model, median": statistics.median(foreign) if foreign else float("nan"),
            "from the smallest model, worst": max(foreign, default=float("nan")),
        }

    def measured_range(self) -> dict[str, tuple[float, float]]:
        """Ranges within which a number is called calibrated: model parameters, rows decoded side by side, tokens of a row."""
        sizes = [SHAPES[one.shape].parameters for one in self.measurements]
        sampled = [one for one in self.measurements if one.group == "sampling"]
        rows = [one.rows for one in sampled]
        longest = max(one.prompt + one.new for one in sampled)
        return {"parameters": (min(sizes), max(sizes)), "rows": (min(rows), max(rows)), "tokens": (0.0, longest)}


@cache
def calibrate(file: Path = MEASURED) -> Calibration:
    """Load the measurements from a file as a calibration."""
    data: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    measurements = tuple(Measurement(**row) for row in data["measurements"])
    return Calibration(ACCELERATORS[data["accelerator"]], measurements, tuple(Held(**row) for row in data["memory"]))
