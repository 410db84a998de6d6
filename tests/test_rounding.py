"""Float32 against the same computation in float64: each way of computing is as near to it as its rounding allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_helpers import engine_of, gap, gradients, mixed_rows, model_folder, soft_folder, stirred, train_batch
from milonga.engine.local import LocalEngine, learner
from milonga.types import TrainBatch
from numerics import UNIT, apart, promise

VALUES = [1.0, -1.0, 0.5, 0.0, 2.0, -0.3, 0.7, -0.9, 0.1]
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "soft": ("soft", {}),
    "an adapter": ("soft", {"lora": {"rank": 4}}),
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "gpt2": ("gpt2", {}),
    "gemma2": ("gemma2", {}),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    return tmp_path_factory.mktemp("models")


def made(root: Path, name: str) -> LocalEngine:
    model, options = MODELS[name]
    folder = soft_folder(root) if model == "soft" else model_folder(root, model)
    return stirred(engine_of(folder, lr=1e-3, grad_clip=1e9, micro_tokens=64, **options))


def taught() -> TrainBatch:
    return train_batch(mixed_rows(), VALUES, kl_coef=0.05, entropy_coef=0.01)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_scores_and_gradients_are_near_to_exact_ones(
    root: Path, name: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = promise(lambda: made(root, name), taught)
    if padded:
        monkeypatch.setattr(learner, "make_working_weights", lambda policy: None)
    engine = made(root, name)
    assert apart(engine.score("p", mixed_rows()), allowed.exact.scores) <= allowed.scores
    (exact,) = allowed.exact.steps
    assert gap(gradients(engine, taught()), exact) <= allowed.gradients
    assert allowed.gradients < 1e-2, "a bound that would hide a wrong gradient is none"
    assert allowed.gradients > UNIT, "nor is one that nothing keeps"


def test_a_wrong_gradient_is_far_beyond_the_bound(root: Path) -> None:
    """One of nine rows left out, or a kl_coef of 0.051 for 0.05."""
    allowed = promise(lambda: made(root, "an adapter"), taught)
    (exact,) = allowed.exact.steps
    without = train_batch(mixed_rows(), [*VALUES[:-1], 0.0], kl_coef=0.05, entropy_coef=0.01)
    other = train_batch(mixed_rows(), VALUES, kl_coef=0.051, entropy_coef=0.01)
    for wrong in (without, other):
        assert gap(gradients(made(root, "an adapter"), wrong), exact) > 2 * allowed.gradients
