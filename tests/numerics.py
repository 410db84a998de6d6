"""What float32 can promise of a train batch: the same computation in float64, and how far rounding may carry from it.

No fixed number can be the bound. Rounding is amplified by what is computed (attention that is nearly a choice, terms that
cancel), on every machine; but two orders of summation may round alike on one of them, by chance. So the bound is measured:

- A sum of n products in float32 is the exact sum of products each of which is changed by a relative error of at most n u, and
  with independent roundings, as they are in practice, of about sqrt(n) u (u = 2^-24; Higham and Mary, A new approach to
  probabilistic rounding error analysis, 2019). So what float32 computes is what exact arithmetic would make of weights that
  are changed by that much: changed so at random, in float64, they show how much it matters. n is the longest sum: over a
  vocabulary, a width, or the tokens of a train batch.
- Adam divides a gradient by its size: an error of a gradient becomes an error of a step relative to the gradient, and where
  the gradient is nothing but rounding, the step goes anywhere within the learning rate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from engine_helpers import gap
from milonga.engine.local import LocalEngine
from milonga.types import Floats, Rollouts, TrainBatch

UNIT = 2.0**-24
"""The unit roundoff of float32."""
DRAWS = 2
"""Random changes of the weights; the one that matters most counts."""


class Wide(TorchFunctionMode):
    """Within it whatever is asked for in float32 is made in float64: models and losses name float32 here and there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def wide(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        if func is Tensor.float:
            func = Tensor.double
        found = func(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})
        return found.double() if isinstance(found, Tensor) and found.dtype == torch.float32 else found


def widened(engine: LocalEngine, name: str = "p") -> LocalEngine:
    """The same weights in float64; to be asked and taught within `Wide`."""
    policy = engine.policy(name)
    policy.get_tag("ref")  # it is kept from when it is asked for: now, before the weights change
    for module in filter(None, (policy.model, policy.head)):
        module.double()
    policy.tags = {tag: [tensor.double() for tensor in tensors] for tag, tensors in policy.tags.items()}
    policy.compute_dtype = torch.float64
    policy.use_compute_dtype = nullcontext  # type: ignore[method-assign]
    return engine


@dataclass
class Learned:
    """What came of a train batch in float64."""

    scores: list[Floats]
    """Of the train batch's rows, under the start."""
    steps: list[list[Tensor]]
    """The gradients of each step."""
    moments: list[Tensor]
    """The optimizer's means of them, after the last."""


@dataclass
class Promise:
    """The exact outcome of a train batch, and how far from it float32 may be."""

    exact: Learned
    scores: float
    """Of a log-probability or a value."""
    gradients: float
    """Of all gradients and of each tensor's, as `gap` measures it; and of their means."""
    lr: float

    def weights(self) -> list[Tensor]:
        """How far each weight may be off after the train batch.

        Let every gradient g of an element be off by e, r = e / |g|. A step is lr m / sqrt(v), where m and v are means of
        gradients and of their squares: m and sqrt(v) are off by a factor between 1 - r and 1 + r, and |m| / sqrt(v) is at most
        1.2 for a handful of steps (by Cauchy and Schwarz, from the weights of the two means), so a step is off by no more than
        1.2 lr ((1 + r) / (1 - r) - 1) < 2.5 lr e / (|g| - e); nor, whatever the error, by more than 2.5 lr. Of e only the norm
        over a tensor is known, which is more than any element's; of several steps it is taken to be that of their means.
        """
        total = max(float(torch.stack([g.norm() for g in gradients]).norm()) for gradients in self.exact.steps)
        allowed: list[Tensor] = []
        for gradients in zip(*self.exact.steps, strict=True):
            found = torch.stack(gradients).abs()
            error = self.gradients * max(1e-3 * total, max(float(g.norm()) for g in gradients))
            share = error / (found.amin(0) - error).clamp(min=error)
            share[found.amax(0) == 0] = 0.0  # no token of it was there: nothing moves it
            allowed.append(2.5 * self.lr * len(gradients) * share)
        return allowed


def promise(make: Callable[[], LocalEngine], taught: Callable[[], TrainBatch], tag: str = "live", name: str = "p") -> Promise:
    """What float32 may make of a train batch: the exact outcome, and what changes of the weights by sqrt(n) u do to it."""
    exact = learned(make(), taught(), tag, name)
    changed = [learned(make(), taught(), tag, name, seed) for seed in range(1, DRAWS + 1)]
    return Promise(
        exact,
        scores=max(apart(other.scores, exact.scores) for other in changed),
        gradients=max(gap(other.moments, exact.moments) for other in changed),
        lr=make().policy(name).section.learning_rate,
    )


def learned(engine: LocalEngine, taught: TrainBatch, tag: str, name: str, seed: int | None = None) -> Learned:
    policy = widened(engine, name).policy(name)
    if seed is not None:
        change(engine, math.sqrt(longest_sum(engine, taught, name)) * UNIT, seed, name)
    step, steps = policy.optimizer.step, list[list[Tensor]]()

    def watched() -> None:
        steps.append([torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.parameters])
        step()

    policy.optimizer.step = watched  # type: ignore
    with Wide():
        scores = (engine.score if policy.head is None else engine.values)(name, taught.rollouts, tag)
        engine.learn(taught)
    moments = [state["exp_avg"] for p in policy.parameters if (state := policy.optimizer.state.get(p))]
    assert all(tensor.dtype == torch.float64 for tensor in (*moments, *steps[0]))
    return Learned(scores, steps, moments)


@torch.no_grad()
def change(engine: LocalEngine, size: float, seed: int, name: str = "p") -> None:
    """Every weight of every version by a relative error of at most `size`, at random."""
    policy = engine.policy(name)
    drawn = torch.Generator().manual_seed(seed)
    for parameter in (*policy.model.parameters(), *(policy.head.parameters() if policy.head else ())):
        parameter.mul_(1 + size * (2 * torch.rand(parameter.shape, generator=drawn, dtype=torch.float64) - 1))
    for tensors in policy.tags.values():
        for tensor in tensors:
            tensor.mul_(1 + size * (2 * torch.rand(tensor.shape, generator=drawn, dtype=torch.float64) - 1))


def longest_sum(engine: LocalEngine, taught: TrainBatch, name: str) -> int:
    widest = max(max(p.shape) for p in engine.policy(name).model.parameters())
    return max(widest, sum(len(rollout.ids) for rollout in taught.rollouts))


def apart(left: Sequence[Floats], right: Sequence[Floats]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))


def rounding(engine: LocalEngine, rollouts: Rollouts, name: str = "p") -> float:
    """How far log-probabilities of these rows may be off in float32, under the weights that a policy started with."""

    def scored(seed: int | None) -> list[Floats]:
        other = widened(LocalEngine({name: engine.policy(name).section}, device="cpu"), name)
        if seed is not None:
            widest = max(max(p.shape) for p in other.policy(name).model.parameters())
            change(other, math.sqrt(max(widest, *(len(rollout.ids) for rollout in rollouts))) * UNIT, seed, name)
        with Wide():
            return other.score(name, rollouts)

    exact = scored(None)
    return max(apart(scored(seed), exact) for seed in range(1, DRAWS + 1))
