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

from milonga.types import Floats, Trace


@dataclass(frozen=True)
class Packing:
    """How rows lie behind one another on one axis of tokens."""

    positions: Tensor
    """Of each token within its row."""
    starts: Tensor
    """Where each row begins, and at last where all end (int32, as attention kernels want it)."""
    longest: int
    grid: Tensor
    """Place of each token among rows that are padded to the longest."""

    @property
    def rows(self) -> int:
        return len(self.starts) - 1


@dataclass(frozen=True)
class MicroBatch:
    """Rows side by side, padded on the right, or packed; and the flat axis of the tokens that matter: the trained ones, or
    those where a value is asked for."""

    members: list[int]
    """Positions of the rows in the list they were cut from."""
    ids: Tensor
    """Rows by columns, or one axis of tokens where the batch is packed."""
    rows: Tensor
    """Row of each trained token, counted within this micro-batch."""
    places: Tensor
    """Of the trained tokens in the flattened ids."""
    lengths: Tensor
    """Number of trained tokens of each row."""
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
    def attended(self) -> float:
        """Pairs of tokens that a causal attention looks at."""
        return sum(len(row) ** 2 / 2 for row in self.trained)

    def flat(self, arrays: Sequence[Floats], device: torch.device) -> Tensor:
        """Per-token arrays, one for each row, on the flat axis of trained tokens."""
        values = np.concatenate([array[mask] for array, mask in zip(arrays, self.trained, strict=True)])
        return on_device(values.astype(np.float32), device)


def on_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """A copy on the device that the host does not wait for: it goes on preparing while the device computes."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def trained_tokens(trace: Trace) -> NDArray[np.bool_]:
    """True at the tokens that are trained and that something predicts: never at the first one."""
    mask = trace.mask
    mask[:1] = False
    return mask


def cut(traces: Sequence[Trace], budget: int, units: Sequence[int] | None = None, padless: bool = False) -> Iterator[list[int]]:
    """Rows in order of length, in batches of at most `budget` tokens; padding counts unless nothing is computed for it. A unit
    of rows is never split."""
    grouped: dict[int, list[int]] = {}
    for i in range(len(traces)):
        grouped.setdefault(units[i] if units is not None else i, []).append(i)
    blocks = sorted(grouped.values(), key=lambda block: max(len(traces[i].ids) for i in block))
    batch: list[int] = []
    for block in blocks:
        lengths = [len(traces[i].ids) for i in batch + block]
        if batch and (sum(lengths) if padless else max(lengths) * len(lengths)) > budget:
            yield batch
            batch = []
        batch = batch + block
    if batch:
        yield batch


def last_token(trace: Trace) -> NDArray[np.bool_]:
    """True at the very last token: where a head has read everything."""
    mask = np.zeros(len(trace.ids), dtype=bool)
    mask[-1:] = True
    return mask


def build(
    traces: Sequence[Trace],
    members: list[int],
    pad: int,
    device: torch.device,
    masks: Sequence[NDArray[np.bool_]] | None = None,
    packed: bool = False,
) -> MicroBatch:
    """`masks` says which tokens of each trace matter; the trained ones where it is not given."""
    chosen = [traces[i] for i in members]
    trained = [trained_tokens(traces[i]) if masks is None else masks[i] for i in members]
    sizes = np.array([len(t.ids) for t in chosen], dtype=np.int64)
    longest = int(sizes.max())
    starts = np.concatenate([[0], np.cumsum(sizes)]) if packed else np.arange(len(chosen)) * longest
    if packed:
        ids = np.concatenate([t.ids for t in chosen]).astype(np.int64)
    else:
        ids = np.full((len(chosen), longest), pad, dtype=np.int64)
        for i, trace in enumerate(chosen):
            ids[i, : len(trace.ids)] = trace.ids
    lengths = np.array([row.sum() for row in trained], dtype=np.int64)
    rows = np.repeat(np.arange(len(chosen)), lengths)
    places = np.concatenate([np.flatnonzero(row) + start for row, start in zip(trained, starts, strict=False)])
    temperature = np.array([t.temperature for t in chosen], dtype=np.float32)[rows]
    move = [on_device(a, device) for a in (ids, rows, places, lengths, temperature)]
    packing = _packing(sizes, starts, device) if packed else None
    return MicroBatch(members, move[0], move[1], move[2], move[3], move[4], trained, packing)


def _packing(sizes: NDArray[np.int64], starts: NDArray[np.int64], device: torch.device) -> Packing:
    positions = np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)
    grid = positions + np.repeat(np.arange(len(sizes)) * sizes.max(), sizes)
    move = [on_device(a, device) for a in (positions, starts.astype(np.int32), grid)]
    return Packing(move[0], move[1], int(sizes.max()), move[2])
