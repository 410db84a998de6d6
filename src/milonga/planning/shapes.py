"""Shapes of models: how many parameters they have, and what a token of them costs in bytes and operations.

Invariant: parameters are counted from the shape, weight by weight; a test holds them against the published counts. The shape of
a size that nobody published ("14b") is interpolated, and says so in its `source`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from milonga.errors import UserError, suggest_name
from milonga.reading import SETTINGS, read_object
from milonga.types import Floats

HALF = 2
"""Bytes of a bfloat16."""
TOGETHER = 32
"""Experts that a sharded learner gathers at a time: assumed."""


@dataclass(frozen=True)
class Latent:
    """Attention whose keys and values are kept as one compressed vector (DeepSeek's MLA)."""

    query_rank: int
    kv_rank: int
    rope: int
    nope: int
    value: int


@dataclass(frozen=True)
class Experts:
    """MLPs of which every token takes a few; `width` is that of one."""

    count: int
    active: int
    shared: int
    width: int
    dense_layers: int
    """First layers that have one ordinary MLP instead."""


@dataclass(frozen=True)
class Shape:
    """A decoder of the family of Llama: what matters for time and memory, and nothing of what it knows."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    inner: int
    vocabulary: int
    tied: bool
    bias: bool = False
    """Whether the projections of queries, keys and values have a bias."""
    latent: Latent | None = None
    experts: Experts | None = None
    source: str = "published shape"

    @property
    def attention_parameters(self) -> int:
        """Attention parameters of one layer, its own norms included."""
        if self.latent is not None:
            one = self.latent
            queries = self.hidden * one.query_rank + one.query_rank * (1 + self.heads * (one.nope + one.rope))
            keys = self.hidden * (one.kv_rank + one.rope) + one.kv_rank * (1 + self.heads * (one.nope + one.value))
            return queries + keys + self.heads * one.value * self.hidden
        queries, keys = self.heads * self.head_size, self.kv_heads * self.head_size
        return 2 * self.hidden * (queries + keys) + (queries + 2 * keys) * self.bias

    @property
    def expert_layers(self) -> int:
        return self.layers - self.experts.dense_layers if self.experts else 0

    def mlp_parameters(self, taken: float) -> float:
        """MLP parameters of all layers, if `taken` of the routed experts count."""
        dense = (self.layers - self.expert_layers) * 3 * self.hidden * self.inner
        if self.experts is None:
            return dense
        router = self.hidden * self.experts.count + self.experts.count
        return dense + self.expert_layers * (router + 3 * self.hidden * self.experts.width * (taken + self.experts.shared))

    @property
    def embedding(self) -> int:
        return self.vocabulary * self.hidden

    def _count_parameters(self, taken: float, embeddings: int) -> float:
        norms = (2 * self.layers + 1) * self.hidden
        return self.layers * self.attention_parameters + self.mlp_parameters(taken) + norms + embeddings * self.embedding

    @property
    def parameters(self) -> int:
        return int(self._count_parameters(self.experts.count if self.experts else 0, 1 if self.tied else 2))

    @property
    def active(self) -> int:
        """Parameters that one token is multiplied with, the head included, the table of embeddings not."""
        return int(self._count_parameters(self.experts.active if self.experts else 0, 1))

    def count_bytes_read(self, rows: Floats) -> Floats:
        """Weight bytes that a decoding step of so many rows reads. Of the experts only those that some row is routed to, if
        rows choose independently and evenly."""
        whole = np.full_like(rows, HALF * self._count_parameters(0, 1))
        if self.experts is None:
            return whole
        chosen = self.experts.count * (1 - (1 - self.experts.active / self.experts.count) ** rows)
        return whole + HALF * self.expert_layers * 3 * self.hidden * self.experts.width * chosen

    @property
    def weight_bytes(self) -> int:
        return HALF * self.parameters

    @property
    def cache_bytes(self) -> int:
        """Bytes of the key-value cache for one token in all layers."""
        if self.latent is not None:
            return HALF * self.layers * (self.latent.kv_rank + self.latent.rope)
        return HALF * 2 * self.layers * self.kv_heads * self.head_size

    @property
    def attention_width(self) -> float:
        """Attention cost of a pair of tokens in one layer, as a width: products of queries with keys, and of weights with
        values."""
        size = (self.latent.nope + self.latent.rope + self.latent.value) / 2 if self.latent else self.head_size
        return self.heads * size

    @property
    def activation_bytes(self) -> int:
        """Activation bytes of one token for the backward pass: counted as in the local engine (engine/local/memory.py)."""
        inner = self.inner
        if self.experts is not None:
            taken = self.experts.width * (self.experts.active + self.experts.shared)
            inner = (self.experts.dense_layers * self.inner + self.expert_layers * taken) // self.layers
        narrow = 2 * self.hidden + 2 * (self.heads + self.kv_heads) * self.head_size + 3 * inner
        return self.layers * (8 * self.hidden + HALF * narrow)

    @property
    def gathered_parameters(self) -> int:
        """Most parameters that a sharded learner gathers at a time: a layer (with a few of its experts), or the embeddings."""
        mlp = 3 * self.hidden * self.inner
        if self.experts is not None:
            mlp = max(mlp, 3 * self.hidden * self.experts.width * min(TOGETHER, self.experts.count))
        return max(self.attention_parameters + mlp, self.embedding)

    def flops(self, tokens: float, attended: float, heads: float | None = None) -> float:
        """Floating-point operations of a forward pass: two per multiplied parameter and token, and attention over `attended`
        pairs of tokens. The head is computed at `heads` tokens, by default at all."""
        skipped = 0.0 if heads is None else tokens - heads
        products = 2.0 * (self.active * tokens - self.embedding * skipped)
        return products + 4.0 * self.layers * self.attention_width * attended


def _make_qwen(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, inner: int, vocabulary: int, tied: bool
) -> Shape:
    return Shape(name, layers, hidden, heads, kv_heads, 128, inner, vocabulary, tied, bias=True)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, tied=True),
        _make_qwen("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, tied=True),
        _make_qwen("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, tied=False),
        Shape("llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, tied=False),
        _make_qwen("qwen2.5-32b", 64, 5120, 40, 8, 27648, 152064, tied=False),
        Shape("llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128256, tied=False),
        _make_qwen("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, tied=False),
        Shape(
            *("deepseek-v3", 61, 7168, 128, 128, 128, 18432, 129280),
            tied=False,
            latent=Latent(query_rank=1536, kv_rank=512, rope=64, nope=128, value=128),
            experts=Experts(count=256, active=8, shared=1, width=2048, dense_layers=3),
        ),
    )
}
"""Published shapes. Multi-token prediction heads, which DeepSeek-V3 has too, are left out."""
SIZES = {name.rpartition("-")[2]: name for name in SHAPES if name != "deepseek-v3"} | {"671b": "deepseek-v3"}
LADDER = ("qwen2.5-1.5b", "qwen2.5-7b", "qwen2.5-32b", "qwen2.5-72b")
"""Between which sizes are interpolated."""


def find_shape(text: str) -> Shape:
    """Find a model shape by a name of the table, a size (`7b`), or a folder with a config.json."""
    key = text.lower()
    if key in SHAPES or key in SIZES:
        return SHAPES[SIZES.get(key, key)]
    if (Path(text) / "config.json").is_file():
        return _read_shape(Path(text))
    size = re.fullmatch(r"(\d+(?:\.\d+)?)b", key)
    if size:
        return _interpolate_shape(float(size[1]))
    known = [*SHAPES, *SIZES]
    raise UserError(
        f"unknown model '{text}': {suggest_name(key, known)}; or a folder with a config.json, or a size such as 14b"
    )


def _interpolate_shape(billions: float) -> Shape:
    """Interpolate a dense shape of that many parameters between two published ones: layers and width in proportion of the
    logarithms, and the MLP width such that the count is right."""
    least, most = (SHAPES[name] for name in (LADDER[0], LADDER[-1]))
    if not least.parameters <= billions * 1e9 <= most.parameters:
        known = ", ".join(SIZES)
        raise UserError(
            f"no shape of {billions:g}b: sizes between 1.55b and 72b are interpolated, others are known by name ({known})"
        )
    above = next(i for i, name in enumerate(LADDER) if SHAPES[name].parameters >= billions * 1e9)
    low, high = SHAPES[LADDER[max(above - 1, 0)]], SHAPES[LADDER[max(above, 1)]]
    part = math.log(billions * 1e9 / low.parameters) / math.log(high.parameters / low.parameters)
    layers = round(low.layers ** (1 - part) * high.layers**part)
    heads = 2 * round(low.heads ** (1 - part) * high.heads**part / 2)
    bare = replace(
        high, name=f"{billions:g}b", layers=layers, hidden=128 * heads, heads=heads, inner=0, tied=low.tied and part < 0.5,
        source=f"interpolated between {low.name} and {high.name}",
    )  # fmt: skip
    inner = (billions * 1e9 - bare.parameters) / (3 * bare.layers * bare.hidden)
    return replace(bare, inner=64 * round(inner / 64))


def _read_shape(folder: Path) -> Shape:
    """Read the shape of a Hugging Face folder; its weights need not be there."""
    file = folder / "config.json"
    try:
        config = read_object(file, SETTINGS, finite=False)  # Infinity is a value of some configs
        config = config.get("text_config", config)
        return _parse_config(folder.name, config)
    except KeyError as error:
        raise UserError(f"'{file}' has no {error}: only decoders of the family of Llama are planned for") from None
    except (ValueError, AttributeError, TypeError, OSError, ArithmeticError) as error:
        raise UserError(f"'{file}' cannot be read: {error}") from None


def _parse_config(name: str, config: Mapping[str, Any]) -> Shape:
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    count = config.get("n_routed_experts") or config.get("num_experts") or config.get("num_local_experts")
    experts, latent = None, None
    if count:
        width = int(config.get("moe_intermediate_size") or config["intermediate_size"])
        shared, dense = int(config.get("n_shared_experts") or 0), int(config.get("first_k_dense_replace") or 0)
        experts = Experts(int(count), int(config["num_experts_per_tok"]), shared, width, dense)
    if config.get("kv_lora_rank"):
        sizes = ("q_lora_rank", "kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        latent = Latent(*(int(config[key]) for key in sizes))
    shape = Shape(
        name=name,
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_size=int(config.get("head_dim") or hidden // heads),
        inner=int(config["intermediate_size"]),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        bias=config.get("model_type") == "qwen2",
        latent=latent,
        experts=experts,
        source="config.json",
    )
    for field in ("layers", "hidden", "heads", "kv_heads", "head_size", "inner", "vocabulary"):
        if getattr(shape, field) < 1:
            raise ValueError(f"{getattr(shape, field)} is no number of {field}")
    if experts is not None and not 1 <= experts.active <= experts.count:
        raise ValueError(f"a token cannot take {experts.active} of {experts.count} experts")
    return shape
