"""What fits on a device: the weights of all policies before anything is put there, the caches of their samplers, what they keep
of conversations, and the tokens of a pass of the learner.

Invariant: what cannot fit is refused with the numbers before it is tried; what may fit only in part (a cache) takes a share
that leaves room for learning.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from milonga.config import PolicySection
from milonga.engine.local.policy import Policy, choose_compute_dtype
from milonga.errors import OutOfMemory

KEPT = 0.1
"""Share of the device that stays free: fragments, other libraries."""
SHARE = 0.5
"""Share of the then free memory for caches; the rest is for the learner's activations."""
PASS_SHARE = 0.25
"""Share of all device memory for the activations of one micro-batch."""
PASS_TOKENS = (2048, 65536)
PASS_LEFT = 0.8
"""Share of what is left of the memory, beside weights and caches, that a pass may take; the rest is lost in fragments."""
LOGIT_BYTES = 8
"""Of a token of a pass for each word of the vocabulary: its logits and their gradient in half precision, and widened."""
CPU_TOKENS = 8192
"""In one pass on a CPU: what its caches can hold matters there."""
GIB = 2**30


def weight_bytes(section: PolicySection, model: nn.Module, shared: bool, copied: bool = True) -> int:
    """Least bytes of one policy on a CUDA device, learning or not: its float32 weights (with LoRA the base, which may be there
    already), an average if it keeps one, and, if `copied`, a copy to sample with (vLLM has its own, in what is lent to it).
    With `offload` the average is on the host. The start comes on top where something uses it: 2 bytes for most models."""
    count = sum(p.numel() for p in model.parameters())
    copied &= section.kind != "scalar"
    sampling = choose_compute_dtype(section, count, "cuda").itemsize if copied else 0
    if section.lora is not None:
        return count * (sampling + (0 if shared else 4))
    versions = 1 + (section.ema is not None and not section.offload)
    return count * (sampling + 4 * versions)


def require_room(name: str, needs: Mapping[str, int], total: int, lent: float = 0.0) -> None:
    """Refuse a policy that does not fit. `needs` are the bytes of all policies so far, this one last; `lent` is the share of
    the device that vLLM will take. What is refused could not even be loaded: gradients and moments come on top."""
    allowed = int(max(0.0, 1 - KEPT - lent) * total)
    if sum(needs.values()) > allowed:
        listed = ", ".join(f"{policy} {size / GIB:.1f}" for policy, size in needs.items())
        all_of_them = f"{sum(needs.values()) / GIB:.1f} GiB ({listed})"
        raise OutOfMemory(
            f"policy '{name}' does not fit: weights, before anything is learned, need {all_of_them}, "
            f"and {allowed / GIB:.1f} of the device's {total / GIB:.1f} GiB may be used; "
            f"policies.{name}.offload=true, binding=lora and smaller models need less"
            f"{'; or lower sampling.vllm.gpu_memory_utilization' if lent else ''}"
        )


def count_pending_bytes(policies: Iterable[Policy]) -> int:
    """Bytes that learning will keep beside a cache and has not yet. Before a policy with `offload` learns, caches are given
    up."""
    return sum(count_step_bytes(policy) for policy in policies if not policy.section.offload)


def count_step_bytes(policy: Policy) -> int:
    """Bytes that an optimizer step will keep beside its passes and has not yet: a gradient and two moments for each parameter
    that has none. Offloaded moments come when the passes are over. Of sharded weights each worker has its part."""
    total = 0
    for parameter in policy.parameters:
        part = policy.parallel.get_local_part(parameter)
        moments = 0 if policy.section.offload or parameter in policy.optimizer.state else 2
        total += part.numel() * part.element_size() * ((parameter.grad is None) + moments)
    return total


def count_working_bytes(policy: Policy) -> int:
    """Bytes of the weights that a policy computes with while it learns beside caches: a copy, unless that is in float32 too, or
    is gathered layer by layer from shards."""
    if policy.compute_dtype == torch.float32 or policy.section.offload or policy.shell is not None:
        return 0
    count: int = sum(p.numel() for p in policy.causal.parameters())
    return policy.compute_dtype.itemsize * count


def compute_cache_share(free: int, total: int, promises: int, waiting: int) -> int:
    """Bytes for one policy's key-value cache, if `waiting` other policies have none yet and want as much."""
    return max(0, int(SHARE * (free - KEPT * total - promises) / (1 + waiting)))


def cache_bytes(device: torch.device, policies: Sequence[Policy], waiting: int) -> int:
    """How large the next cache may be, beside all that these policies have and will want."""
    if device.type != "cuda":
        return 1 << 40  # only the kernels' tests sample this way without a CUDA device
    free, limit = measure_free_memory(device)
    # One policy at a time learns.
    promises = count_pending_bytes(policies) + max(map(count_working_bytes, policies), default=0)
    return compute_cache_share(free, limit, promises, waiting)


def measure_free_memory(device: torch.device) -> tuple[int, int]:
    """Bytes that this process can still take of a device, and all that it may take."""
    free, total = torch.cuda.mem_get_info(device)
    limit, reserved = limit_memory(device, total), torch.cuda.memory_reserved(device)
    return min(free, limit - reserved) + reserved - torch.cuda.memory_allocated(device), limit


def limit_memory(device: torch.device, total: int) -> int:
    """Bytes of the device that this process may take: all, unless it is one of several that share a GPU."""
    # Of all its like this one function refuses a device without a number, such as `cuda`.
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(torch.cuda.get_per_process_memory_fraction(index) * total)


def history_bytes(gib: float, device: torch.device, policies: Sequence[Policy]) -> int:
    """Bytes for the prefix cache of conversations: what the user says, and on a GPU never more than caches may have."""
    return min(int(gib * GIB), cache_bytes(device, policies, 0))


def pass_tokens(policy: Policy) -> int:
    """Tokens in one pass of the learner: as the user says, what suits a CPU, or what fits a share of a GPU's memory and what is
    left of it. To be asked when the working weights are there."""
    if policy.section.micro_tokens:
        return policy.section.micro_tokens
    if policy.device.type == "cpu":
        return CPU_TOKENS
    free, limit = measure_free_memory(policy.device)
    config = policy.causal.config.get_text_config()
    return fit_pass_tokens(PASS_SHARE * limit, free - count_step_bytes(policy), config, policy.compute_dtype)


def fit_pass_tokens(room: float, left: float, config: Any, dtype: torch.dtype) -> int:
    """Tokens whose activations fit into `room` bytes, if those and their logits fit into what is `left`. A pass of a small
    model is over before the host has prepared the next kernel, so that it must be a long one; one of a large model fills the
    memory first."""
    least, most = PASS_TOKENS
    each = activation_bytes_per_token(config, dtype)
    wanted = max(least, min(most, int(room / each)))
    return max(1, min(wanted, count_fitting_tokens(left, config, dtype)))


def count_fitting_tokens(left: float, config: Any, dtype: torch.dtype) -> int:
    """Tokens whose activations and logits fit into what is `left` of the memory."""
    return int(PASS_LEFT * left / (activation_bytes_per_token(config, dtype) + LOGIT_BYTES * config.vocab_size))


def has_room_to_learn(policy: Policy, longest: int) -> bool:
    """Whether a pass over the longest unit of rows fits beside what lies on the device now. Where activations are computed
    again, the user has seen to that."""
    if policy.device.type != "cuda" or policy.section.recompute:
        return True
    left = measure_free_memory(policy.device)[0] - count_step_bytes(policy) - count_working_bytes(policy)
    return count_fitting_tokens(left, policy.causal.config.get_text_config(), policy.compute_dtype) >= longest


def activation_bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """Activation bytes of one token that the backward pass needs. Counted for each layer: the residual stream in float32 twice,
    the norm outputs, queries, keys and values, the attention output, and three times the width of the MLP."""
    width, heads = config.hidden_size, config.num_attention_heads
    inner = getattr(config, "intermediate_size", 4 * width)
    size = getattr(config, "head_dim", None) or width // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    narrow = 2 * width + 2 * (heads + groups) * size + 3 * inner
    return int(config.num_hidden_layers * (8 * width + dtype.itemsize * narrow))
