"""The reference, policy@ref: it takes memory only where it is used, is exact whenever it is asked for, and half as large where
that loses nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_helpers import engine_of, mixed_rows, model_folder, same_bits, sample_rollouts, train_batch, weights
from milonga.engine.local import LocalEngine
from milonga.errors import UserError
from milonga.types import Floats

KINDS: dict[str, dict[str, Any]] = {"whole": {}, "offload": {"offload": True}, "head": {"kind": "scalar"}}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def half_folder(root: Path) -> str:
    """A model as most are published: bfloat16 holds all its numbers."""
    folder = Path(model_folder(root, seed=7))
    file = folder / "model.safetensors"
    save_file({name: tensor.to(torch.bfloat16) for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    return str(folder)


def learn(engine: LocalEngine, **switches: Any) -> None:
    engine.learn(train_batch(sample_rollouts(engine), [1.0, -1.0] * 4, **switches))


def move(engine: LocalEngine) -> None:
    """Away from the start, by any way there is."""
    engine.policy("p").assign([1.1 * tensor + 0.01 for tensor in weights(engine)])


def read(engine: LocalEngine, tag: str) -> list[Floats]:
    return (engine.score if engine.policy("p").head is None else engine.values)("p", mixed_rows(), tag)


def equal(left: list[Floats], right: list[Floats]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def test_a_run_that_compares_with_nothing_keeps_no_reference(root: Path) -> None:
    engine = engine_of(model_folder(root), lr=1e-3)
    learn(engine)
    assert not engine.policy("p").tags
    learn(engine, kl_coef=0.1)
    assert list(engine.policy("p").tags) == ["ref"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_is_the_start_whenever_it_is_first_asked_for(root: Path, kind: str) -> None:
    early, late = (engine_of(model_folder(root), lr=1e-3, **KINDS[kind]) for _ in range(2))
    start = read(early, "live")
    assert equal(read(early, "ref"), start)
    for engine in (early, late):
        move(engine)
        assert not equal(read(engine, "live"), start) and equal(read(engine, "ref"), start)


@pytest.mark.parametrize("kind", KINDS)
def test_a_reference_that_bfloat16_holds_takes_half_and_gives_the_same_bits(root: Path, kind: str) -> None:
    engine = engine_of(half_folder(root), **KINDS[kind])
    start, before = [tensor.clone() for tensor in weights(engine)], read(engine, "live")
    move(engine)
    assert equal(read(engine, "ref"), before)
    assert all(tensor.dtype == torch.bfloat16 for tensor in engine.policy("p").tags["ref"])
    engine.copy("p", "p", "ref")
    assert same_bits(weights(engine), start) and all(tensor.dtype == torch.float32 for tensor in weights(engine))


def test_other_numbers_stay_whole(root: Path) -> None:
    engine = engine_of(model_folder(root))
    kinds = {tuple(tensor.shape): tensor.dtype for tensor in engine.policy("p").get_tag("ref")}
    assert kinds[320, 32] == torch.float32, "drawn from a normal distribution"
    assert kinds[32,] == torch.bfloat16, "norms start at one"


def test_a_policy_that_computes_in_half_precision_is_its_own_reference_at_the_start(root: Path) -> None:
    engine = engine_of(half_folder(root), dtype="bfloat16")
    assert equal(read(engine, "ref"), read(engine, "live"))


def test_it_is_not_in_a_checkpoint_and_is_the_same_after_it(root: Path, tmp_path: Path) -> None:
    first, other = (engine_of(model_folder(root), lr=1e-3) for _ in range(2))
    learn(first, kl_coef=0.1)
    size = first.checkpoint_bytes()
    first.save(tmp_path)
    assert not any("ref" in name for name in load_file(tmp_path / "p.safetensors"))
    assert size == other.checkpoint_bytes()
    other.load(tmp_path)
    for engine in (first, other):
        learn(engine, kl_coef=0.1)
    assert same_bits(weights(first), weights(other))


def test_files_that_changed_meanwhile_are_no_reference(tmp_path: Path) -> None:
    engine = engine_of(model_folder(tmp_path), lr=1e-3)
    engine.save(tmp_path)
    move(engine)
    file = Path(engine.policy("p").section.model) / "model.safetensors"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(UserError, match="has changed since the run began; put it back"):
        engine.score("p", mixed_rows(), "ref")
