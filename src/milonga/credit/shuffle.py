"""The shuffled-reward control that any real learning must beat: the same rewards, assigned to the wrong rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from milonga.objectives.spec import PAIRED
from milonga.randomness import key64
from milonga.types import Floats, PerToken, TrainBatch


def shuffle_targets(train_batch: TrainBatch, seed: int, turn: int) -> TrainBatch:
    """Return the train batch with its targets permuted: nothing is left that says which row deserved what.

    An advantage along tokens is stretched to its new row's length; targets of single tokens change places with each other; the
    two sides of a pair are swapped at random.
    """
    rng = np.random.default_rng(key64("shuffled", seed, turn, train_batch.policy))
    order = rng.permutation(len(train_batch.rollouts))
    if train_batch.loss.kind in PAIRED:
        return replace(train_batch, labels=_flip_pair_labels(train_batch, rng))
    columns: dict[str, list[float] | None] = {"labels": train_batch.labels, "weights": train_batch.weights}
    moved = {name: [column[i] for i in order] if column is not None else None for name, column in columns.items()}
    advantages = None
    if train_batch.advantages is not None:
        advantages = []
        for row, other in enumerate(order):
            source = train_batch.advantages[other][train_batch.rollouts[other].mask]
            advantages.append(_stretch_to_mask(source, train_batch.rollouts[row].mask))
    targets = _permute_targets(train_batch.targets, rng) if train_batch.targets is not None else None
    return replace(train_batch, advantages=advantages, targets=targets, labels=moved["labels"], weights=moved["weights"])


def _flip_pair_labels(train_batch: TrainBatch, rng: np.random.Generator) -> list[float]:
    """Swap winner and loser of each preference pair with probability 1/2."""
    assert train_batch.labels is not None and train_batch.units is not None
    swap = {unit: rng.random() < 0.5 for unit in dict.fromkeys(train_batch.units)}
    return [1.0 - label if swap[unit] else label for label, unit in zip(train_batch.labels, train_batch.units, strict=True)]


def _permute_targets(targets: list[PerToken], rng: np.random.Generator) -> list[PerToken]:
    """Permute the known token targets (not NaN) over the whole batch. One float array per rollout."""
    asked = [~np.isnan(row) for row in targets]
    pool = rng.permutation(np.concatenate([row[mask] for row, mask in zip(targets, asked, strict=True)]))
    parts = np.split(pool, np.cumsum([mask.sum() for mask in asked])[:-1])
    out = [row.copy() for row in targets]
    for row, mask, part in zip(out, asked, parts, strict=True):
        row[mask] = part
    return out


def _stretch_to_mask(source: Floats, mask: np.ndarray) -> Floats:
    """Resample the values to the number of masked tokens; 0 outside the mask. The result has the shape of `mask`."""
    out = np.zeros(len(mask))
    count = int(mask.sum())
    if len(source) and count:
        out[mask] = source[np.arange(count) * len(source) // count]
    return out
