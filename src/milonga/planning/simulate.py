"""A simulation of the same turns, event by event, with random lengths: a check of the closed form.

Invariants: the same seed gives the same events; turns are sampled and learned as the loop does it
(`pipeline.iterate_publish_times`). Where all lengths are alike it agrees with the closed form; what random lengths add is the
difference that is reported.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from milonga.planning.lengths import Lengths
from milonga.planning.model import Machine, learn_parts, prefill_parts, step_parts, sum_parts
from milonga.planning.pipeline import iterate_publish_times, make_turn_order
from milonga.planning.plan import ClusterPlan, Group, Placement
from milonga.planning.shapes import Shape
from milonga.planning.workload import Call, Study, Turn
from milonga.types import Floats

MOST_ROWS = 2**16
"""Most rows of a turn that is simulated, since every row is an event."""
STRIDE = 64.0
"""Most decoding steps that are treated as alike: what bounds a step may change while its rows grow."""


@dataclass(frozen=True)
class Simulation:
    """Mean seconds of a turn: simulated, and by the closed form."""

    turn_s: float
    closed_s: float
    turns: int

    @property
    def difference(self) -> float:
        return self.turn_s / self.closed_s - 1


def simulate(plan: ClusterPlan, placement: Placement | None = None, seed: int = 0) -> Simulation | None:
    """Simulate some turns on a placement, by default the best one; None if it would take long."""
    placed = placement or plan.best
    if max(turn.rollouts for turn in plan.workload.turns()) > MOST_ROWS:
        return None
    filling, order = make_turn_order(placed.counts)
    turns = plan.workload.turns()
    drawn = ((kind, *_simulate_turn(plan, placed, kind, turns[kind], (seed, number))) for number, kind in enumerate(order))
    published = list(iterate_publish_times(drawn, placed.staleness))
    counted = len(order) - filling
    return Simulation((published[-1] - published[filling - 1]) / counted, placed.turn_s, counted)


def _simulate_turn(plan: ClusterPlan, placed: Placement, kind: int, turn: Turn, key: tuple[int, int]) -> tuple[float, float]:
    """Simulate a turn with random lengths: its rollout seconds and its learning seconds."""
    groups = {group.name: group for group in placed.groups}
    drawn, playing = np.zeros(0), 0.0
    for call in turn.calls:
        group = groups[f"{call.policy} sampler"]
        drawn = call.lengths.draw(call.rows, *key, call.policy)
        receiving = group.times[kind].get("publish", 0.0)
        playing += _call_seconds(plan.machine, plan.shapes[call.policy], call, group, drawn) + receiving
        if call.policy == turn.study.policy:
            learned = drawn
    group = groups[f"{turn.study.policy} learner"]
    seconds = _study_seconds(plan.machine, plan.shapes[turn.study.policy], turn.study, group, learned)
    besides = group.times[kind]["publish"] + group.times[kind].get("offload", 0.0)
    return playing, placed.driver[kind] + seconds + besides


def _call_seconds(machine: Machine, shape: Shape, call: Call, group: Group, drawn: Floats) -> float:
    """Seconds of a sampling call, until its last engine is done; rows are dealt out round-robin."""
    engines = group.gpus // group.tensor
    hands = [drawn[engine::engines] for engine in range(min(engines, len(drawn)))]
    decoding = max(_engine_seconds(machine, shape, call, hand, group) for hand in _select_distinct_engines(hands, call.lengths))
    reading = prefill_parts(machine, shape, math.ceil(call.prompts / engines), call.prompt, group.tensor)
    host = machine.reached.token_s * max(float(hand.sum()) for hand in hands)
    return decoding + sum_parts(reading) + host


def _select_distinct_engines(hands: list[Floats], lengths: Lengths) -> list[Floats]:
    """Select the engines to simulate: if all rows are alike, the fullest one is the slowest, and is enough."""
    return [max(hands, key=len)] if lengths.spread == 0 else hands


def _engine_seconds(machine: Machine, shape: Shape, call: Call, lengths: Floats, group: Group) -> float:
    """Decoding seconds of one engine."""
    if len(lengths) <= group.slots:
        steps, rows, context = _list_static_steps(lengths, call.prompt)
    else:
        columns = zip(*_iterate_continuous_steps(lengths, call.prompt, group.slots), strict=True)
        steps, rows, context = (np.array(column) for column in columns)
    parts = step_parts(machine, shape, rows, context, group.tensor)
    return float(sum((seconds * steps).sum() for seconds in parts.values()))


def _list_static_steps(lengths: Floats, prompt: float) -> tuple[Floats, Floats, Floats]:
    """List the decoding steps of a static batch, in which all rows begin at once. Three aligned arrays, one entry per interval
    between row ends: number of steps, live rows, mean context length."""
    ends = np.sort(lengths)
    moments = np.union1d(ends, np.arange(0, ends[-1], STRIDE))
    begins, stops = moments[:-1], moments[1:]
    rows = len(ends) - np.searchsorted(ends, begins, side="right")
    return stops - begins, rows.astype(float), prompt + (begins + stops) / 2


def _iterate_continuous_steps(lengths: Floats, prompt: float, slots: int) -> Iterator[tuple[float, float, float]]:
    """Iterate over the same intervals with continuous batching: a waiting row takes the slot of a row that is done."""
    waiting = list(lengths[slots:][::-1])
    ends = [(float(length), 0.0) for length in lengths[:slots]]  # when a row ends and when it began
    heapq.heapify(ends)
    now, live, attended = 0.0, len(ends), prompt * len(ends)
    while ends:
        end, begun = heapq.heappop(ends)
        while now < end:
            steps = min(end - now, STRIDE)
            yield steps, float(live), (attended + live * steps / 2) / live
            attended += live * steps
            now += steps
        attended -= prompt + (end - begun)
        live -= 1
        if waiting:
            heapq.heappush(ends, (now + float(waiting.pop()), now))
            attended += prompt
            live += 1


def _study_seconds(machine: Machine, shape: Shape, study: Study, group: Group, drawn: Floats) -> float:
    """Seconds of an optimizer step with random lengths. Rows are dealt out so that learners have about as many tokens; one
    cannot have less than the longest row."""
    rows = math.ceil(study.rows / group.gpus)
    fullest = max(float(drawn.mean()), float(drawn.max()) / rows)
    alike = replace(study, lengths=Lengths(fullest, study.lengths.limit, spread=0.0))
    return sum_parts(learn_parts(machine, shape, alike, group.gpus, group.tokens, group.recompute))
