"""Log-probability and entropy of given tokens without holding full logits.

The vocabulary is by far the widest axis of a language model. Logits are computed for a chunk of tokens at a time,
reduced to two numbers per token, and computed again in the backward pass: memory is chunk x vocabulary, not tokens x
vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 25
"""Logits held at a time: 128 MiB in float32."""


def chunk_rows(vocabulary: int) -> int:
    return max(64, CHUNK_ELEMENTS // vocabulary)


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, scale: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.dtype = _computing_dtype(weight)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, targets, scale)
        weight, logps, entropies = weight.to(ctx.dtype), [], []
        for part in range(0, len(hidden), rows := chunk_rows(len(weight))):
            cut = slice(part, part + rows)
            logp = _log_softmax(hidden[cut], weight, bias, scale[cut])
            logps.append(logp.gather(1, targets[cut, None])[:, 0])
            entropies.append(-(logp.exp() * logp).sum(1))
        return torch.cat(logps), torch.cat(entropies)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None, None, None]:
        hidden, weight, bias, targets, scale = ctx.saved_tensors
        of_hidden = torch.empty_like(hidden)
        of_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        of_bias = torch.zeros_like(bias) if bias is not None and ctx.needs_input_grad[2] else None
        weight = weight.to(ctx.dtype)
        for part in range(0, len(hidden), rows := chunk_rows(len(weight))):
            cut = slice(part, part + rows)
            logp = _log_softmax(hidden[cut], weight, bias, scale[cut])
            of_logp, of_entropy = (g[cut, None] if g is not None else None for g in gradients)
            of_logits = _of_logits(logp, targets[cut, None], of_logp, of_entropy)
            of_logits = (of_logits * scale[cut, None]).to(weight.dtype)
            of_hidden[cut] = (of_logits @ weight).to(hidden.dtype)
            if of_weight is not None:
                of_weight += of_logits.T @ hidden[cut].to(weight.dtype)
            if of_bias is not None:
                of_bias += of_logits.sum(0)
        return of_hidden, of_weight, of_bias, None, None


def _of_logits(logp: Tensor, targets: Tensor, of_logp: Tensor | None, of_entropy: Tensor | None) -> Tensor:
    """d logp[target] = onehot - p;  d entropy = -p (logp + entropy)."""
    p = logp.exp()
    out = torch.zeros_like(p) if of_logp is None else p * -of_logp
    if of_logp is not None:
        out.scatter_add_(1, targets, of_logp.to(out.dtype))
    if of_entropy is not None:
        out -= of_entropy * p * (logp - (p * logp).sum(1, keepdim=True))
    return out


def _computing_dtype(weight: Tensor) -> torch.dtype:
    """The backward pass runs outside of autocast: it computes the logits again in the precision of the forward pass."""
    kind = weight.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


def _log_softmax(hidden: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor) -> Tensor:
    bias = bias.to(weight.dtype) if bias is not None else None
    logits = torch.nn.functional.linear(hidden.to(weight.dtype), weight, bias)
    return torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)) * scale[:, None], dim=-1)


def chunked_head(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of each distribution, at the temperature of each token."""
    logp, entropy = _ChunkedHead.apply(hidden, weight, bias, targets, 1.0 / temperature)  # type: ignore[no-untyped-call]
    return logp, entropy


def full_head(logits: Tensor, targets: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """The same from full logits, for architectures whose head is not a plain linear layer."""
    logp = torch.log_softmax(logits.float() / temperature[:, None], dim=-1)
    return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(1)
