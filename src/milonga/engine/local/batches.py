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

from milonga.types import Floats, Trace


@dataclass(frozen=True)
class MicroBatch:
    """Right-padded rows, and the flat axis of the tokens that matter: the trained ones, or those where a value is asked for."""

    members: list[int]
    """Positions of the rows in the list they were cut from."""
    ids: Tensor
    rows: Tensor
    """Row of each trained token, counted within this micro-batch."""
    columns: Tensor
    lengths: Tensor
    """Number of trained tokens of each row."""
    temperature: Tensor
    trained: list[NDArray[np.bool_]]
    """The trained tokens of each row, as a mask of its ids."""

    @property
    def targets(self) -> Tensor:
        return self.ids[self.rows, self.columns]

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
        return torch.from_numpy(values.astype(np.float32)).to(device)


def trained_tokens(trace: Trace) -> NDArray[np.bool_]:
    """True at the tokens that are trained and that something predicts: never at the first one."""
    mask = trace.mask
    mask[:1] = False
    return mask


def cut(traces: Sequence[Trace], budget: int, units: Sequence[int] | None = None) -> Iterator[list[int]]:
    """Rows in order of length, in batches of at most `budget` tokens with padding. A unit of rows is never split."""
    grouped: dict[int, list[int]] = {}
    for i in range(len(traces)):
        grouped.setdefault(units[i] if units is not None else i, []).append(i)
    blocks = sorted(grouped.values(), key=lambda block: max(len(traces[i].ids) for i in block))
    batch: list[int] = []
    for block in blocks:
        longest = max(len(traces[i].ids) for i in block)
        if batch and longest * (len(batch) + len(block)) > budget:
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
) -> MicroBatch:
    """`masks` says which tokens of each trace matter; the trained ones where it is not given."""
    chosen = [traces[i] for i in members]
    longest = max(len(t.ids) for t in chosen)
    ids = np.full((len(chosen), longest), pad, dtype=np.int64)
    trained = [trained_tokens(traces[i]) if masks is None else masks[i] for i in members]
    for i, trace in enumerate(chosen):
        ids[i, : len(trace.ids)] = trace.ids
    lengths = np.array([row.sum() for row in trained], dtype=np.int64)
    rows = np.repeat(np.arange(len(chosen)), lengths)
    columns = np.concatenate([np.flatnonzero(row) for row in trained])
    temperature = np.array([t.temperature for t in chosen], dtype=np.float32)[rows]
    move = [torch.from_numpy(a).to(device) for a in (ids, rows, columns, lengths, temperature)]
    return MicroBatch(members, move[0], move[1], move[2], move[3], move[4], trained)
