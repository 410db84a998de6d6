"""The learning rate over a run: warm-up and decay, by hand, in the learner and in a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import milonga
from cases import TINY
from engine_helpers import engine_of, model_folder, same_bits, sample_rollouts, train_batch, weights
from milonga.engine.local import LocalEngine
from milonga.objectives.rates import decay_factor, warm_up_factor
from milonga.runfolder.files import JsonLines
from milonga.types import TrainBatch


def test_warm_up_by_hand() -> None:
    assert [warm_up_factor(steps, 4) for steps in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert warm_up_factor(0, 0) == warm_up_factor(0, 1) == 1.0


def test_decay_by_hand() -> None:
    thirds = (0.0, 1 / 3, 2 / 3, 1.0)
    assert [decay_factor("constant", at) for at in thirds] == [1.0] * 4
    assert [decay_factor("linear", at) for at in thirds] == pytest.approx([1.0, 2 / 3, 1 / 3, 0.0])
    assert [decay_factor("cosine", at) for at in thirds] == pytest.approx([1.0, 0.75, 0.25, 0.0], abs=1e-15)


def test_a_decay_may_end_above_nothing() -> None:
    """Halfway between 1 and 0.1 is 0.55; a constant rate has no end."""
    for schedule in ("linear", "cosine"):
        found = [decay_factor(schedule, at, 0.1) for at in (0.0, 0.5, 1.0)]
        assert found == pytest.approx([1.0, 0.55, 0.1])
    assert decay_factor("constant", 1.0, 0.1) == 1.0


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def taught(engine: LocalEngine, **fields: Any) -> TrainBatch:
    return replace(train_batch(sample_rollouts(engine), [1.0, -1.0] * 4), **fields)


def test_optimizer_steps_are_counted_across_updates_and_anew_with_the_optimizer(root: Path) -> None:
    """Two steps in each update; after a reset, from the first again."""
    engine = engine_of(model_folder(root), lr=1e-3, warmup=5, minibatches=2)
    assert [engine.learn(taught(engine)).lr for _ in range(3)] == pytest.approx([4e-4, 8e-4, 1e-3])
    engine.copy("p", "p", "ref")
    assert engine.learn(taught(engine)).lr == pytest.approx(4e-4)


def test_a_first_step_is_as_long_as_its_rate(root: Path) -> None:
    """AdamW's first step moves every weight with a gradient by the rate, whatever the gradient is: to 1 % where it is well
    above epsilon."""
    engine = engine_of(model_folder(root), lr=1e-2, warmup=10, eps=1e-12)
    before = [tensor.clone() for tensor in weights(engine)]
    assert engine.learn(taught(engine, lr_scale=0.5)).lr == pytest.approx(1e-2 * 0.5 / 10)
    longest = max(float((now - old).abs().max()) for now, old in zip(weights(engine), before, strict=True))
    assert longest == pytest.approx(5e-4, rel=0.01)


def test_at_the_end_of_a_decay_nothing_moves(root: Path) -> None:
    engine = engine_of(model_folder(root), lr=1e-3)
    before = [tensor.clone() for tensor in weights(engine)]
    assert engine.learn(taught(engine, lr_scale=0.0)).lr == 0.0
    assert same_bits(weights(engine), before)


def test_a_checkpoint_knows_how_far_the_warm_up_is(root: Path, tmp_path: Path) -> None:
    first, other = (engine_of(model_folder(root), lr=1e-3, warmup=4) for _ in range(2))
    first.learn(taught(first))
    first.save(tmp_path)
    other.load(tmp_path)
    reports = [engine.learn(taught(engine)) for engine in (first, other)]
    assert reports[0] == reports[1] and reports[0].lr == pytest.approx(5e-4)
    assert same_bits(weights(first), weights(other))


def test_a_run_decays_with_its_turns_and_says_so(tmp_path: Path) -> None:
    """Three turns: a cosine of 1, 3/4 and 1/4, and a warm-up of two steps, the first of them half as long."""
    policy = {"generator": {"lr": 1e-4, "schedule": "cosine", "warmup": 2}}
    milonga.run("grpo", turns=3, out=tmp_path / "run", settings=TINY | {"policies": policy}, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[1:]
    assert [row["learn/generator/lr"] for row in rows] == pytest.approx([5e-5, 7.5e-5, 2.5e-5])


def test_a_run_decays_to_the_share_that_is_set(tmp_path: Path) -> None:
    """Two turns of a line from 1 to 0.2: the second begins in the middle, at 0.6."""
    policy = {"generator": {"lr": 1e-4, "schedule": "linear", "lr_end": 0.2}}
    milonga.run("grpo", turns=2, out=tmp_path / "run", settings=TINY | {"policies": policy}, quiet=True)
    rows = JsonLines(tmp_path / "run" / "metrics.jsonl").rows()[1:]
    assert [row["learn/generator/lr"] for row in rows] == pytest.approx([1e-4, 6e-5])
