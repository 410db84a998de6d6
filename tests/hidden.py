"""Hiding the truth: what a recipe without truth learns must not depend, in a single bit, on what the task knows."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import milonga
from milonga.tasks.chain import Chain
from milonga.types import Problem, Split


def others_truth(monkeypatch: pytest.MonkeyPatch, spare: Callable[[int], bool] = lambda index: False) -> None:
    """Every train problem keeps its text and gets the answer and the exact steps of the next one, but for those spared."""
    own = Chain.problem

    def problem(self: Chain, split: Split, index: int) -> Problem:
        true, other = own(self, split, index), own(self, split, index + 1)
        hidden = split != "train" or spare(index)
        return true if hidden else replace(true, answer=other.answer, data=other.data)

    monkeypatch.setattr(Chain, "problem", problem)


def learned(recipe: str, turns: int, settings: Mapping[str, Any], folder: Path) -> dict[str, bytes]:
    """The weights of every policy after a short run."""
    milonga.run(recipe, turns=turns, out=folder, settings=dict(settings), quiet=True)
    return weights(folder)


def weights(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in sorted((folder / "models").glob("*/model.safetensors"))}


def same_after_a_cut(recipe: str, turns: int, settings: Mapping[str, Any], folder: Path) -> bool:
    """Whether a run that goes on from the older of its two last checkpoints ends in the bits of one that never stopped."""
    kept = {**settings, "keep": {"checkpoint_every": 1, "rollouts_every": 0}}
    whole = learned(recipe, turns, kept, folder)
    rows = (folder / "metrics.jsonl").read_bytes()
    shutil.rmtree(sorted((folder / "checkpoints").iterdir())[-1])
    milonga.resume(folder, quiet=True)
    return weights(folder) == whole and (folder / "metrics.jsonl").read_bytes() == rows
