"""The forward pass over a static cache: packed prompts at once, or one token for each row as a captured graph.

Rows are what is decoded side by side; slots are where their keys and values lie. A row that ends gives its slot back and
never moves: batches shrink by looking at fewer rows, not by copying the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milonga.engine.local.cuda import kernels
from milonga.engine.local.cuda.weights import Weights

CHUNK = 16384
"""Most tokens of prompts that are computed in one pass."""
TILE = 16
"""Consecutive tokens of one prompt that attend together."""


@dataclass(frozen=True)
class Piece:
    """A part of a prompt to compute: `ids` from position `first` on, into a slot."""

    slot: int
    first: int
    ids: NDArray[np.int64]


class Decoder:
    """Working weights, cache, the state of the rows, and graphs of the decoding step by number of rows."""

    def __init__(self, weights: Weights, slots: int, room: int, steps: int, eos: Sequence[int]) -> None:
        self.weights, self.slots, self.room, self.steps = weights, slots, room, steps
        device, dtype = weights.embedding.device, weights.dtype
        self.device = device
        # One more slot than rows: where rows without a request write.
        shape = (len(weights.layers), 2, slots + 1, weights.kv_heads, room, weights.head_size)
        self.cache = torch.zeros(shape, dtype=dtype, device=device)
        self.ids = torch.zeros((slots + 1, steps), dtype=torch.long, device=device)
        self.logprobs = torch.zeros((slots + 1, steps), device=device)
        self.eos = torch.tensor(list(eos), dtype=torch.long, device=device)
        self.cold = torch.ones(1, device=device)
        self.rope = self._compute_rope()
        self.order = torch.arange(slots, dtype=torch.int32, device=device)
        self.rows = {name: torch.zeros_like(self.order) for name in ("positions", "counts", "rooms", "live")}
        self.rows |= {name: torch.zeros(slots, dtype=torch.long, device=device) for name in ("keys", "tokens")}
        self.rows["slots"] = torch.full_like(self.order, self.idle)
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self.pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @property
    def idle(self) -> int:
        """The slot that belongs to nobody."""
        return self.slots

    def _compute_rope(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every position, half a head wide: the two halves turn by the same angles."""
        rotary = self.weights.policy.backbone.rotary_emb
        places = torch.arange(self.room, device=self.device)[None]
        cos, sin = rotary(torch.zeros(1, device=self.device), places)
        half = self.weights.head_size // 2
        return cos[0, :, :half].float().contiguous(), sin[0, :, :half].float().contiguous()

    def _run_layers(self, tokens: Tensor, slots: Tensor, positions: Tensor, tiles: tuple[Tensor, Tensor, int]) -> Tensor:
        """Hidden states after the last norm."""
        w = self.weights
        x = torch.nn.functional.embedding(tokens, w.embedding).float()
        h = kernels.add_norm(x, None, w.layers[0].before_attention, w.eps, w.dtype)
        nexts = [layer.before_attention for layer in w.layers[1:]] + [w.norm]
        for layer, cache, following in zip(w.layers, self.cache, nexts, strict=True):
            q = kernels.rotate_and_store(layer.qkv(h), cache, slots, positions, self.rope, layer.head_norms, w.eps)
            starts, counts, most = tiles
            mixed = kernels.attend(q, cache, slots, positions, starts, counts, w.scale, most)
            h = kernels.add_norm(x, layer.out(mixed), layer.before_mlp, w.eps, w.dtype)
            h = kernels.add_norm(x, layer.down(kernels.gate(layer.gate_up(h))), following, w.eps, w.dtype)
        return h

    def prefill(self, pieces: Sequence[Piece]) -> None:
        """Fill the cache with prompts, packed end to end, in passes of at most CHUNK tokens."""
        for batch in _split_passes(pieces):
            lengths = [len(piece.ids) for piece in batch]
            tokens = np.concatenate([piece.ids for piece in batch])
            slots = np.repeat([piece.slot for piece in batch], lengths).astype(np.int32)
            positions = np.concatenate([np.arange(p.first, p.first + len(p.ids)) for p in batch]).astype(np.int32)
            offsets = np.cumsum([0, *lengths[:-1]])
            starts = np.concatenate([at + np.arange(0, n, TILE) for at, n in zip(offsets, lengths, strict=True)])
            counts = np.concatenate([np.minimum(TILE, n - np.arange(0, n, TILE)) for n in lengths])
            sent = [self._to_device(a) for a in (tokens, slots, positions, starts.astype(np.int32), counts.astype(np.int32))]
            self._run_layers(sent[0], sent[1], sent[2], (sent[3], sent[4], TILE))

    def _to_device(self, array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def copy(self, sources: Sequence[int], targets: Sequence[int], tokens: int) -> None:
        """Give slots the first `tokens` positions of others."""
        if not sources:
            return
        source, target = (torch.tensor(list(s), device=self.device) for s in (sources, targets))
        for layer in self.cache:
            layer[:, target, :, :tokens] = layer[:, source, :, :tokens]

    def set_rows(self, rows: Sequence[int], **state: Sequence[int]) -> None:
        """Set the state of some rows."""
        index = torch.tensor(list(rows), device=self.device)
        for name, values in state.items():
            self.rows[name][index] = torch.tensor(list(values), dtype=self.rows[name].dtype, device=self.device)

    def keep_rows(self, rows: Sequence[int]) -> None:
        """Move these rows to the front, in this order; the others hold nothing any more."""
        index = torch.tensor(list(rows), dtype=torch.long, device=self.device)
        for tensor in self.rows.values():
            tensor[: len(rows)] = tensor[index]
        self.rows["live"][len(rows) :] = 0
        self.rows["slots"][len(rows) :] = self.idle

    def step(self, count: int, greedy: bool) -> None:
        """One more token for the first `count` rows."""
        if self.device.type != "cuda":
            self._step(count, greedy)
            return
        graph = self.graphs.get((count, greedy))
        if graph is None:
            graph = self.graphs[count, greedy] = self._capture(count, greedy)
        graph.replay()

    def _step(self, count: int, greedy: bool) -> None:
        rows = {name: tensor[:count] for name, tensor in self.rows.items()}
        tiles = (self.order[:count], rows["live"], 1)
        hidden = self._run_layers(rows["tokens"], rows["slots"], rows["positions"], tiles)
        kernels.choose(self._compute_logits(hidden), self.cold, greedy, self.eos, self.ids, self.logprobs, **rows)

    def _compute_logits(self, hidden: Tensor) -> Tensor:
        """In float32, whatever is multiplied: bfloat16 logits near 20 would be a sixteenth apart."""
        if hidden.dtype == torch.float32:
            return hidden @ self.weights.head.T
        return torch.mm(hidden, self.weights.head.T, out_dtype=torch.float32)

    def _capture(self, count: int, greedy: bool) -> torch.cuda.CUDAGraph:
        """Warm up (kernels are compiled, handles made) with rows that hold nothing, then record."""
        saved = {name: tensor.clone() for name, tensor in self.rows.items()}
        self.rows["live"].zero_()
        self.rows["slots"].fill_(self.idle)
        self.rows["positions"].zero_()
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step(count, greedy)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self._step(count, greedy)
        for name, tensor in saved.items():
            self.rows[name].copy_(tensor)
        return graph


def _split_passes(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Pieces in passes of at most CHUNK tokens; a prompt that does not fit goes on in the next, in order."""
    passes: list[list[Piece]] = [[]]
    left = CHUNK
    for piece in pieces:
        at = 0
        while at < len(piece.ids):
            if left == 0:
                passes.append([])
                left = CHUNK
            take = min(left, len(piece.ids) - at)
            passes[-1].append(Piece(piece.slot, piece.first + at, piece.ids[at : at + take]))
            at, left = at + take, left - take
    return [found for found in passes if found]
