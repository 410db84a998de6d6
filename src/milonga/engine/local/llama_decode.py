"""One decoding step of Llama-shaped models, written out.

The models' own forward passes are made for every case; for one token per row most of their time goes into Python, not into
arithmetic. This is the same computation with the same modules' weights in as few calls as it takes. Other
architectures, adapters and special caches go through the model's own forward.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from milonga.engine.local.cache import RoomyLayer, is_roomy
from milonga.engine.local.policy import Policy

SHAPES = ("LlamaForCausalLM", "Qwen2ForCausalLM")


def supports_policy(policy: Policy, cache: Any) -> bool:
    """Whether the written-out decoding step supports this policy's model and cache."""
    return (
        type(policy.causal).__name__ in SHAPES
        and policy.causal.config.hidden_act == "silu"
        and policy.adapter is None
        and policy.plain_head
        and is_roomy(cache)
    )


def decode_step(causal: Any, tokens: Tensor, positions: Tensor, mask: Tensor, cache: Any) -> Tensor:
    """Logits after one more token in each row. `mask` is True where a row may look, the new token included."""
    body = causal.model
    x = F.embedding(tokens, body.embed_tokens.weight)
    cos, sin = (table[:, None] for table in body.rotary_emb(x, positions[:, None]))
    sin = negate_first_half(sin)
    seen = mask[:, None, None]
    for layer, room in zip(body.layers, cache.layers, strict=True):
        x = x + _attention(layer.self_attn, _norm(layer.input_layernorm, x), cos, sin, seen, room)
        h, mlp = _norm(layer.post_attention_layernorm, x), layer.mlp
        x = x + _linear(mlp.down_proj, F.silu(_linear(mlp.gate_proj, h)) * _linear(mlp.up_proj, h))
    return _linear(causal.lm_head, _norm(body.norm, x))


def _attention(attention: Any, h: Tensor, cos: Tensor, sin: Tensor, seen: Tensor, room: RoomyLayer) -> Tensor:
    size = attention.head_dim
    q, k, v = (
        _linear(project, h).view(len(h), -1, 1, size) for project in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    keys, values = room.update(apply_rotary(k, cos, sin), v)
    grouped = q.shape[1] != keys.shape[1]
    out = F.scaled_dot_product_attention(apply_rotary(q, cos, sin), keys, values, attn_mask=seen, enable_gqa=grouped)
    return _linear(attention.o_proj, out.reshape(len(h), -1))


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary position embeddings: the two halves of a head turn into each other."""
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin


def negate_first_half(sin: Tensor) -> Tensor:
    """Negate the first half of the sines: a roll swaps the halves of a head, and the first needs a minus."""
    first, second = sin.chunk(2, -1)
    return torch.cat([-first, second], -1)


def _norm(norm: Any, x: Tensor) -> Tensor:
    return F.rms_norm(x, norm.weight.shape, norm.weight, norm.variance_epsilon)


def _linear(linear: Any, x: Tensor) -> Tensor:
    return F.linear(x, linear.weight, linear.bias)
