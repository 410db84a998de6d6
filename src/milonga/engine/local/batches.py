"""Cutting rows into micro-batches by a token budget.

Invariant (law 5): results never depend on the cut; only memory and speed do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milonga.engine.local.packing import LEAST_HEAD, Head, Packing, copy_to_device, pack_rows
from milonga.types import Floats, Rollout


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
        """Tokens of the rows, without padding. A head counts for each of its rows: compute is a property of the recipe, not of
        how rows were cut."""
        return sum(len(row) for row in self.trained)

    @property
    def attended_pairs(self) -> float:
        """Number of token pairs in causal attention, for counting operations."""
        return sum(len(row) ** 2 / 2 for row in self.trained)

    def flatten_rows(self, arrays: Sequence[Floats], device: torch.device) -> Tensor:
        """Flatten per-token arrays, one per row and aligned with its ids, to the axis of trained tokens."""
        values = np.concatenate([array[mask] for array, mask in zip(arrays, self.trained, strict=True)])
        return copy_to_device(values.astype(np.float32), device)


def mask_trained_tokens(rollout: Rollout) -> NDArray[np.bool_]:
    """Mask of the tokens that are trained and predicted: never the first one. Aligned with the rollout's ids."""
    mask = rollout.mask
    mask[:1] = False
    return mask


def find_heads(rollouts: Sequence[Rollout], masks: Sequence[NDArray[np.bool_]] | None) -> list[Head | None]:
    """Find the head of each row: what comes before the token from which its first trained one is foretold. None if that is so
    short that it is better computed for each row. `masks` says which tokens are in the loss; by default the trained ones."""
    found: list[Head | None] = []
    for i, rollout in enumerate(rollouts):
        mask = mask_trained_tokens(rollout) if masks is None else masks[i]
        size = int(mask.argmax()) - 1 if mask.any() else 0
        found.append((size, rollout.ids[:size].tobytes()) if size >= LEAST_HEAD else None)
    return found


def cut_micro_batches(
    rollouts: Sequence[Rollout],
    budget: int,
    units: Sequence[int] | None = None,
    padless: bool = False,
    heads: Sequence[Head | None] | None = None,
) -> Iterator[list[int]]:
    """Cut rows, sorted by length, into micro-batches of at most `budget` tokens; yield the indices of each. Padding counts
    unless the pass is `padless`. Rows that share a unit are never split; rows of one head stand together."""
    grouped: dict[int, list[int]] = {}
    for i in range(len(rollouts)):
        grouped.setdefault(units[i] if units is not None else i, []).append(i)
    blocks = _sort_blocks(rollouts, list(grouped.values()), heads)
    batch: list[int] = []
    for block in blocks:
        lengths = [len(rollouts[i].ids) for i in batch + block]
        if batch and (sum(lengths) if padless else max(lengths) * len(lengths)) > budget:
            yield batch
            batch = []
        batch = batch + block
    if batch:
        yield batch


def _sort_blocks(rollouts: Sequence[Rollout], blocks: list[list[int]], heads: Sequence[Head | None] | None) -> list[list[int]]:
    """Sort blocks by their longest row; those of one head by the longest of all of them."""
    longest = {block[0]: max(len(rollouts[i].ids) for i in block) for block in blocks}
    if heads is None:
        return sorted(blocks, key=lambda block: longest[block[0]])
    families: dict[Head | int, list[int]] = {}
    for block in blocks:
        families.setdefault(heads[block[0]] or block[0], []).append(longest[block[0]])
    most = {family: (max(lengths), number) for number, (family, lengths) in enumerate(families.items())}
    return sorted(blocks, key=lambda block: (*most[heads[block[0]] or block[0]], longest[block[0]]))


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
    heads: Sequence[Head | None] | None = None,
) -> MicroBatch:
    """Build a micro-batch. `masks` says which tokens of each rollout are in the loss; by default the trained ones. Packed rows
    share the `heads` that several of them have."""
    chosen = [rollouts[i] for i in members]
    trained = [mask_trained_tokens(rollouts[i]) if masks is None else masks[i] for i in members]
    lengths = np.array([row.sum() for row in trained], dtype=np.int64)
    rows = np.repeat(np.arange(len(chosen)), lengths)
    if packed:
        ids, starts, packing = pack_rows(
            chosen, [None] * len(members) if heads is None else [heads[i] for i in members], device
        )
    else:
        (ids, starts), packing = _pad(chosen, pad), None
    places = np.concatenate([np.flatnonzero(row) + start for row, start in zip(trained, starts, strict=True)])
    temperature = np.array([t.temperature for t in chosen], dtype=np.float32)[rows]
    move = [copy_to_device(a, device) for a in (ids, rows, places, lengths, temperature)]
    return MicroBatch(members, move[0], move[1], move[2], move[3], move[4], trained, packing)


def _pad(chosen: Sequence[Rollout], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pad rows on the right; and where each would begin if they were flattened."""
    longest = max(len(rollout.ids) for rollout in chosen)
    ids = np.full((len(chosen), longest), pad, dtype=np.int64)
    for i, rollout in enumerate(chosen):
        ids[i, : len(rollout.ids)] = rollout.ids
    return ids, np.arange(len(chosen)) * longest
