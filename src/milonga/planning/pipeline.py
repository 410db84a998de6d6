"""How long a cycle of turns takes on split GPUs with asynchronous rollouts (`milonga.prefetch`).

Invariants: one thread samples turns in order, so that the samplers of a turn work one after another; another learns them in
order, with all that the driver does. Within a stretch turn n is sampled from the weights after turn n - 1 - k. A stretch ends
where another agent learns, and nothing is sampled beyond it before. A recipe in which one agent always learns is one stretch:
checkpoints and evaluations, which end one too, are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from milonga.types import Floats

LEAST_TURNS = 12
"""Least number of turns that fill the pipeline before any is counted, and of turns that are counted."""


def compute_cycle_seconds(
    playing: Sequence[Floats], learning: Sequence[Floats], counts: Sequence[int], staleness: int
) -> Floats:
    """Seconds of a cycle once the pipeline is full, from the rollout and learning seconds of each kind of turn. Each array
    holds one placement or many.

    If turns are alike, a staleness of one is enough: a larger one only evens out differences.
    """
    out: Floats | float = 0.0
    for rollout, learn, count in zip(playing, learning, counts, strict=True):
        slower = rollout + learn if staleness == 0 else (rollout + learn + abs(rollout - learn)) / 2
        out = out + (rollout + learn + (count - 1) * slower if len(counts) > 1 else count * slower)
    return out  # type: ignore[return-value]


def iterate_publish_times(turns: Iterable[tuple[int, float, float]], staleness: int) -> Iterator[float]:
    """Iterate over the times at which turns are published. Each turn is its kind, its rollout seconds and its learning seconds.
    The same as `compute_cycle_seconds`, turn by turn, for seconds that differ."""
    player, published, begun, last = 0.0, [0.0], 0, -1
    for number, (kind, rollout, learn) in enumerate(turns):
        if kind != last:
            begun = number
        # Entry i holds when turn i was published, counted from 1; a stretch begins when the turn before it was.
        player = max(player, published[max(begun, number - staleness)]) + rollout
        published.append(max(player, published[-1]) + learn)
        last = kind
        yield published[-1]


def make_turn_order(counts: Sequence[int]) -> tuple[int, list[int]]:
    """Return how many turns fill the pipeline, and the kinds of all turns to simulate: as many more are counted. Both are whole
    cycles."""
    cycle = [kind for kind, count in enumerate(counts) for _ in range(count)]
    times = -(-LEAST_TURNS // len(cycle))
    return times * len(cycle), cycle * (2 * times)
