"""Value heads, pairs and log-ratios: closed forms, exact gradients under any cut, and nothing where nothing was asked."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine_helpers import (
    engine_of,
    model_folder,
    prompts,
    requests,
    rollout,
    same_bits,
    sample_rollouts,
    section,
    train_batch,
    weights,
)
from milonga.engine import Decoding
from milonga.engine.local import LocalEngine
from milonga.engine.local.engine import VALUE_HEAD
from milonga.objectives import Loss, make_objective
from milonga.objectives.losses import Denominators, Rows, TokenTerms, compute_loss, compute_pair_loss, compute_value_loss
from milonga.types import Rollouts, TrainBatch


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def judge(root: Path, **options: Any) -> LocalEngine:
    options = {"lr": 1e-2, "kind": "scalar", "grad_clip": 1e9} | options
    return engine_of(model_folder(root), **options)


def rows_of(count: int = 6) -> Rollouts:
    contexts, outputs = prompts(count), prompts(count, seed=1)
    return Rollouts(rollout(c, o, name=f"t{i}") for i, (c, o) in enumerate(zip(contexts, outputs, strict=True)))


def targets_of(rollouts: Rollouts, seed: int = 0) -> list[np.ndarray]:
    """A label at about every third token."""
    rng = np.random.default_rng(seed)
    return [np.where(rng.random(len(t.ids)) < 0.3, rng.integers(0, 2, len(t.ids)), np.nan) for t in rollouts]


def logit(value: float) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.float64)


# The formulas.


@pytest.mark.parametrize(("value", "target"), [(0.0, 1.0), (1.3, 0.0), (-2.0, 0.25)])
def test_the_loss_of_a_value_is_the_cross_entropy_of_its_sigmoid(value: float, target: float) -> None:
    p = 1 / (1 + math.exp(-value))
    rows, over = Rows(torch.tensor([1])), Denominators(1, 1)
    given = (logit(value), logit(target), torch.tensor([0]), rows, over)
    cross = compute_value_loss(make_objective("value_bce").loss, *given)[0]
    square = compute_value_loss(make_objective("value_mse").loss, *given)[0]
    assert float(cross) == pytest.approx(-target * math.log(p) - (1 - target) * math.log(1 - p))
    assert float(square) == pytest.approx((p - target) ** 2)


def test_a_pair_with_equal_scores_costs_log_two_and_the_difference_has_a_constant_gradient() -> None:
    rows = Rows(torch.tensor([1, 1]), pairs=torch.tensor([[0, 1]]))
    scores = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    ranking, _ = compute_pair_loss(make_objective("bradley_terry").loss, scores, rows, Denominators(2, 2, pairs=1))
    assert float(ranking.detach()) == pytest.approx(math.log(2))
    for level in (0.0, 5.0):
        moved = torch.tensor([level, -level], dtype=torch.float64, requires_grad=True)
        plain, _ = compute_pair_loss(
            make_objective("bradley_terry", {"pair_loss": "difference"}).loss, moved, rows, Denominators(2, 2, 1)
        )
        (gradient,) = torch.autograd.grad(plain, moved)
        assert gradient.tolist() == [-1.0, 1.0]


def ratio_terms(logp: list[float], reference: list[float], rows: list[int], of_rows: Rows) -> TokenTerms:
    columns = [torch.tensor(c, dtype=torch.float64) for c in (logp, reference)]
    nothing = torch.zeros(len(logp), dtype=torch.float64)
    return TokenTerms(columns[0], nothing, nothing, torch.tensor(rows), of_rows, reference=columns[1])


def test_the_implicit_score_is_the_sum_of_the_scaled_log_ratios() -> None:
    of_rows = Rows(torch.tensor([2, 1]), labels=torch.tensor([1.0, 0.0], dtype=torch.float64))
    terms = ratio_terms([-1.0, -2.0, -0.5], [-1.5, -2.2, -0.1], [0, 0, 1], of_rows)
    found, sums = compute_loss(make_objective("implicit_bce", {"beta": 0.5}).loss, terms, Denominators(3, 2))
    right, wrong = 0.5 * 0.7, 0.5 * -0.4
    expected = (math.log(1 + math.exp(-right)) + math.log(1 + math.exp(wrong))) / 2
    assert float(found) == pytest.approx(expected)
    assert sums == {"hits": 2.0, "judged": 2.0}


def test_dpo_by_hand() -> None:
    of_rows = Rows(torch.tensor([1, 1]), pairs=torch.tensor([[1, 0]]))
    terms = ratio_terms([-1.0, -2.0], [-0.8, -2.5], [0, 1], of_rows)
    found, _ = compute_loss(make_objective("dpo", {"beta": 0.2}).loss, terms, Denominators(2, 2, pairs=1))
    margin = 0.2 * (0.5 - -0.2)
    assert float(found) == pytest.approx(math.log(1 + math.exp(-margin)))


# The learner.


def test_a_head_that_was_never_trained_says_one_half(root: Path) -> None:
    assert all(not values.any() for values in judge(root).values("p", rows_of()))


def test_a_value_does_not_depend_on_what_comes_after_it(root: Path) -> None:
    engine, rows = judge(root), rows_of()
    engine.learn(TrainBatch("p", make_objective("value_bce").loss, rows, targets=targets_of(rows)))
    whole = engine.values("p", rows)
    cut = engine.values("p", Rollouts(rollout(t.ids[:4], t.ids[4:6]) for t in rows))
    for long, short in zip(whole, cut, strict=True):
        assert short == pytest.approx(long[:6], abs=1e-5)


def head_gradients(engine: LocalEngine, taught: TrainBatch) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    policy = engine.policy("p")
    step = policy.optimizer.step
    try:
        policy.optimizer.step = lambda: found.extend(  # type: ignore
            torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.parameters
        )
        engine.learn(taught)
    finally:
        policy.optimizer.step = step  # type: ignore
    return found


def stirred(engine: LocalEngine) -> LocalEngine:
    """With a head that says something: from zero nothing flows into the model."""
    head = engine.policy("p").head
    assert head is not None
    with torch.no_grad():
        head.weight.copy_(torch.linspace(-1, 1, head.weight.numel())[None])
    return engine


def taught(kind: str, rows: Rollouts) -> TrainBatch:
    labels = [float(i % 2) for i in range(len(rows))]
    pairs = [i // 2 for i in range(len(rows))]
    weighed = [0.5 + i // 2 for i in range(len(rows))]
    if kind in ("value_bce", "value_mse"):
        return TrainBatch("p", make_objective(kind).loss, rows, targets=targets_of(rows), weights=weighed)
    if kind == "implicit_bce":
        return TrainBatch("p", make_objective(kind).loss, rows, labels=labels, weights=weighed)
    return TrainBatch("p", make_objective(kind).loss, rows, labels=labels, units=pairs, weights=weighed)


@pytest.mark.parametrize("kind", ["value_bce", "value_mse", "bradley_terry", "implicit_bce", "dpo"])
def test_gradients_do_not_depend_on_the_cut(root: Path, kind: str) -> None:
    rows = rows_of()
    found = []
    for micro_tokens in (1, 60, 100_000):
        if make_objective(kind).loss.uses_value_head:
            engine = stirred(judge(root, micro_tokens=micro_tokens))
        else:
            engine = engine_of(model_folder(root), micro_tokens=micro_tokens, grad_clip=1e9)
            with torch.no_grad():
                engine.policy("p").parameters[0].mul_(1.05)  # away from the reference
        found.append(head_gradients(engine, taught(kind, rows)))
    scale = max(float(g.abs().max()) for g in found[0])
    assert scale > 0
    for other in found[1:]:
        assert all(torch.allclose(a, b, atol=1e-5 * scale) for a, b in zip(found[0], other, strict=True))


def test_tokens_without_a_target_teach_nothing(root: Path) -> None:
    rows = rows_of()
    targets = targets_of(rows)
    alone = [np.where(np.arange(len(t)) == int(np.flatnonzero(~np.isnan(t))[0]), t, np.nan) for t in targets]
    first = head_gradients(stirred(judge(root)), TrainBatch("p", make_objective("value_bce").loss, rows, targets=alone))
    # What stands behind the one labelled token of a row may be anything.
    changed = Rollouts(rollout(t.ids[: k + 1], np.full(3, 7)) for t, k in zip(rows, map(_place, alone), strict=True))
    padded = [np.append(a[: k + 1], [np.nan] * 3) for a, k in zip(alone, map(_place, alone), strict=True)]
    second = head_gradients(stirred(judge(root)), TrainBatch("p", make_objective("value_bce").loss, changed, targets=padded))
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(first, second, strict=True))


def _place(target: np.ndarray) -> int:
    return int(np.flatnonzero(~np.isnan(target))[0])


def test_rows_of_weight_zero_cost_nothing_and_teach_nothing(root: Path) -> None:
    rows, engine = rows_of(), engine_of(model_folder(root))
    before = weights(engine)
    report = engine.learn(TrainBatch("p", make_objective("cross_entropy").loss, rows, weights=[0.0] * len(rows)))
    assert report.steps == 0 and same_bits(before, weights(engine))
    assert engine.ledger.total("tokens") == 0


def test_a_weight_counts_as_so_many_rows(root: Path) -> None:
    rows = rows_of(2)
    double = TrainBatch("p", make_objective("cross_entropy", {"aggregate": "sequence_mean"}).loss, rows, weights=[2.0, 1.0])
    three = Rollouts([rows[0], rows[0], rows[1]])
    plain = TrainBatch("p", make_objective("cross_entropy", {"aggregate": "sequence_mean"}).loss, three)
    first = head_gradients(engine_of(model_folder(root), grad_clip=1e9), double)
    second = head_gradients(engine_of(model_folder(root), grad_clip=1e9), plain)
    # Divided by two rows and by three.
    assert all(torch.allclose(a * 2, b * 3, rtol=1e-3, atol=1e-5) for a, b in zip(first, second, strict=True))


def test_a_judge_learns_its_labels_and_an_order(root: Path) -> None:
    rows = rows_of(8)
    engine = judge(root)
    targets = targets_of(rows)
    accuracy = [
        engine.learn(TrainBatch("p", make_objective("value_bce").loss, rows, targets=targets)).accuracy for _ in range(40)
    ]
    assert accuracy[-1] is not None and accuracy[-1] > 0.95
    ranked = judge(root)
    pairs = taught("bradley_terry", rows)
    reports = [ranked.learn(pairs) for _ in range(30)]
    assert reports[-1].accuracy == 1.0 and reports[-1].entropy is None
    last = [values[-1] for values in ranked.values("p", rows)]
    assert all(last[i + 1] > last[i] for i in range(0, 8, 2))


@pytest.mark.parametrize("kind", ["bradley_terry", "dpo"])
def test_a_unit_that_is_not_a_pair_is_refused(root: Path, kind: str) -> None:
    engine = judge(root) if kind == "bradley_terry" else engine_of(model_folder(root))
    rows = rows_of(3)
    with pytest.raises(ValueError, match="pair"):
        engine.learn(TrainBatch("p", make_objective(kind).loss, rows, labels=[1.0, 0.0, 1.0], units=[0, 0, 0]))


def test_a_judge_is_never_sampled_and_a_writer_has_no_values(root: Path) -> None:
    with pytest.raises(ValueError, match="value head"):
        judge(root).sample("p", requests(prompts(1)), Decoding(4))
    with pytest.raises(ValueError, match="no value head"):
        engine_of(model_folder(root)).values("p", rows_of(1))


def test_a_head_is_saved_loaded_tagged_and_exported(root: Path, tmp_path: Path) -> None:
    rows = rows_of()
    engine = judge(root)
    engine.snapshot("p", "early")
    engine.learn(TrainBatch("p", make_objective("value_bce").loss, rows, targets=targets_of(rows)))
    engine.save(tmp_path)
    other = judge(root)
    other.load(tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(engine.values("p", rows), other.values("p", rows), strict=True))
    assert all(not values.any() for values in other.values("p", rows, "early"))
    assert all(not values.any() for values in other.values("p", rows, "ref"))
    engine.export("p", tmp_path / "out")
    assert (tmp_path / "out" / VALUE_HEAD).is_file() and (tmp_path / "out" / "model.safetensors").is_file()


def test_a_judge_with_an_adapter_trains_its_adapter_and_its_head_alone(root: Path) -> None:
    pytest.importorskip("peft")
    engine = stirred(judge(root, lora={"rank": 2}))
    names = engine.policy("p").names
    assert all("lora_" in name or name.startswith("value_head.") for name in names)
    before, rows = weights(engine), rows_of()
    engine.learn(TrainBatch("p", make_objective("value_bce").loss, rows, targets=targets_of(rows)))
    assert not same_bits(before, weights(engine))


# Train batches.


def test_given_texts_never_enter_a_policy_gradient(root: Path) -> None:
    engine = engine_of(model_folder(root))
    rollouts = sample_rollouts(engine, 2)
    rollouts[0].origin = "given"
    with pytest.raises(ValueError, match="given"):
        train_batch(rollouts, [1.0, -1.0])
    TrainBatch("p", make_objective("cross_entropy").loss, rollouts)


@pytest.mark.parametrize("kind", ["policy_gradient", "value_bce", "bradley_terry", "implicit_bce", "dpo"])
def test_a_train_batch_without_the_targets_of_its_loss_is_refused(kind: Any) -> None:
    with pytest.raises(ValueError, match="needs"):
        TrainBatch("p", Loss(kind=kind), rows_of(2))


def test_targets_are_aligned_with_ids() -> None:
    rows = rows_of(2)
    with pytest.raises(ValueError, match="aligned"):
        TrainBatch("p", make_objective("value_bce").loss, rows, targets=[np.zeros(1), np.zeros(1)])


def test_a_text_is_transcribed_as_it_would_have_been_sampled(root: Path) -> None:
    engine = engine_of(model_folder(root))
    text = "step 1: 3+4=7."
    found = engine.encode_completion("p", text)
    assert found.ids[-1] == 2 and found.text == text and found.ends[-1] == len(text)
    assert engine.policy("p").codec.decode_ids([int(i) for i in found.ids[:-1]]) == text
    assert len(engine.encode_completion("p", text, end=False).ids) == len(found.ids) - 1
    special = engine.encode_completion("p", "<eos>", end=False)
    assert 2 not in special.ids


def test_same_tokens_means_the_same_vocabulary(root: Path) -> None:
    both = LocalEngine({"a": section(model_folder(root)), "b": section(model_folder(root, seed=1))}, device="cpu")
    assert both.has_same_vocabulary("a", "b")
    other = LocalEngine({"a": section(model_folder(root)), "b": section(model_folder(root, "llama", "word"))}, device="cpu")
    assert not other.has_same_vocabulary("a", "b")
