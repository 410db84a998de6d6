"""The cost model: how long sampling, learning and publishing weights take, each as a sum of named parts.

Invariants: a time is the sum of its parts, so that the largest part is the bound; a part scales as its name says. Measured
shares of the peaks come from `calibrate`; what no machine at hand could measure (links) is assumed in `hardware`.

A decoding step reads the weights once and the keys and values of every live row (or computes, where that takes longer), and
costs each layer a fixed time besides. A learner computes three forward passes' worth of operations and moves activations; where
it is sharded it gathers weights twice and sums gradients once for each micro-batch, which counts where it is not hidden.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from milonga.planning.hardware import Accelerator
from milonga.planning.lengths import chance_any_alive
from milonga.planning.shapes import HALF, Shape
from milonga.planning.workload import Call, Study
from milonga.types import Floats

Parts = dict[str, float]
OPTIMIZER_BYTES = 30
"""Bytes moved per parameter by an optimizer step (AdamW in float32): gradient, moments and weight read, the last three written,
and a half-precision copy."""


@dataclass(frozen=True)
class Efficiencies:
    """Efficiencies reached of the data sheet, and fixed costs: fitted to measurements on one GPU."""

    bandwidth: float
    """Share of the memory's peak while decoding."""
    layer_s: float
    """Seconds of a layer in a decoding step besides bytes: small kernels, their launches."""
    prefill: float
    """Share of the matrix peak while prompts are read."""
    token_s: float
    """Seconds of the host for each new token of an engine."""
    products: float
    """Share of the matrix peak in a learner's matrix products."""
    traffic: float
    """How often a learner moves its activations, at the memory's peak."""
    read_s: float
    """Seconds of a learner's host for each token: building batches, launching passes."""
    rollout_s: float
    """Seconds of the driver for each rollout of a turn: parsing, grading, credit."""


@dataclass(frozen=True)
class Machine:
    """An accelerator and the efficiencies reached on it."""

    gpu: Accelerator
    reached: Efficiencies


def sum_parts(parts: Parts) -> float:
    return sum(parts.values())


def add_parts(*many: Parts) -> Parts:
    """Add times part by part."""
    return {name: sum(parts.get(name, 0.0) for parts in many) for name in dict.fromkeys(n for p in many for n in p)}


def scale_parts(parts: Parts, factor: float) -> Parts:
    return {name: factor * seconds for name, seconds in parts.items()}


# --- sampling ----------------------------------------------------------------------------------------------------------------


def step_parts(machine: Machine, shape: Shape, rows: Floats, context: Floats, tensor: int) -> dict[str, Floats]:
    """Seconds of decoding steps of an engine of `tensor` GPUs. `rows` and `context` have one entry per step: live rows, and
    tokens that each attends to."""
    gpu, reached = machine.gpu, machine.reached
    speed = gpu.bandwidth * reached.bandwidth
    weights = shape.count_bytes_read(rows) / tensor / speed
    cache = rows * context * shape.cache_bytes / cache_shards(shape, tensor) / speed
    operations = 2.0 * shape.active * rows + 4.0 * shape.layers * shape.attention_width * rows * context
    compute = operations / tensor / (gpu.flops * reached.prefill)
    bound = compute > weights + cache
    nothing = np.zeros_like(compute)
    parts = {
        "weights": np.where(bound, nothing, weights),
        "cache": np.where(bound, nothing, cache),
        "products": np.where(bound, compute, nothing),
        "layers": np.full_like(compute, shape.layers * reached.layer_s),
    }
    if tensor > 1:
        each, delay = gpu.reduce_s(tensor)
        parts["tensor links"] = 2 * shape.layers * (HALF * rows * shape.hidden * each + delay)
    return parts


def cache_shards(shape: Shape, tensor: int) -> int:
    """Number of shards of the key-value cache: heads are not cut, and a compressed cache is one."""
    return 1 if shape.latent is not None else min(tensor, shape.kv_heads)


def prefill_parts(machine: Machine, shape: Shape, prompts: float, prompt: float, tensor: int) -> Parts:
    """Seconds to prefill so many different prompts."""
    operations = shape.flops(prompts * prompt, prompts * prompt**2 / 2, heads=prompts)
    parts = {"prompts": operations / tensor / (machine.gpu.flops * machine.reached.prefill)}
    if tensor > 1:
        each, delay = machine.gpu.reduce_s(tensor)
        parts["tensor links"] = 2 * shape.layers * (HALF * prompts * prompt * shape.hidden * each + delay)
    return parts


def sample_parts(machine: Machine, shape: Shape, call: Call, engines: int, tensor: int, slots: int) -> Parts:
    """Expected seconds until the last row of a call is done, its rows dealt out evenly to `engines`.

    An engine decodes at most `slots` rows side by side. While more are waiting it stays full. Then no more come, and the
    longest row of all engines determines the time; other rows of its engine may be done before.
    """
    rows = math.ceil(call.rows / engines)
    prompts = math.ceil(call.prompts / engines)
    together = min(rows, slots)
    middles, width, alive = call.lengths.profile
    running = chance_any_alive(alive, min(call.rows, together * engines)) * width
    live = np.maximum(1.0, together * alive)
    parts = {n: float((s * running).sum()) for n, s in step_parts(machine, shape, live, call.prompt + middles, tensor).items()}
    if rows > together:
        steps = (rows - together) * call.lengths.truncated_mean() / together
        context = np.array([call.prompt + call.lengths.mean_tokens_so_far()])
        full = step_parts(machine, shape, np.array([float(together)]), context, tensor)
        parts = add_parts(parts, {name: float(seconds[0]) * steps for name, seconds in full.items()})
    host = {"host": machine.reached.token_s * rows * call.lengths.truncated_mean()}
    return add_parts(parts, prefill_parts(machine, shape, prompts, call.prompt, tensor), host)


# --- learning ----------------------------------------------------------------------------------------------------------------


def learn_parts(machine: Machine, shape: Shape, study: Study, gpus: int, tokens: int, recompute: bool) -> Parts:
    """Seconds of an optimizer step over all rows of a study, dealt out evenly to `gpus`, in passes of so many tokens."""
    gpu, reached = machine.gpu, machine.reached
    rows = math.ceil(study.rows / gpus)
    mine = rows * study.row_tokens
    forward = shape.flops(mine, rows * study.row_tokens**2 / 2, heads=rows * study.lengths.truncated_mean())
    factor = 4 if recompute else 3
    parts = {
        "products": factor * forward / (gpu.flops * reached.products),
        "activations": factor / 3 * reached.traffic * mine * shape.activation_bytes / gpu.bandwidth,
    }
    compute = sum_parts(parts)
    passes = math.ceil(mine / tokens)
    gathered = gpu.gather_s(HALF * shape.parameters, gpus)
    summed = gpu.gather_s(4 * shape.parameters, gpus)
    parts["learner links"] = max(0.0, passes * (2 * gathered + summed) - compute)
    parts["learner host"] = reached.read_s * mine
    parts["optimizer"] = OPTIMIZER_BYTES * shape.parameters / gpus / (gpu.bandwidth * reached.bandwidth)
    return parts


def copy_parts(machine: Machine, shape: Shape) -> Parts:
    """Seconds to refresh the sampling copy of weights on the GPU that learned them."""
    return {"publish": (4 + HALF) * shape.parameters / (machine.gpu.bandwidth * machine.reached.bandwidth)}


def publish_parts(machine: Machine, shape: Shape, lanes: int, near: bool) -> Parts:
    """Seconds to send new weights from `lanes` learners, or to receive them on the GPUs of an engine: all engines receive at
    once, by a broadcast."""
    return {"publish": machine.gpu.hand_over_s(shape.weight_bytes, lanes, near)}
