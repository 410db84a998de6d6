"""The kernels between the matrix products, in Triton. Each reads its inputs once and writes its output once.

The residual stream is float32; everything that is multiplied is in the dtype of the working weights. A token belongs to a slot
of the cache and has a position in it. The cache of one layer is [2, slots, kv_heads, room, head_dim]: keys, then values.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

PART = 4096
"""Entries of the vocabulary that one program reduces."""
KEYS = 64
"""Keys that attention looks at in one step."""


@triton.jit  # type: ignore[untyped-decorator]
def _add_norm(x, delta, weight, out, size, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < size
    value = tl.load(x + row * size + at, mask=inside, other=0.0)
    if ADD:
        value += tl.load(delta + row * size + at, mask=inside, other=0.0).to(tl.float32)
        tl.store(x + row * size + at, value, mask=inside)
    scaled = value * tl.rsqrt(tl.sum(value * value, 0) / size + eps)
    scaled *= tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + at, scaled.to(out.dtype.element_ty), mask=inside)


def add_norm(x: Tensor, delta: Tensor | None, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Add `delta` to the residual stream in place; returns its root-mean-square norm in the dtype to be multiplied in."""
    rows, size = x.shape
    out = x.new_empty(x.shape, dtype=dtype)
    block = triton.next_power_of_2(size)
    warps = min(8, max(1, block // 256))
    _add_norm[(rows,)](x, x if delta is None else delta, weight, out, size, eps, delta is not None, block, num_warps=warps)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_and_store(  # type: ignore[no-untyped-def]
    qkv, queries, cache, slots, positions, cos, sin, q_norm, k_norm, eps, slot_stride, half_cache, room,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, HEADS: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0)
    head = tl.arange(0, HEADS)[:, None]
    d = tl.arange(0, HALF)[None, :]
    inside = (head < Q_HEADS + 2 * KV_HEADS) & (d < HALF)
    source = qkv + token.to(tl.int64) * ((Q_HEADS + 2 * KV_HEADS) * 2 * HALF) + head * (2 * HALF) + d
    low = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(source + HALF, mask=inside, other=0.0).to(tl.float32)
    is_query, is_value = head < Q_HEADS, head >= Q_HEADS + KV_HEADS
    position = tl.load(positions + token).to(tl.int64)
    if NORM:
        scale = tl.rsqrt((tl.sum(low * low, 1) + tl.sum(high * high, 1))[:, None] / (2 * HALF) + eps)
        low_weight = tl.where(is_query, tl.load(q_norm + d), tl.load(k_norm + d)).to(tl.float32)
        high_weight = tl.where(is_query, tl.load(q_norm + HALF + d), tl.load(k_norm + HALF + d)).to(tl.float32)
        low = tl.where(is_value, low, low * scale * low_weight)
        high = tl.where(is_value, high, high * scale * high_weight)
    c = tl.where(is_value, 1.0, tl.load(cos + position * HALF + d))
    s = tl.where(is_value, 0.0, tl.load(sin + position * HALF + d))
    new_low, new_high = low * c - high * s, high * c + low * s
    to_query = queries + (token.to(tl.int64) * Q_HEADS + head) * (2 * HALF) + d
    tl.store(to_query, new_low.to(queries.dtype.element_ty), mask=inside & is_query)
    tl.store(to_query + HALF, new_high.to(queries.dtype.element_ty), mask=inside & is_query)
    kv = tl.where(is_value, head - Q_HEADS - KV_HEADS, head - Q_HEADS)
    slot = tl.load(slots + token).to(tl.int64)
    to_cache = cache + slot * slot_stride + tl.where(is_value, half_cache, 0) + (kv * room + position) * (2 * HALF) + d
    stored = inside & (head >= Q_HEADS)
    tl.store(to_cache, new_low.to(cache.dtype.element_ty), mask=stored)
    tl.store(to_cache + HALF, new_high.to(cache.dtype.element_ty), mask=stored)


def rotate_and_store(
    qkv: Tensor, cache: Tensor, slots: Tensor, positions: Tensor, rope: tuple[Tensor, Tensor],
    norms: tuple[Tensor, Tensor] | None, eps: float,
) -> Tensor:  # fmt: skip
    """Turn queries and keys by their positions; keys and values go to the cache, the queries [tokens, heads, size] come back.
    `norms` are the weights of norms over each head, where the architecture has them."""
    _, _, kv_heads, room, size = cache.shape
    heads = qkv.shape[1] // size - 2 * kv_heads
    queries = qkv.new_empty((len(qkv), heads, size))
    first, second = norms or (qkv, qkv)
    _rotate_and_store[(len(qkv),)](
        qkv, queries, cache, slots, positions, *rope, first, second, eps, cache.stride(1), cache.stride(0), room,
        heads, kv_heads, size // 2, triton.next_power_of_2(heads + 2 * kv_heads), norms is not None,
    )  # fmt: skip
    return queries


@triton.jit  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    queries, out, cache, slots, positions, starts, counts, slot_stride, half_cache, room, scale,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_BLOCK: tl.constexpr, TOKENS: tl.constexpr, SIZE: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    tile, kv = tl.program_id(0), tl.program_id(1)
    start, count = tl.load(starts + tile), tl.load(counts + tile)
    slot = tl.load(slots + start).to(tl.int64)
    first = tl.load(positions + start)
    m = tl.arange(0, TOKENS * GROUP_BLOCK)
    token, member = m // GROUP_BLOCK, m % GROUP_BLOCK
    real = (token < count) & (member < GROUP)
    d = tl.arange(0, SIZE)
    row = ((start + token).to(tl.int64) * KV_HEADS + kv) * GROUP + member
    q = tl.load(queries + row[:, None] * SIZE + d[None, :], mask=real[:, None], other=0.0)
    keys = cache + slot * slot_stride + kv * room * SIZE
    values = keys + half_cache
    best = tl.full((TOKENS * GROUP_BLOCK,), -1e30, tl.float32)
    total = tl.zeros((TOKENS * GROUP_BLOCK,), tl.float32)
    mixed = tl.zeros((TOKENS * GROUP_BLOCK, SIZE), tl.float32)
    end = tl.where(count > 0, first + count, 0)
    for begin in range(0, end, KEYS):
        n = begin + tl.arange(0, KEYS)
        within = n < end
        k = tl.load(keys + n[:, None] * SIZE + d[None, :], mask=within[:, None], other=0.0)
        v = tl.load(values + n[:, None] * SIZE + d[None, :], mask=within[:, None], other=0.0)
        score = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        score = tl.where(n[None, :] <= (first + token)[:, None], score, -1e30)
        higher = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp(score - higher[:, None])
        shrink = tl.exp(best - higher)
        total = total * shrink + tl.sum(weight, 1)
        mixed = mixed * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
        best = higher
    mixed = mixed / tl.maximum(total, 1e-30)[:, None]
    # A tile of none still writes zeros: what follows must not compute with whatever lay in memory.
    written = (token < tl.maximum(count, 1)) & (member < GROUP)
    tl.store(out + row[:, None] * SIZE + d[None, :], mixed.to(out.dtype.element_ty), mask=written[:, None])


def attend(
    queries: Tensor, cache: Tensor, slots: Tensor, positions: Tensor, starts: Tensor, counts: Tensor, scale: float, tokens: int
) -> Tensor:
    """Causal attention of queries over their slots' caches; only filled positions are read, and grouped heads share them.

    A tile is `counts` (at most `tokens`) consecutive tokens of one slot, from `starts` on. A tile of none costs nothing.
    """
    _, _, kv_heads, room, size = cache.shape
    group = queries.shape[1] // kv_heads
    block = max(triton.next_power_of_2(group), 16 // tokens)
    out = queries.new_empty((len(queries), queries.shape[1] * size))
    _attend[(len(starts), kv_heads)](
        queries, out, cache, slots, positions, starts, counts, cache.stride(1), cache.stride(0), room, scale,
        kv_heads, group, block, tokens, size, KEYS, num_warps=4, num_stages=3 if size * cache.element_size() <= 256 else 2,
    )  # fmt: skip
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _gate(both, out, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    gate = tl.load(both + row * 2 * size + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * size + size + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * size + at, (gate / (1.0 + tl.exp(-gate)) * up).to(out.dtype.element_ty), mask=inside)


def gate(both: Tensor) -> Tensor:
    """silu of the first half times the second."""
    rows, size = both.shape[0], both.shape[1] // 2
    out = both.new_empty((rows, size))
    _gate[(rows, triton.cdiv(size, 1024))](both, out, size, 1024, num_warps=4)
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _reduce_parts(  # type: ignore[no-untyped-def]
    logits, tops, sums, cold, vocab, parts, PART: tl.constexpr
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * PART + tl.arange(0, PART)
    value = tl.load(logits + row * vocab + at, mask=at < vocab, other=float("-inf")) * tl.load(cold)
    top = tl.max(value, 0)
    tl.store(tops + row * parts + part, top)
    tl.store(sums + row * parts + part, tl.sum(tl.exp(value - top), 0))


@triton.jit  # type: ignore[untyped-decorator]
def _mix(z):  # type: ignore[no-untyped-def]
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit  # type: ignore[untyped-decorator]
def _choose(  # type: ignore[no-untyped-def]
    logits, tops, sums, cold, vocab, parts, keys, slots, tokens, positions, counts, rooms, live, eos, ids, logprobs, steps,
    GREEDY: tl.constexpr, EOS: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    count = tl.load(counts + row)
    if tl.load(live + row) != 0:
        p = tl.arange(0, PARTS)
        top = tl.load(tops + row * parts + p, mask=p < parts, other=float("-inf"))
        weight = tl.load(sums + row * parts + p, mask=p < parts, other=0.0)
        best = tl.max(top, 0)
        weight = weight * tl.exp(top - best)
        total = tl.sum(weight, 0)
        cumulated = tl.cumsum(weight, 0)
        if GREEDY:
            part = tl.argmax(top, 0)
            before, target = 0.0, 0.0
        else:
            key = tl.load(keys + row).to(tl.uint64)
            mixed = _mix(key + (count.to(tl.uint64) + 1) * 0x9E3779B97F4A7C15)
            target = (mixed >> 40).to(tl.float32) / 16777216.0 * total
            # The first part whose cumulated weight exceeds the target; rounding must not lead beyond the last real one.
            part = tl.minimum(tl.sum((cumulated <= target).to(tl.int32), 0), tl.max(tl.where(weight > 0.0, p, 0), 0))
            before = tl.sum(tl.where(p < part, weight, 0.0), 0)
        at = tl.arange(0, PART)
        inside = part * PART + at < vocab
        value = tl.load(logits + row * vocab + part * PART + at, mask=inside, other=float("-inf")) * tl.load(cold)
        chance = tl.exp(value - best)
        if GREEDY:
            place = tl.argmax(value, 0)
        else:
            reached = before + tl.cumsum(chance, 0)
            last = tl.max(tl.where(chance > 0.0, at, 0), 0)
            place = tl.minimum(tl.sum((reached <= target).to(tl.int32), 0), last)
        chosen = tl.sum(tl.where(at == place, value, 0.0), 0)
        token = part * PART + place
        slot = tl.load(slots + row).to(tl.int64)
        tl.store(ids + slot * steps + count, token)
        tl.store(logprobs + slot * steps + count, chosen - best - tl.log(total))
        ended = count + 1 >= tl.load(rooms + row)
        for e in range(EOS):
            ended = ended | (token == tl.load(eos + e))
        tl.store(tokens + row, token)
        tl.store(positions + row, tl.load(positions + row) + 1)
        tl.store(counts + row, count + 1)
        tl.store(live + row, tl.where(ended, 0, 1))


def choose(logits: Tensor, cold: Tensor, greedy: bool, eos: Tensor, ids: Tensor, logprobs: Tensor, **rows: Tensor) -> None:
    """The next token of every live row, written down with its log-probability at temperature 1 / `cold`; rows that end are no
    longer live. The randomness of a row depends on its key and its count of tokens alone, as in the portable sampler."""
    count, vocab = logits.shape
    parts = triton.cdiv(vocab, PART)
    tops, sums = logits.new_empty((count, parts)), logits.new_empty((count, parts))
    _reduce_parts[(count, parts)](logits, tops, sums, cold, vocab, parts, PART, num_warps=8)
    state = [rows[name] for name in ("keys", "slots", "tokens", "positions", "counts", "rooms", "live")]
    _choose[(count,)](
        logits, tops, sums, cold, vocab, parts, *state, eos, ids, logprobs, ids.shape[1],
        greedy, len(eos), triton.next_power_of_2(parts), PART, num_warps=8,
    )  # fmt: skip
