"""Working weights: a policy's weights in the dtype they are multiplied in, joined where one product can do the work of several.

Invariant: `refresh` writes into the same memory every time, so that captured graphs see new weights without being captured
again. Adapters are folded in: sampling costs the same with and without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from milonga.engine.local.policy import Policy
from milonga.engine.local.shapes import base_layer, explain_misfit, fold_adapter, list_linears

SIZES = (16, 32, 64, 128, 256)
"""Head sizes that the kernels support."""


def explain_unsuited(policy: Policy) -> str | None:
    """Why this policy's model cannot be sampled by the kernels; None if it can."""
    why = explain_misfit(policy)
    if why is not None:
        return why
    if policy.causal.get_output_embeddings().bias is not None:
        return "its head has a bias"
    size = policy.backbone.layers[0].self_attn.head_dim
    return None if size in SIZES else f"its heads have {size} dimensions"


@dataclass(frozen=True)
class Joined:
    """Linear maps of the same input as one; each part is a module of the model."""

    parts: tuple[Any, ...]
    weight: Tensor
    bias: Tensor | None

    @staticmethod
    def make(parts: tuple[Any, ...], dtype: torch.dtype) -> Joined:
        bases = [base_layer(part) for part in parts]
        device = bases[0].weight.device
        width = sum(base.out_features for base in bases)
        biased = any(base.bias is not None for base in bases)
        bias = torch.zeros(width, dtype=dtype, device=device) if biased else None
        return Joined(parts, torch.empty((width, bases[0].in_features), dtype=dtype, device=device), bias)

    def refresh(self, adapter: str | None) -> None:
        at = 0
        for part in self.parts:
            base = base_layer(part)
            rows = slice(at, at + base.out_features)
            self.weight[rows] = fold_adapter(part, adapter)
            if base.bias is not None:
                assert self.bias is not None
                self.bias[rows] = base.bias
            at += base.out_features

    def __call__(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Layer:
    qkv: Joined
    out: Joined
    gate_up: Joined
    down: Joined
    before_attention: Tensor
    before_mlp: Tensor
    head_norms: tuple[Tensor, Tensor] | None

    @property
    def joined(self) -> tuple[Joined, ...]:
        return self.qkv, self.out, self.gate_up, self.down


class Weights:
    """All working weights of one policy."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.dtype = policy.compute_dtype
        body = policy.backbone
        self.layers = [self._make_layer(layer) for layer in body.layers]
        self.embedding = self._empty_like(body.embed_tokens.weight)
        head = policy.causal.get_output_embeddings().weight
        self.head = self.embedding if head is body.embed_tokens.weight else self._empty_like(head)
        self.norm = self._empty_norm(body.norm.weight)
        attention = body.layers[0].self_attn
        self.eps = float(body.norm.variance_epsilon)
        self.scale = float(attention.scaling)
        self.head_size = int(attention.head_dim)
        self.kv_heads = int(policy.causal.config.num_key_value_heads)

    def _empty_like(self, parameter: Tensor) -> Tensor:
        return torch.empty_like(parameter, dtype=self.dtype, requires_grad=False)

    def _empty_norm(self, parameter: Tensor) -> Tensor:
        """Weights of norms stay in float32: near one, steps of bfloat16 are larger than what is learned."""
        return torch.empty_like(parameter, dtype=torch.float32, requires_grad=False)

    def _make_layer(self, layer: Any) -> Layer:
        attention = layer.self_attn
        q, k, v, o, gate, up, down = list_linears(layer)
        head_norms = None
        if hasattr(attention, "q_norm"):
            head_norms = (self._empty_norm(attention.q_norm.weight), self._empty_norm(attention.k_norm.weight))
        return Layer(
            qkv=Joined.make((q, k, v), self.dtype),
            out=Joined.make((o,), self.dtype),
            gate_up=Joined.make((gate, up), self.dtype),
            down=Joined.make((down,), self.dtype),
            before_attention=self._empty_norm(layer.input_layernorm.weight),
            before_mlp=self._empty_norm(layer.post_attention_layernorm.weight),
            head_norms=head_norms,
        )

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the weights that the policy computes with at this moment."""
        body = self.policy.backbone
        for mine, theirs in zip(self.layers, body.layers, strict=True):
            for joined in mine.joined:
                joined.refresh(self.policy.adapter)
            mine.before_attention.copy_(theirs.input_layernorm.weight)
            mine.before_mlp.copy_(theirs.post_attention_layernorm.weight)
            if mine.head_norms is not None:
                mine.head_norms[0].copy_(theirs.self_attn.q_norm.weight)
                mine.head_norms[1].copy_(theirs.self_attn.k_norm.weight)
        self.embedding.copy_(body.embed_tokens.weight)
        if self.head is not self.embedding:
            self.head.copy_(self.policy.causal.get_output_embeddings().weight)
        self.norm.copy_(body.norm.weight)

    @property
    def token_bytes(self) -> int:
        """Bytes of the key-value cache for one token in all layers."""
        return 2 * len(self.layers) * self.kv_heads * self.head_size * self.embedding.element_size()
