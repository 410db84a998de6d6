"""The learner's forward pass of Llama-shaped models over packed rows.

Rows lie behind one another on one axis of tokens, so that nothing is computed for padding. It is the computation of the model's
own forward pass, with the weights of its own modules:
- products are taken in a working copy of the weights, made once for an optimizer step; layers that read the same input (q, k
  and v; gate and up) are one product. Gradients go to the float32 masters, in float32;
- the residual stream stays in float32;
- on a CPU, a head that several rows share is computed once (see `packing.py`);
- what lies between products is fused (see `fused.py`).
A working copy costs two bytes per parameter in bfloat16. Other architectures go through their own forward pass, padded.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from milonga.engine.local import llama_decode
from milonga.engine.local.fused import HALF, compile_fused, matmul_float32, widen_to_float32
from milonga.engine.local.packing import Block, Packing
from milonga.engine.local.policy import Policy
from milonga.engine.local.shapes import base_layer, explain_misfit, list_linears


def make_working_weights(policy: Policy) -> WorkingWeights | None:
    """Make the working weights for packed passes; None if the model's own forward pass must be used. Sharded weights need it:
    it gathers them layer by layer."""
    if policy.shell is not None:
        return None
    why = explain_misfit(policy)
    if why is None:
        return WorkingWeights(policy)
    if policy.device.type == "cuda":
        warnings.warn(f"policy '{policy.name}' learns from padded rows, which is slower: {why}", stacklevel=2)
    return None


@dataclass(frozen=True)
class _Adapter:
    """LoRA on some of a group's outputs: y += scale * (x A') B'."""

    outputs: slice
    ranks: slice
    """Its columns among the inner ones of all adapters of the group."""
    up: Tensor
    """B, times the scale."""
    scale: float


class _Group:
    """Linear layers that read the same input, as one product in the precision of computing."""

    def __init__(self, linears: Sequence[Any], adapter: str | None, dtype: torch.dtype) -> None:
        bases = [base_layer(linear) for linear in linears]
        self.sizes = [base.out_features for base in bases]
        self.weight = _concatenate_rows([base.weight for base in bases], dtype)
        self.bias = None if bases[0].bias is None else _concatenate_rows([base.bias for base in bases], dtype)
        self.masters = [p for base in bases for p in (base.weight, base.bias) if p is not None and p.requires_grad]
        self.adapters: list[_Adapter] = []
        self.down: Tensor | None = None
        if adapter is not None:
            self._add_adapters(linears, adapter, dtype)

    def _add_adapters(self, linears: Sequence[Any], adapter: str, dtype: torch.dtype) -> None:
        downs: list[Tensor] = []
        output = rank = 0
        for linear, size in zip(linears, self.sizes, strict=True):
            if adapter in getattr(linear, "lora_A", ()):
                a, b, scale = linear.lora_A[adapter].weight, linear.lora_B[adapter].weight, float(linear.scaling[adapter])
                outputs, ranks = slice(output, output + size), slice(rank, rank + len(a))
                self.adapters.append(_Adapter(outputs, ranks, (b.detach() * scale).to(dtype), scale))
                self.masters += [a, b]
                downs.append(a)
                rank += len(a)
            output += size
        self.down = _concatenate_rows(downs, dtype) if downs else None

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = _Product.apply(x, self, *self.masters)  # type: ignore[no-untyped-call]
        return y


def _concatenate_rows(parts: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Concatenate the rows of several tensors and cast them; a single one that needs no cast is taken as it is."""
    if len(parts) == 1:
        return parts[0].detach().to(dtype)
    out = torch.empty((sum(len(p) for p in parts), *parts[0].shape[1:]), dtype=dtype, device=parts[0].device)
    for part, place in zip(parts, torch.split(out, [len(p) for p in parts]), strict=True):
        place.copy_(part.detach())
    return out


class _Product(torch.autograd.Function):
    """x W' + b of a group, with its adapters. The masters are given so that their gradients find them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: _Group, *masters: Tensor) -> Tensor:
        y = F.linear(x, group.weight, group.bias)
        inner = None
        if group.down is not None:
            inner = x @ group.down.T
            for adapter in group.adapters:
                y[:, adapter.outputs].addmm_(inner[:, adapter.ranks], adapter.up.T)
        ctx.group = group
        ctx.save_for_backward(x, inner)
        return y

    @staticmethod
    def backward(ctx: Any, of_y: Tensor) -> tuple[Tensor | None, ...]:
        x, inner = ctx.saved_tensors
        group: _Group = ctx.group
        of_x = of_y @ group.weight if ctx.needs_input_grad[0] else None
        if group.down is None:
            return of_x, None, *(_compute_master_grads(group, x, of_y) if group.masters else ())
        of_inner = torch.cat([of_y[:, a.outputs] @ a.up for a in group.adapters], 1)
        if of_x is not None:
            of_x.addmm_(of_inner, group.down)
        of_down = matmul_float32(of_inner.T, x)
        found = []
        for a in group.adapters:
            found += [of_down[a.ranks], matmul_float32(of_y[:, a.outputs].T, inner[:, a.ranks]) * a.scale]
        return of_x, None, *found


def _compute_master_grads(group: _Group, x: Tensor, of_y: Tensor) -> list[Tensor]:
    """Gradients of the weights and biases, in the order of the masters."""
    weights = torch.split(matmul_float32(of_y.T, x), group.sizes)
    if group.bias is None:
        return list(weights)
    biases = torch.split(of_y.sum(0, dtype=weights[0].dtype), group.sizes)
    return [gradient for pair in zip(weights, biases, strict=True) for gradient in pair]


class _Layer:
    """One decoder layer with its working weights."""

    def __init__(self, layer: Any, adapter: str | None, dtype: torch.dtype) -> None:
        q, k, v, o, gate, up, down = list_linears(layer)
        self.dtype = dtype
        self.qkv, self.out = _Group([q, k, v], adapter, dtype), _Group([o], adapter, dtype)
        self.up, self.down = _Group([gate, up], adapter, dtype), _Group([down], adapter, dtype)
        self.before, self.between = layer.input_layernorm, layer.post_attention_layernorm
        size = layer.self_attn.head_dim
        self.heads = [n // size for n in self.qkv.sizes]
        q_norm, k_norm = (getattr(getattr(layer.self_attn, name, None), "weight", None) for name in ("q_norm", "k_norm"))
        self.norms = (q_norm, k_norm)
        self.eps = self.before.variance_epsilon

    def __call__(self, x: Tensor, branch: Tensor | None, cos: Tensor, sin: Tensor, packing: Packing) -> tuple[Tensor, Tensor]:
        """`branch` is what the layer before adds to the residual stream x: it is added where x is read next."""
        x, h = _add_norm(x, branch, self.before.weight, self.eps, self.dtype)
        q, k, v = _rotate(self.qkv(h), cos, sin, self.norms, self.heads, self.eps)
        x, h = _add_norm(x, self.out(attend(q, k, v, packing).flatten(1)), self.between.weight, self.eps, self.dtype)
        return x, self.down(_apply_gate(self.up(h)))


class WorkingWeights:
    """A policy's weights as they are now, ready for packed passes. It does not follow later changes: make one for every
    optimizer step, and for every version that is scored."""

    def __init__(self, policy: Policy) -> None:
        body, dtype = policy.causal.model, policy.compute_dtype
        self.layers = [_Layer(layer, policy.adapter, dtype) for layer in body.layers]
        self.embedding, self.rotary, self.norm = body.embed_tokens.weight, body.rotary_emb, body.norm
        self.pad = body.embed_tokens.padding_idx
        """The row of the embedding that gets no gradient, as in the model's own pass."""
        self.dtype, self.recompute = dtype, policy.section.recompute
        self.padless = _can_use_flash(policy.device, dtype, policy.causal.model.layers[0].self_attn.head_dim)
        """Whether attention, too, computes nothing for padding."""
        self.shares_heads = policy.device.type == "cpu"
        """Whether what rows have in common at their beginning is computed once. On a GPU attention takes whole rows."""
        head = policy.causal.get_output_embeddings()
        self.head = _concatenate_rows([head.weight], dtype) if policy.head is None else None

    def compute_hidden(self, ids: Tensor, packing: Packing, places: Tensor) -> Tensor:
        """The last hidden states at some places of the packed axis."""
        x, branch = F.embedding(ids, self.embedding, self.pad), None
        cos, sin = (table[0] for table in self.rotary(x, packing.positions[None]))
        sin = llama_decode.negate_first_half(sin)
        for layer in self.layers:
            if self.recompute and torch.is_grad_enabled():
                x, branch = checkpoint(layer, x, branch, cos, sin, packing, use_reentrant=False)
            else:
                x, branch = layer(x, branch, cos, sin, packing)
        branch = None if branch is None else branch.index_select(0, places)
        x = x.index_select(0, places)
        return _add_norm(x, branch, self.norm.weight, self.norm.variance_epsilon, self.dtype)[1]


@compile_fused
def _add_norm(x: Tensor, branch: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The residual stream with a branch added to it, and its norm in the precision of computing."""
    if branch is not None:
        x = x + branch
    return x, _norm(x, weight, eps).to(dtype)


@compile_fused
def _rotate(
    y: Tensor, cos: Tensor, sin: Tensor, norms: tuple[Tensor | None, Tensor | None], heads: list[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values from their joint product; the first two turned by their positions."""
    size = cos.shape[-1]
    q, k, v = torch.split(y.view(len(y), -1, size), heads, 1)
    q, k = (
        widen_to_float32(t) if norm is None else _norm(widen_to_float32(t), norm, eps)
        for t, norm in zip((q, k), norms, strict=True)
    )
    cos, sin = cos[:, None], sin[:, None]
    return (
        llama_decode.apply_rotary(q, cos, sin).to(y.dtype),
        llama_decode.apply_rotary(k, cos, sin).to(y.dtype),
        v.contiguous(),
    )


@compile_fused
def _apply_gate(y: Tensor) -> Tensor:
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def attend(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """Causal attention of every row to itself alone. All three are tokens x heads x size."""
    if _can_use_flash(q.device, q.dtype, q.shape[-1]):
        return _attend_varlen(q, k, v, packing)
    return _attend_padded(q, k, v, packing)


def _attend_padded(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    parts = [_attend_block(q[block.tokens], k, v, block) for block in packing.blocks]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend_block(q: Tensor, k: Tensor, v: Tensor, block: Block) -> Tensor:
    rows, longest = block.shape
    grouped = q.shape[1] != k.shape[1]
    padded = _pad_rows(q, block.grid, rows, longest)
    if block.keys is None or block.key_grid is None or block.mask is None:
        keys, values = (_pad_rows(x[block.tokens], block.grid, rows, longest) for x in (k, v))
        out = F.scaled_dot_product_attention(padded, keys, values, is_causal=True, enable_gqa=grouped)
    else:
        width = block.mask.shape[-1]
        keys, values = (_pad_rows(x.index_select(0, block.keys), block.key_grid, rows, width) for x in (k, v))
        out = F.scaled_dot_product_attention(padded, keys, values, attn_mask=block.mask, enable_gqa=grouped)
    out = out.transpose(1, 2).flatten(0, 1)
    return out if len(q) == rows * longest else out.index_select(0, block.grid)


def _pad_rows(x: Tensor, grid: Tensor, rows: int, longest: int) -> Tensor:
    """Tokens on the packed axis as padded rows x heads x tokens x size."""
    if len(x) < rows * longest:
        x = x.new_zeros((rows * longest, *x.shape[1:])).index_copy(0, grid, x)
    return x.view(rows, longest, *x.shape[1:]).transpose(1, 2)


def _can_use_flash(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Whether torch's flash attention for rows of different lengths can be asked."""
    able = device.type == "cuda" and dtype in HALF and size % 8 == 0 and size <= 256
    return able and torch.cuda.get_device_capability(device) >= (8, 0)


def _attend_varlen(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    ends, most = packing.starts, packing.longest
    out = varlen_attn(q, k, v, ends, ends, most, most, window_size=(-1, 0), **_make_gqa_options())
    assert isinstance(out, Tensor)
    return out


@cache
def _make_gqa_options() -> dict[str, Any]:
    """Fewer heads of keys than of queries are taken as they come by torch 2.11, and must be announced from 2.12 on."""
    from torch.nn.attention.varlen import varlen_attn

    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
