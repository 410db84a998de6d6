"""A key-value cache with room: allocated once, written in place, where the usual one copies itself at every token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """The cache of one full-attention layer, with `room` positions. It gives out views of the filled part."""

    is_initialized: bool

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self.filled = 0
        self.key_room: Tensor = torch.empty(0)
        self.value_room: Tensor = torch.empty(0)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.dtype, self.device = key_states.dtype, key_states.device
            self.key_room = key_states.new_empty((*key_states.shape[:2], self.room, key_states.shape[-1]))
            self.value_room = value_states.new_empty((*value_states.shape[:2], self.room, value_states.shape[-1]))
            self.is_initialized = True
        end = self.filled + key_states.shape[-2]
        if end > self.room:
            raise ValueError(f"cache has room for {self.room} tokens, {end} are needed")
        self.key_room[:, :, self.filled : end] = key_states
        self.value_room[:, :, self.filled : end] = value_states
        self.filled = end
        return self._view_filled()

    def _view_filled(self) -> tuple[Tensor, Tensor]:
        keys, values = self.key_room[:, :, : self.filled], self.value_room[:, :, : self.filled]
        self.keys, self.values = keys, values
        return keys, values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Select these rows, in this order; a row may be taken several times. Only the filled part is copied."""
        for name in ("key_room", "value_room"):
            old = getattr(self, name)
            new = old.new_empty((len(indices), *old.shape[1:]))
            new[:, :, : self.filled] = old[:, :, : self.filled].index_select(0, indices)
            setattr(self, name, new)
        self._view_filled()


def make_roomy_cache(config: Any, room: int) -> DynamicCache:
    """Make a cache for a model: roomy layers wherever it has plain full attention, its own kinds elsewhere."""
    cache = DynamicCache(config=config)
    cache.layers = [RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def select_rows(cache: DynamicCache, indices: Tensor) -> None:
    for layer in cache.layers:
        layer.batch_select_indices(indices)


def is_roomy(cache: DynamicCache) -> bool:
    """Whether every layer keeps every position."""
    return all(type(layer) is RoomyLayer for layer in cache.layers)


def copy_columns(cache: DynamicCache, row: int, columns: Tensor) -> Tensor:
    """Copy some columns of a row of a roomy cache: [layers, 2, heads, columns, size], keys before values."""
    parts = [room[row, :, columns] for layer in cache.layers for room in (layer.key_room, layer.value_room)]
    return torch.stack(parts).view(len(cache.layers), 2, *parts[0].shape)


def paste_rows(cache: DynamicCache, rows: Sequence[Sequence[Tensor]]) -> None:
    """Fill an empty roomy cache with rows that were copied from others, each in pieces; they are padded on the left."""
    whole = [torch.cat(list(pieces), dim=-2) for pieces in rows]
    filled = max(row.shape[-2] for row in whole)
    _, _, heads, _, size = whole[0].shape
    for at, layer in enumerate(cache.layers):
        # Zeros: what is masked is still multiplied, and must be a number.
        keys, values = whole[0].new_zeros((2, len(whole), heads, filled, size))
        for row, known in enumerate(whole):
            keys[row, :, filled - known.shape[-2] :], values[row, :, filled - known.shape[-2] :] = known[at]
        layer.update(keys, values)
