"""Cutting rows into micro-batches by a token budget.

Invariant (law 5): results never depend on the cut; only memory and speed do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milonga.types import Floats, Rollout


@dataclass(frozen=True)
class Packing:
    """How rows are packed end to end on one axis of tokens."""

    positions: Tensor
    """Position of each token within its row, [tokens]."""
    starts: Tensor
    """Cumulative sequence lengths, [rows + 1]: where each row begins, and last where all end (int32, for attention kernels)."""
    longest: int
    grid: Tensor
    """Index of each token among rows that are padded to the longest, [tokens]."""

    @property
    def rows(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class MicroBatch:
    """A micro-batch of rows, padded on the right or packed; and the flat axis of its tokens in the loss: the trained ones, or
    those whose value is needed."""

    members: list[int]
    """Indices of the rows in the list they were cut from."""
    ids: Tensor
    """[rows, columns], or [tokens] if the batch is packed."""
    rows: Tensor
    """Row of each trained token within this micro-batch, [trained tokens]."""
    places: Tensor
    """Index of each trained token in the flattened ids, [trained tokens]."""
    lengths: Tensor
    """Number of trained tokens of each row, [rows]."""
    temperature: Tensor
    trained: list[NDArray[np.bool_]]
    """The trained tokens of each row, as a mask of its ids."""
    packing: Packing | None = None

    @property
    def targets(self) -> Tensor:
        return self.ids.flatten().index_select(0, self.places)

    @property
    def tokens(self) -> int:
        return sum(len(row) for row in self.trained)

    @property
    def attended_pairs(self) -> float:
        """Number of token pairs in causal attention, for counting operations."""
        return sum(len(row) ** 2 / 2 for row in self.trained)

    def flatten_rows(self, arrays: Sequence[Floats], device: torch.device) -> Tensor:
        """Flatten per-token arrays, one per row and aligned with its ids, to the axis of trained tokens."""
        values = np.concatenate([array[mask] for array, mask in zip(arrays, self.trained, strict=True)])
        return copy_to_device(values.astype(np.float32), device)


def copy_to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device without waiting: the host goes on preparing while the device computes."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def mask_trained_tokens(rollout: Rollout) -> NDArray[np.bool_]:
    """Mask of the tokens that are trained and predicted: never the first one. Aligned with the rollout's ids."""
    mask = rollout.mask
    mask[:1] = False
    return mask


def cut_micro_batches(
    rollouts: Sequence[Rollout], budget: int, units: Sequence[int] | None = None, padless: bool = False
) -> Iterator[list[int]]:
    """Cut rows, sorted by length, into micro-batches of at most `budget` tokens; yield the indices of each. Padding counts
    unless the pass is `padless`. Rows that share a unit are never split."""
    grouped: dict[int, list[int]] = {}
    for i in range(len(rollouts)):
        grouped.setdefault(units[i] if units is not None else i, []).append(i)
    blocks = sorted(grouped.values(), key=lambda block: max(len(rollouts[i].ids) for i in block))
    batch: list[int] = []
    for block in blocks:
        lengths = [len(rollouts[i].ids) for i in batch + block]
        if batch and (sum(lengths) if padless else max(lengths) * len(lengths)) > budget:
            yield batch
            batch = []
        batch = batch + block
    if batch:
        yield batch


def mask_last_token(rollout: Rollout) -> NDArray[np.bool_]:
    """Mask of the very last token, where a value head has seen the whole row."""
    mask = np.zeros(len(rollout.ids), dtype=bool)
    mask[-1:] = True
    return mask


def build_micro_batch(
    rollouts: Sequence[Rollout],
    members: list[int],
    pad: int,
    device: torch.device,
    masks: Sequence[NDArray[np.bool_]] | None = None,
    packed: bool = False,
) -> MicroBatch:
    """Build a micro-batch. `masks` says which tokens of each rollout are in the loss; by default the trained ones."""
    chosen = [rollouts[i] for i in members]
    trained = [mask_trained_tokens(rollouts[i]) if masks is None else masks[i] for i in members]
    sizes = np.array([len(t.ids) for t in chosen], dtype=np.int64)
    longest = int(sizes.max())
    starts = np.concatenate([[0], np.cumsum(sizes)]) if packed else np.arange(len(chosen)) * longest
    if packed:
        ids = np.concatenate([t.ids for t in chosen]).astype(np.int64)
    else:
        ids = np.full((len(chosen), longest), pad, dtype=np.int64)
        for i, rollout in enumerate(chosen):
            ids[i, : len(rollout.ids)] = rollout.ids
    lengths = np.array([row.sum() for row in trained], dtype=np.int64)
    rows = np.repeat(np.arange(len(chosen)), lengths)
    places = np.concatenate([np.flatnonzero(row) + start for row, start in zip(trained, starts, strict=False)])
    temperature = np.array([t.temperature for t in chosen], dtype=np.float32)[rows]
    move = [copy_to_device(a, device) for a in (ids, rows, places, lengths, temperature)]
    packing = _build_packing(sizes, starts, device) if packed else None
    return MicroBatch(members, move[0], move[1], move[2], move[3], move[4], trained, packing)


def _build_packing(sizes: NDArray[np.int64], starts: NDArray[np.int64], device: torch.device) -> Packing:
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    grid = positions + np.repeat(np.arange(len(sizes)) * sizes.max(), sizes)
    move = [copy_to_device(a, device) for a in (positions, starts.astype(np.int32), grid)]
    return Packing(move[0], move[1], int(sizes.max()), move[2])
