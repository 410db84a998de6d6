"""The memory model of one GPU: bytes by kind, and what fits.

Invariant: what is refused here could not run: a sampler needs its weights and one longest row, a learner its state and the
activations of one longest row. Counted as the local engine does it (engine/local/memory.py): float32 weights, gradients and two
moments, a half-precision copy to compute with; a tenth of the memory stays free. With `offload` moments are on the host, and
come for an optimizer step, when there are no activations. The recipes that are planned for compare with no reference weights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from milonga.config import SamplingSection
from milonga.planning.hardware import Accelerator
from milonga.planning.model import Parts, cache_shards, sum_parts
from milonga.planning.shapes import HALF, Shape
from milonga.planning.workload import Call, Study

KEPT = 0.1
"""Share of the memory that stays free."""
PASS_SHARE = 0.25
"""Share of the memory for the activations of a pass, if one row does not need more."""
MOST_PASS = 65536
"""Most tokens of a pass."""
STATE = {"master weights": 4, "gradients": 4, "moments": 8}
"""Bytes for each parameter of a policy that learns, sharded over its learners."""
MOST_ROWS = SamplingSection().rows
"""Most rows that an engine decodes side by side."""


@dataclass(frozen=True)
class Learning:
    """How a learner fits: the tokens of its passes, whether it recomputes activations, and its memory."""

    tokens: int
    recompute: bool
    memory: Parts


@dataclass(frozen=True)
class Sampling:
    """How an engine fits: rows side by side, and its memory."""

    slots: int
    memory: Parts


def compute_state(shape: Shape, gpus: int, kinds: Iterable[str] = STATE) -> Parts:
    """Bytes of the learner state on one of `gpus` GPUs: its shard."""
    return {name: STATE[name] * shape.parameters / gpus for name in kinds}


def compute_resident_state(shape: Shape, gpus: int, offload: bool) -> Parts:
    """Bytes that a learner keeps on the GPU while others have their turn."""
    return compute_state(shape, gpus, ("master weights",)) if offload else compute_state(shape, gpus)


def _compute_working_weights(shape: Shape, gpus: int) -> Parts:
    """Bytes of the working weights of a pass: all weights in half precision; if sharded, two layers and the gradient of one."""
    if gpus == 1:
        return {"working weights": HALF * shape.parameters}
    return {"working weights": (2 * HALF + 4) * shape.gathered_parameters}


def activation_bytes_per_token(shape: Shape, recompute: bool) -> float:
    """Activation bytes of one token: all; with recomputation, the inputs of all layers and one layer in full."""
    whole = shape.activation_bytes
    return 4 * shape.layers * shape.hidden + whole / shape.layers if recompute else float(whole)


def compute_pass_memory(shape: Shape, gpus: int, tokens: int, recompute: bool, offload: bool = False) -> Parts:
    """Bytes of one learner in a forward and backward pass of so many tokens."""
    kept = compute_state(shape, gpus, ("master weights", "gradients")) if offload else compute_state(shape, gpus)
    return {
        **kept,
        **_compute_working_weights(shape, gpus),
        "activations": tokens * activation_bytes_per_token(shape, recompute),
    }


def _compute_step_memory(shape: Shape, gpus: int) -> Parts:
    """Bytes of one learner in an optimizer step, if the moments are on the GPU for that alone."""
    return compute_state(shape, gpus, ("master weights", "gradients", "moments"))


def fit_learner(
    gpu: Accelerator, shape: Shape, study: Study, gpus: int, others: float = 0.0, offload: bool = False
) -> Learning | None:
    """Fit a learner beside `others` bytes; None if it does not fit. Activations are recomputed only if they must be."""
    free = (1 - KEPT) * gpu.memory - others
    if sum_parts(_compute_step_memory(shape, gpus)) > free:
        return None
    room = free - sum_parts(compute_pass_memory(shape, gpus, 0, False, offload))
    for recompute in (False, True):
        each = activation_bytes_per_token(shape, recompute)
        tokens = int(max(study.longest, min(MOST_PASS, PASS_SHARE * gpu.memory / each, room / each)))
        if tokens * each <= room:
            passing = compute_pass_memory(shape, gpus, tokens, recompute, offload)
            return Learning(tokens, recompute, max(passing, _compute_step_memory(shape, gpus), key=sum_parts))
    return None


def fit_sampler(gpu: Accelerator, shape: Shape, call: Call, rows: int, tensor: int, others: float = 0.0) -> Sampling | None:
    """Fit a sampling engine beside `others` bytes; None if weights and one longest row do not fit."""
    weights = shape.weight_bytes / tensor
    each = shape.cache_bytes / cache_shards(shape, tensor)
    room = (1 - KEPT) * gpu.memory - others - weights
    if room < each * (call.prompt + call.lengths.limit):
        return None
    row = each * (call.prompt + call.lengths.truncated_mean())
    slots = max(1, min(int(room / row), MOST_ROWS))
    return Sampling(slots, {"weights": weights, "cache": min(room, max(1, min(slots, rows)) * row)})
