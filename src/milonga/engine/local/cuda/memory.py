"""How much of the device the caches may take: what is free, less what learning will want, shared among the policies."""

from __future__ import annotations

import torch

from milonga.engine.local.policy import Policy

KEPT = 0.1
"""Share of the device that stays free: fragments, other libraries."""
SHARE = 0.5
"""Of what is then free, for caches; the rest is for the learner's activations."""


def promised(policy: Policy) -> int:
    """Bytes that learning will allocate and has not yet: a gradient and two moments for each parameter that has none."""
    total = 0
    for parameter in policy.parameters:
        size = parameter.numel() * parameter.element_size()
        total += size * (parameter.grad is None) + 2 * size * (parameter not in policy.optimiser.state)
    return total


def share(free: int, total: int, promises: int, others: int) -> int:
    """Bytes for one policy's cache, where `others` have none yet and want as much."""
    return max(0, int(SHARE * (free - KEPT * total - promises) / (1 + others)))


def cache_bytes(policy: Policy, others: int) -> int:
    if policy.device.type != "cuda":
        return 1 << 40  # only the kernels' tests sample this way without a CUDA device
    free, total = torch.cuda.mem_get_info(policy.device)
    reusable = torch.cuda.memory_reserved(policy.device) - torch.cuda.memory_allocated(policy.device)
    return share(free + reusable, total, promised(policy), others)
