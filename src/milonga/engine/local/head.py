"""Log-probability and entropy of given tokens without holding full logits.

The vocabulary is by far the widest axis of a language model. Logits are computed for a chunk of tokens at a time,
reduced to three numbers per token, and computed again in the backward pass: memory is chunk x vocabulary, not tokens x
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from milonga.engine.local.fused import HALF, compile_fused, matmul_float32, widen_to_float32

CHUNK_ELEMENTS = 1 << 25
"""Logits held at a time: 128 MiB in float32."""
CUDA_CHUNKS = 16
"""How many times as many in half precision on a GPU, where few rows would leave it idle and the rest is fused: 1 GiB."""


def chunk_rows(vocabulary: int) -> int:
    return max(64, CHUNK_ELEMENTS // vocabulary)


def _split_chunks(count: int, weight: Tensor) -> Iterator[slice]:
    """Equal parts of the tokens: a small rest at the end would cost nearly as much as a whole chunk."""
    most = chunk_rows(len(weight)) * (CUDA_CHUNKS if weight.is_cuda and weight.dtype in HALF else 1)
    parts = -(-count // most)
    size = -(-count // parts) if parts else 1
    return (slice(start, start + size) for start in range(0, count, size))


class _ChunkedHead(torch.autograd.Function):
    """Log-probability and entropy from hidden states, in chunks. `weight` is where the gradient goes; `working` is the same
    weight in the compute dtype."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scale: Tensor, working: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        reduced = [
            _reduce_logits(_compute_logits(hidden[cut], working, bias), targets[cut, None], scale[cut, None])
            for cut in _split_chunks(len(hidden), working)
        ]
        logp, total, entropy = (torch.cat(column) for column in zip(*reduced, strict=True))
        ctx.save_for_backward(hidden, bias, targets, scale, working, logp, total, entropy)
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, of_logp: Tensor | None, of_entropy: Tensor | None) -> tuple[Tensor | None, ...]:
        # Detached: the compiler refuses tensors that stand in the middle of a graph.
        saved: list[Any] = [tensor if tensor is None else tensor.detach() for tensor in ctx.saved_tensors]
        hidden, bias, targets, scale, working, logp, total, entropy = saved
        of_logp = torch.zeros_like(logp) if of_logp is None else of_logp
        of_hidden, of_weight, of_bias = torch.empty_like(hidden), None, None
        for cut in _split_chunks(len(hidden), working):
            pulls = of_logp[cut, None], None if of_entropy is None else of_entropy[cut, None], entropy[cut, None]
            of_logits = _compute_logits_grad(
                _compute_logits(hidden[cut], working, bias), total[cut, None], scale[cut, None], *pulls
            )
            at_target = _compute_target_grad(logp[cut, None], scale[cut, None], *pulls)
            of_logits.scatter_(1, targets[cut, None], at_target.to(of_logits.dtype))
            of_hidden[cut] = of_logits @ working
            if ctx.needs_input_grad[1]:
                part = matmul_float32(of_logits.T, hidden[cut].to(working.dtype))
                of_weight = part if of_weight is None else of_weight.add_(part)
            if bias is not None and ctx.needs_input_grad[2]:
                part = of_logits.sum(0, dtype=bias.dtype)
                of_bias = part if of_bias is None else of_bias.add_(part)
        return of_hidden, of_weight, of_bias, None, None, None


def _compute_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(hidden.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype))


@compile_fused
def _reduce_logits(logits: Tensor, targets: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reduce logits [tokens, vocabulary] to three numbers per token: log-probability of its target, log-sum-exp, entropy."""
    scaled = widen_to_float32(logits) * scale
    logp = torch.log_softmax(scaled, dim=-1)
    chosen = logp.gather(1, targets)
    total = scaled.gather(1, targets) - chosen
    return chosen[:, 0], total[:, 0], -(logp.exp() * logp).sum(1)


@compile_fused
def _compute_logits_grad(
    logits: Tensor, total: Tensor, scale: Tensor, of_logp: Tensor, of_entropy: Tensor | None, entropy: Tensor
) -> Tensor:
    """Gradient of the logits everywhere but at the targets: d logp[target] = -p;  d entropy = -p (logp + entropy)."""
    logp = widen_to_float32(logits) * scale - total
    pull = of_logp if of_entropy is None else of_logp + of_entropy * (logp + entropy)
    return (logp.exp() * pull * -scale).to(logits.dtype)


def _compute_target_grad(logp: Tensor, scale: Tensor, of_logp: Tensor, of_entropy: Tensor | None, entropy: Tensor) -> Tensor:
    """Gradient of the logits at the targets, where d logp[target] = 1 - p: rounded once, not as a sum of two rounded parts."""
    out = -torch.expm1(logp) * of_logp
    if of_entropy is not None:
        out = out - of_entropy * logp.exp() * (logp + entropy)
    return out * scale


def _get_computing_dtype(weight: Tensor) -> torch.dtype:
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def compute_chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    temperature: Tensor,
    working: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution, both [tokens], at the temperature of each token.

    `hidden` is [tokens, width]. `working` is a copy of the weight in the compute dtype; made here, as autocast says, if not
    given.
    """
    if working is None:
        working = weight.detach().to(_get_computing_dtype(weight))
    logp, entropy = _ChunkedHead.apply(hidden, weight, bias, targets, 1.0 / temperature, working)  # type: ignore[no-untyped-call]
    return logp, entropy


def compute_full_logprobs(logits: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The same from full logits, for architectures whose head is not a plain linear layer."""
    logp = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(1)
