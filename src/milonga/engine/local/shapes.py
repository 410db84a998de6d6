"""Which model architectures have a written-out forward pass: for training over packed rows, and for sampling with kernels."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from milonga.engine.local.policy import Policy

SHAPES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
WANDERING = ("dynamic", "longrope")
"""Rotary positions that depend on the longest row of a batch."""


def explain_misfit(policy: Policy) -> str | None:
    """Why this policy's model must go through its own forward pass; None if it need not."""
    causal = policy.causal
    name = type(causal).__name__
    if name not in SHAPES:
        return f"{name} is none of {', '.join(SHAPES)}"
    if causal.config.hidden_act != "silu":
        return f"its activation is {causal.config.hidden_act}"
    if not policy.plain_head:
        return "its head is not a plain linear map"
    if set(getattr(causal.config, "layer_types", None) or ["full_attention"]) != {"full_attention"}:
        return "not all of its layers attend to everything"
    if causal.model.rotary_emb.rope_type in WANDERING:
        return "its rotary positions depend on the length"
    if type(causal.get_input_embeddings()) is not nn.Embedding:
        return "its embedding is not a plain table"
    if any(type(base_layer(linear)) is not nn.Linear for layer in causal.model.layers for linear in list_linears(layer)):
        return "some of its layers are not plain linear maps"
    return None


def list_linears(layer: Any) -> list[Any]:
    """The linear layers of a decoder layer: q, k, v, output, gate, up, down."""
    attention, mlp = layer.self_attn, layer.mlp
    return [attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj]


def base_layer(linear: Any) -> Any:
    """The linear layer itself, beneath adapters that may sit on it."""
    return getattr(linear, "base_layer", linear)


def fold_adapter(linear: Any, adapter: str | None) -> Tensor:
    """Fold an adapter into the weight of its linear layer."""
    weight: Tensor = base_layer(linear).weight
    if adapter is None or adapter not in getattr(linear, "lora_A", {}):
        return weight
    change: Tensor = linear.lora_B[adapter].weight @ linear.lora_A[adapter].weight
    return weight + float(linear.scaling[adapter]) * change
