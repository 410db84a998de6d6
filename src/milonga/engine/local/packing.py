"""Rows packed end to end on one axis of tokens, as attention takes them.

Rows of a group begin alike: with the same problem, or the same solution to be verified. Such a head may be computed once for
all rows of a micro-batch, and so are its gradients.

Invariant: each token sees what stands before it in its own row, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from milonga.types import Rollout

Head = tuple[int, bytes]
"""How many tokens of a row stand before the one its first number is read from, and which."""

LEAST_HEAD = 16
"""Tokens from which on it pays to compute the head of several rows once: keeping it apart costs something, too."""


@dataclass(frozen=True)
class Packing:
    """How sequences are packed end to end on one axis of tokens. A head that several rows share is a sequence of its own, and
    stands before them; of these rows only the rest is on the axis, and sees the head's keys before its own."""

    sizes: NDArray[np.int64]
    """Tokens of each sequence on the axis."""
    heads: NDArray[np.int64]
    """The sequence that each one goes on from; -1 for none. Heads come first, and go on from none."""
    device: torch.device

    @cached_property
    def before(self) -> NDArray[np.int64]:
        """Tokens of each sequence that stand in its head."""
        return np.where(self.heads < 0, 0, self.sizes[self.heads])

    @cached_property
    def positions(self) -> Tensor:
        """Position of each token within its row, [tokens]."""
        return copy_to_device(_count_up(self.sizes) + np.repeat(self.before, self.sizes), self.device)

    @cached_property
    def starts(self) -> Tensor:
        """Where each sequence begins, and last where all end (int32, for attention kernels), [sequences + 1]."""
        return copy_to_device(_accumulate(self.sizes).astype(np.int32), self.device)

    @cached_property
    def keys(self) -> Tensor | None:
        """Place on the axis of each key that a sequence sees, sequence by sequence; None where each sees itself alone."""
        if not self.before.any():
            return None
        starts = _accumulate(self.sizes)
        parts = [np.arange(start, start + size) for start, size in zip(starts[:-1], self.sizes, strict=True)]
        seen = [part if head < 0 else np.concatenate([parts[head], part]) for part, head in zip(parts, self.heads, strict=True)]
        return copy_to_device(np.concatenate(seen), self.device)

    @cached_property
    def longest(self) -> int:
        return int(self.sizes.max())

    @cached_property
    def blocks(self) -> list[Block]:
        """The sequences as attention over padded rows takes them: all at once, or heads and rows apart. Keys of rows are padded
        on the left by what their head is shorter than the longest."""
        if self.keys is None:
            return [_make_causal_block(self.sizes, self.device)]
        count = int(self.heads.max()) + 1
        begun = int(self.sizes[:count].sum())
        sizes, before, widest = self.sizes[count:], self.before[count:], int(self.before.max())
        longest = int(sizes.max())
        shift = np.repeat(widest - before + np.arange(len(sizes)) * (widest + longest), before + sizes)
        key_grid = _count_up(before + sizes) + shift
        column = np.arange(widest + longest)
        known = column[None, :] >= (widest - before)[:, None]
        causal = column[None, :] <= widest + np.arange(longest)[:, None]
        mask = copy_to_device(known[:, None, None, :] & causal[None, None], self.device)
        rows = _make_causal_block(sizes, self.device)
        keys = self.keys[begun:]  # a head sees itself: its keys are as many as its tokens
        return [
            _make_causal_block(self.sizes[:count], self.device),
            Block(slice(begun, None), rows.shape, rows.grid, keys, copy_to_device(key_grid, self.device), mask),
        ]


@dataclass(frozen=True)
class Block:
    """Sequences that attention over padded rows takes at once."""

    tokens: slice
    """Their queries on the packed axis."""
    shape: tuple[int, int]
    """Number of sequences, and the length to which their queries are padded."""
    grid: Tensor
    """Place of each query among the padded ones."""
    keys: Tensor | None = None
    """Place on the packed axis of each of their keys; None if they see themselves alone."""
    key_grid: Tensor | None = None
    """Place of each key among the padded ones."""
    mask: Tensor | None = None
    """What each query sees, [sequences, 1, queries, keys]; None if it is what comes before it."""


def _make_causal_block(sizes: NDArray[np.int64], device: torch.device) -> Block:
    longest = int(sizes.max())
    grid = _count_up(sizes) + np.repeat(np.arange(len(sizes)) * longest, sizes)
    return Block(slice(0, int(sizes.sum())), (len(sizes), longest), copy_to_device(grid, device))


def _accumulate(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)])


def _count_up(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the tokens of each sequence from 0."""
    starts = _accumulate(sizes)
    return np.arange(starts[-1]) - np.repeat(starts[:-1], sizes)


def copy_to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to the device without waiting: the host goes on preparing while the device computes."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def pack_rows(
    chosen: Sequence[Rollout], heads: Sequence[Head | None], device: torch.device
) -> tuple[NDArray[np.int64], NDArray[np.int64], Packing]:
    """Pack rows end to end behind the heads that two or more of them share; and where each would begin if its head, too, stood
    before it."""
    counts = Counter(head for head in heads if head is not None)
    shared = {head: number for number, head in enumerate(head for head, count in counts.items() if count > 1)}
    own = [0 if head not in shared else head[0] for head in heads]
    first = {head: rollout for rollout, head in zip(chosen, heads, strict=True) if head in shared}
    parts = [first[head].ids[: head[0]] for head in shared]
    parts += [rollout.ids[size:] for rollout, size in zip(chosen, own, strict=True)]
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    of = np.array([-1] * len(shared) + [-1 if head is None else shared.get(head, -1) for head in heads], dtype=np.int64)
    starts = _accumulate(sizes)[len(shared) : -1] - own
    return np.concatenate(parts).astype(np.int64), starts, Packing(sizes, of, device)
