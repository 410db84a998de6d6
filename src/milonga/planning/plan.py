"""Find the best placement on a number of GPUs: colocated (all work in turns), or split into samplers and learners per policy.

Invariants: every size of every group is tried (on a grid that only grows with the number of GPUs, so that more GPUs are never
slower); GPUs that would not help are left out, and the plan says so; what does not fit is refused with the smallest number that
would. A time is a sum of parts, and the largest part of the busiest group is the bound.

Split groups work on different turns at once with asynchronous rollouts: with staleness, a turn is sampled while the one before
it is learned, within a stretch of turns of one learner (`pipeline`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from milonga.errors import UserError
from milonga.planning import memory
from milonga.planning.calibrate import Calibration
from milonga.planning.model import (
    Machine,
    Parts,
    add_parts,
    copy_parts,
    learn_parts,
    publish_parts,
    sample_parts,
    scale_parts,
    sum_parts,
)
from milonga.planning.pipeline import compute_cycle_seconds
from milonga.planning.shapes import Shape
from milonga.planning.workload import Workload
from milonga.types import Floats

TENSOR = (1, 2, 4, 8, 16, 32)
"""Tensor-parallel sizes: GPUs of a sampling engine."""
GRID = ((8, 1), (16, 4), (64, 8), (128, 16), (256, 32), (512, 64), (1024, 128), (2048, 256), (4096, 512), (8192, 1024))
"""Sizes of a group: up to the first number by steps of the second."""
ENOUGH = 1.01
"""Tolerance: among placements this close to the fastest, the one with the fewest GPUs is taken."""
GIB = 2**30


def list_group_sizes(most: int) -> list[int]:
    found = [size for (begin, _), (end, step) in pairwise([(0, 0), *GRID]) for size in range(begin + step, end + 1, step)]
    return [size for size in found if size <= most]


@dataclass(frozen=True)
class Group:
    """GPUs that do one kind of work: their seconds for each kind of turn, and the memory of each GPU."""

    policy: str
    work: Literal["sampler", "learner"]
    gpus: int
    tensor: int
    """GPUs of one of its engines; 1 for learners, which are sharded over all."""
    slots: int
    """Rows that an engine decodes side by side."""
    tokens: int
    """Tokens of a learner's pass."""
    recompute: bool
    """Whether a learner computes activations again."""
    times: tuple[Parts, ...]
    memory: Parts

    @property
    def name(self) -> str:
        return f"{self.policy} {self.work}"

    def sum_cycle(self, counts: Sequence[int]) -> Parts:
        return add_parts(*(scale_parts(parts, count) for parts, count in zip(self.times, counts, strict=True)))


@dataclass(frozen=True)
class Placement:
    """Groups, and how long a cycle takes on them."""

    kind: str
    """colocated or split."""
    groups: tuple[Group, ...]
    staleness: int
    driver: tuple[float, ...]
    """Seconds of the driver for each kind of turn."""
    counts: tuple[int, ...]

    @property
    def gpus(self) -> int:
        """Number of GPUs. Colocated groups are the same GPUs in several roles."""
        return self.groups[0].gpus if self.kind == "colocated" else sum(group.gpus for group in self.groups)

    @cached_property
    def loads(self) -> dict[str, Parts]:
        """Seconds of a cycle for each group, and for the driver."""
        driver = sum(seconds * count for seconds, count in zip(self.driver, self.counts, strict=True))
        return {group.name: group.sum_cycle(self.counts) for group in self.groups} | {"driver": {"parsing and grading": driver}}

    @property
    def latency(self) -> float:
        """Seconds of a cycle if everything runs one after another."""
        return sum(sum_parts(parts) for parts in self.loads.values())

    @cached_property
    def cycle_s(self) -> float:
        if self.kind == "colocated":
            return self.latency
        playing, learning = (
            [np.array(sum(sum_parts(group.times[kind]) for group in self.groups if group.work == work)) for kind in self.kinds]
            for work in ("sampler", "learner")
        )
        learning = [seconds + driver for seconds, driver in zip(learning, self.driver, strict=True)]
        return float(compute_cycle_seconds(playing, learning, self.counts, self.staleness))

    @property
    def kinds(self) -> range:
        """Indices of the kinds of turns."""
        return range(len(self.counts))

    @property
    def turn_s(self) -> float:
        """Seconds of a turn: the mean over a cycle."""
        return self.cycle_s / sum(self.counts)

    @property
    def busy_share(self) -> float:
        """Share of the GPUs' time in which they work on something, waiting for links and for the longest row included."""
        if self.kind == "colocated":
            return sum(sum_parts(self.loads[group.name]) for group in self.groups) / self.cycle_s
        work = sum(group.gpus * sum_parts(self.loads[group.name]) for group in self.groups)
        return work / (self.gpus * self.cycle_s)

    @property
    def bottleneck(self) -> tuple[str, str]:
        """The bottleneck: the group that takes longest, and the largest part of its time. With asynchronous rollouts, of the
        side (sampling or learning) that takes longer."""
        names = list(self.loads)
        if self.kind == "split" and self.staleness:
            samplers = [group.name for group in self.groups if group.work == "sampler"]
            sides = (samplers, [name for name in names if name not in samplers])
            names = max(sides, key=lambda side: sum(sum_parts(self.loads[name]) for name in side))
        name = max(names, key=lambda group: sum_parts(self.loads[group]))
        return name, max(self.loads[name], key=lambda part: self.loads[name][part])

    @property
    def sampling_gpus(self) -> int:
        return sum(group.gpus for group in self.groups if group.work == "sampler")


@dataclass(frozen=True)
class ClusterPlan:
    """What is asked for, the best placement, and the best of the other kind."""

    machine: Machine
    workload: Workload
    shapes: Mapping[str, Shape]
    gpus: int
    best: Placement
    other: Placement | None
    offload: bool = False

    def classify_standing(self, placement: Placement, calibration: Calibration) -> str:
        """Standing of all numbers of a placement. calibrated: within what was measured, which is one GPU; model: anything
        else."""
        ranges = calibration.measured_range()
        least, most = ranges["parameters"]
        inside = self.machine.gpu == calibration.gpu and placement.gpus == 1 and not self.offload
        inside &= all(least <= shape.parameters <= most for shape in self.shapes.values())
        for turn in self.workload.turns():
            inside &= turn.study.longest <= ranges["tokens"][1]
            inside &= all(call.rows >= ranges["rows"][0] for call in turn.calls)
            inside &= all(call.prompt + call.lengths.limit <= ranges["tokens"][1] for call in turn.calls)
        return "calibrated" if inside else "model"


@dataclass(frozen=True)
class Planner:
    """Tries group sizes for one machine, workload and set of models."""

    machine: Machine
    workload: Workload
    shapes: Mapping[str, Shape]
    near: bool
    """Learners and samplers of a split are in one node."""
    offload: bool = False
    """Learners have moments on the host (`policies.NAME.offload`)."""
    staleness: int = 0
    """For a split: turns by which rollouts may be ahead of learning."""

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of turns of each kind in a cycle."""
        return tuple(turn.times for turn in self.workload.turns())

    def make_sampler(self, policy: str, gpus: int, others: float = 0.0, shared: bool = False) -> Group | None:
        """Make the sampler group with the tensor-parallel size that is fastest over a cycle; None if none fits."""
        tried = [self._make_engines(policy, gpus, tensor, others, shared) for tensor in TENSOR if tensor <= gpus]
        return min((one for one in tried if one), key=lambda one: sum_parts(one.sum_cycle(self.counts)), default=None)

    def _make_engines(self, policy: str, gpus: int, tensor: int, others: float, shared: bool) -> Group | None:
        shape, engines = self.shapes[policy], gpus // tensor
        times, fits = [], []
        for turn in self.workload.turns():
            parts: Parts = {}
            for call in (call for call in turn.calls if call.policy == policy):
                fitting = memory.fit_sampler(self.machine.gpu, shape, call, math.ceil(call.rows / engines), tensor, others)
                if fitting is None:
                    return None
                fits.append(fitting)
                parts = add_parts(parts, sample_parts(self.machine, shape, call, engines, tensor, fitting.slots))
            if turn.study.policy == policy and not shared:
                parts = add_parts(parts, publish_parts(self.machine, shape, tensor, self.near))
            times.append(parts)
        most = max((fit.memory for fit in fits), key=sum_parts)
        slots = min(fit.slots for fit in fits)
        return Group(policy, "sampler", gpus, tensor, slots, 0, False, tuple(times), _add_resident_memory(most, others))

    def make_learner(self, policy: str, gpus: int, others: float = 0.0, shared: bool = False) -> Group | None:
        """Make the learner group, its weights sharded over all its GPUs; None if they do not fit."""
        shape, turns = self.shapes[policy], self.workload.turns()
        study = next(turn.study for turn in turns if turn.study.policy == policy)
        fitting = memory.fit_learner(self.machine.gpu, shape, study, gpus, others, self.offload)
        if fitting is None:
            return None
        parts = learn_parts(self.machine, shape, study, gpus, fitting.tokens, fitting.recompute)
        if self.offload:
            moments = memory.compute_state(shape, gpus, ("moments",))
            parts = add_parts(parts, {"offload": self.machine.gpu.offload_s(sum_parts(moments))})
        if not shared:
            parts = add_parts(parts, publish_parts(self.machine, shape, gpus, self.near))
        elif gpus == 1:
            parts = add_parts(parts, copy_parts(self.machine, shape))
        else:
            parts = add_parts(parts, {"publish": self.machine.gpu.gather_s(shape.weight_bytes, gpus)})
        times = tuple(parts if turn.study.policy == policy else {} for turn in turns)
        return Group(
            policy,
            "learner",
            gpus,
            1,
            0,
            fitting.tokens,
            fitting.recompute,
            times,
            _add_resident_memory(fitting.memory, others),
        )

    @cached_property
    def driver(self) -> tuple[float, ...]:
        """Seconds of the driver for each kind of turn."""
        return tuple(self.machine.reached.rollout_s * turn.rollouts for turn in self.workload.turns())

    def make_placement(self, kind: str, groups: Sequence[Group]) -> Placement:
        return Placement(kind, tuple(groups), self.staleness if kind == "split" else 0, self.driver, self.counts)

    def place_colocated(self, gpus: int) -> Placement | None:
        """Place everything on one group of GPUs that takes turns: the state of all learners stays (with `offload` only their
        weights), beside one sampler or the passes of one learner."""
        held = {
            policy: sum_parts(memory.compute_resident_state(self.shapes[policy], gpus, self.offload))
            for policy in self.workload.learners
        }
        groups = [self.make_sampler(policy, gpus, sum(held.values()), shared=True) for policy in self.workload.policies]
        for policy in self.workload.learners:
            groups.append(self.make_learner(policy, gpus, sum(held.values()) - held[policy], shared=True))
        found = [group for group in groups if group is not None]
        return self.make_placement("colocated", found) if len(found) == len(groups) else None

    def list_group_options(self, most: int) -> list[list[Group]]:
        """List the sizes that fit, for each group of a split."""
        makers: list[tuple[Callable[[str, int], Group | None], str]] = [(self.make_sampler, p) for p in self.workload.policies]
        makers += [(self.make_learner, policy) for policy in self.workload.learners]
        return [[one for size in list_group_sizes(most) if (one := make(policy, size))] for make, policy in makers]

    def place_split(self, axes: Sequence[Sequence[Group]], gpus: int) -> Placement | None:
        """Find the best split: of all combinations of group sizes that need at most so many GPUs."""
        axes = [[group for group in axis if group.gpus <= gpus] for axis in axes]
        if not all(axes):
            return None
        used = _combine_outer([[group.gpus for group in axis] for axis in axes], np.add).ravel()
        able = np.flatnonzero(used <= gpus)
        if not len(able):
            return None
        used, places = used[able], np.unravel_index(able, [len(axis) for axis in axes])

        def seconds(kind: int, work: str) -> Floats:
            """Seconds of a turn for the groups of one side, one after another; one entry per combination."""
            sides = [(axis, at) for axis, at in zip(axes, places, strict=True) if axis[0].work == work]
            return sum(
                (np.array([sum_parts(group.times[kind]) for group in axis])[at] for axis, at in sides), np.zeros(len(able))
            )

        kinds = range(len(self.counts))
        playing = [seconds(kind, "sampler") for kind in kinds]
        learning = [seconds(kind, "learner") + self.driver[kind] for kind in kinds]
        period = compute_cycle_seconds(playing, learning, self.counts, self.staleness)
        close = np.where(period <= ENOUGH * period.min(), used + period / (2 * period.max()), np.inf)
        best = int(close.argmin())
        return self.make_placement("split", [axis[int(at[best])] for axis, at in zip(axes, places, strict=True)])


def _add_resident_memory(held: Parts, others: float) -> Parts:
    """Add the memory that the other learners keep on the same GPU."""
    return {**held, "learners' state": others} if others else held


def _combine_outer(axes: Sequence[Sequence[float]], combine: np.ufunc) -> Floats:
    """Combine one value of each axis, for all combinations: an array with one dimension per axis."""
    out = np.asarray(axes[0], dtype=float)
    for axis in axes[1:]:
        out = combine.outer(out, np.asarray(axis, dtype=float))
    return out


def make_plan(
    machine: Machine, workload: Workload, shapes: Mapping[str, Shape], gpus: int, staleness: int, offload: bool = False
) -> ClusterPlan:
    """Make the plan with the best placement on at most so many GPUs."""
    (found,) = make_plans(machine, workload, shapes, [gpus], staleness, offload)
    if found is None:
        raise UserError(explain_shortage(Planner(machine, workload, shapes, near=False, offload=offload), gpus))
    return found


def make_plans(
    machine: Machine,
    workload: Workload,
    shapes: Mapping[str, Shape],
    counts: Sequence[int],
    staleness: int,
    offload: bool = False,
) -> list[ClusterPlan | None]:
    """Make the best plan for each number of GPUs; None where nothing fits."""
    far, near = (Planner(machine, workload, shapes, near, offload=offload, staleness=staleness) for near in (False, True))
    colocated = [one for size in list_group_sizes(max(counts)) if (one := far.place_colocated(size))]
    axes, inside = far.list_group_options(max(counts)), near.list_group_options(min(max(counts), machine.gpu.node))
    plans: list[ClusterPlan | None] = []
    for gpus in counts:
        within = near.place_split(inside, min(gpus, machine.gpu.node))
        across = far.place_split(axes, gpus)
        kinds = (
            _select_fastest([one for one in colocated if one.gpus <= gpus]),
            _select_fastest([one for one in (within, across) if one]),
        )
        found = [one for one in kinds if one is not None]
        best = _select_fastest(found)
        other = next((one for one in found if one is not best), None)
        plans.append(None if best is None else ClusterPlan(machine, workload, shapes, gpus, best, other, offload))
    return plans


def _select_fastest(placements: Sequence[Placement]) -> Placement | None:
    """Select the placement with the fewest GPUs among those that are close to the fastest."""
    if not placements:
        return None
    fastest = min(one.cycle_s for one in placements)
    return min((one for one in placements if one.cycle_s <= ENOUGH * fastest), key=lambda one: (one.gpus, one.cycle_s))


def find_fewest_gpus(planner: Planner, most: int = GRID[-1][0]) -> int | None:
    """The fewest GPUs on which anything fits."""
    together = next((size for size in list_group_sizes(most) if planner.place_colocated(size)), None)
    firsts = [axis[0].gpus if axis else None for axis in planner.list_group_options(together or most)]
    apart = None if None in firsts else sum(size for size in firsts if size is not None)
    return min((count for count in (together, apart) if count is not None), default=None)


def explain_shortage(planner: Planner, gpus: int) -> str:
    """Explain that nothing fits on so many GPUs, and how many would do."""
    gpu, longest = planner.machine.gpu, max(turn.study.longest for turn in planner.workload.turns())
    needs = ", ".join(
        f"{policy} {(sum(memory.STATE.values()) * planner.shapes[policy].parameters) / GIB:,.0f} GiB to learn"
        for policy in planner.workload.learners
    )
    least = find_fewest_gpus(planner)
    if least is None:
        return (
            f"this fits on no number of {gpu.name} that was tried: one row of {longest:,.0f} tokens, or one layer, is too much "
            f"for {gpu.memory / GIB:.0f} GiB ({needs}); shorten rows with --tokens, or take a larger --gpu"
        )
    return (
        f"{gpus} x {gpu.name} do not hold {' and '.join(planner.shapes[p].name for p in planner.workload.policies)} "
        f"({needs}, weights to sample and activations on top): it takes at least {least} GPUs of {gpu.memory / GIB:.0f} GiB"
    )
