"""The packed pass: what the model's own forward pass computes, on padded rows, without computing any padding."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AutoConfig

from engine_helpers import (
    engine_of,
    gap,
    gradients,
    make_model,
    mixed_rows,
    model_folder,
    rollout,
    soft_folder,
    stirred,
    tokenizer,
    train_batch,
)
from milonga.engine.local import LocalEngine, fused, learner, packed
from milonga.engine.local.batches import build_micro_batch, cut_micro_batches, find_heads
from milonga.engine.local.memory import PASS_TOKENS, fit_pass_tokens
from milonga.engine.local.packing import LEAST_HEAD
from milonga.engine.local.shapes import explain_misfit
from milonga.errors import ConfigError
from milonga.objectives import make_objective
from milonga.types import Rollouts, TrainBatch
from numerics import apart, promise, rounding

PACKED = ("llama", "qwen2", "qwen3")
LORA = {"rank": 3, "alpha": 7.0}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def grouped_rows() -> Rollouts:
    """Two groups of four rows that begin alike, of different lengths, with a row between them that stands alone, and two of a
    beginning that is too short to be shared."""
    heads = [range(40, 40 + LEAST_HEAD + 9)] * 4 + [range(60, 70)] + [range(20, 20 + LEAST_HEAD + 1)] * 4 + [[7, 8]] * 2
    outputs = [[9 + i, 11, 12 + i, *range(30, 30 + 3 * i)] for i in range(len(heads))]
    return Rollouts(
        rollout(h, o, np.full(len(o), -3.0), 0.9, f"t{i}") for i, (h, o) in enumerate(zip(heads, outputs, strict=True))
    )


ROWS = {"mixed": mixed_rows, "grouped": grouped_rows}


def unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner, "make_working_weights", lambda policy: None)


@pytest.mark.parametrize("lora", [None, LORA, {**LORA, "targets": ["q_proj", "v_proj", "down_proj"]}])
@pytest.mark.parametrize("arch", PACKED)
@pytest.mark.parametrize("kind", ROWS)
def test_gradients_and_scores_are_those_of_the_padded_pass(
    root: Path, kind: str, arch: str, lora: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made() -> LocalEngine:
        return stirred(engine_of(model_folder(root, arch), lora=lora, grad_clip=1e9, micro_tokens=120))

    engine, rows = made(), ROWS[kind]()
    advantages = [1.0, -0.5, 2.0, 0.3, -1.5, 0.7, -0.1, 1.2, -1.0, 0.4, -0.8][: len(rows)]
    taught = train_batch(rows, advantages, entropy_coef=0.01, kl_coef=0.1)
    allowed = promise(made, lambda: taught)
    assert explain_misfit(engine.policy("p")) is None
    ours = gradients(engine, taught), engine.score("p", rows), engine.score("p", rows, "ref")
    unpacked(monkeypatch)
    theirs = gradients(engine, taught), engine.score("p", rows), engine.score("p", rows, "ref")
    assert gap(ours[0], theirs[0]) <= 2 * allowed.gradients < 1e-2
    assert apart(ours[1], theirs[1]) <= 2 * allowed.scores
    assert apart(ours[2], theirs[2]) <= 2 * rounding(engine, rows)


def test_where_attention_pads_padding_counts_against_the_budget(root: Path) -> None:
    """One long row among many short ones: without that, all of them would be padded to its length."""
    policy = engine_of(model_folder(root, "llama"), micro_tokens=400).policy("p")
    rows = [rollout(range(5, 5 + length), range(5, 9)) for length in [4] * 60 + [90]]
    ready = packed.make_working_weights(policy)
    assert ready is not None and not ready.padless
    for batch in learner.make_micro_batches(policy, rows, None, ready):
        assert len(batch.members) * max(len(rows[i].ids) for i in batch.members) <= 400


def test_the_padding_row_of_the_embedding_gets_no_gradient(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(model_folder(root, "qwen2"), grad_clip=1e9)
    pad = engine.policy("p").backbone.embed_tokens.padding_idx
    rows = Rollouts([rollout([pad, 7, pad, 9], [11, 12, pad, 13]), rollout([6, 8], [pad, 10])])
    ours = gradients(engine, train_batch(rows, [1.0, -0.5]))
    unpacked(monkeypatch)
    assert gap(ours, gradients(engine, train_batch(rows, [1.0, -0.5]))) < 2e-5


def test_an_adapted_embedding_is_left_to_the_model(root: Path) -> None:
    policy = engine_of(model_folder(root, "llama"), lora={**LORA, "targets": ["embed_tokens", "q_proj"]}).policy("p")
    assert explain_misfit(policy) == "its embedding is not a plain table" and packed.make_working_weights(policy) is None


@pytest.mark.parametrize("kind", ROWS)
def test_value_heads_read_packed_rows(root: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = stirred(engine_of(model_folder(root, "qwen2"), kind="scalar", grad_clip=1e9))
    rows = ROWS[kind]()
    rng = np.random.default_rng(0)
    targets = [np.where(rng.random(len(t.ids)) < 0.4, 1.0, np.nan) for t in rows]
    taught = TrainBatch("p", make_objective("value_bce").loss, rows, targets=targets)
    ours = gradients(engine, taught), engine.values("p", rows)
    unpacked(monkeypatch)
    assert gap(ours[0], gradients(engine, taught)) < 1e-5
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(ours[1], engine.values("p", rows), strict=True))


def test_a_row_does_not_see_its_neighbours(root: Path) -> None:
    engine, rows = engine_of(model_folder(root, "qwen2")), mixed_rows()
    alone = [engine.score("p", Rollouts([row]))[0] for row in rows]
    assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(alone, engine.score("p", rows), strict=True))


def test_packed_batches_hold_no_padding_and_stay_within_the_budget() -> None:
    rows = list(mixed_rows(40))
    batches = [
        build_micro_batch(rows, members, 0, torch.device("cpu"), packed=True)
        for members in cut_micro_batches(rows, 120, padless=True)
    ]
    assert sum(batch.ids.numel() for batch in batches) == sum(len(t.ids) for t in rows)
    assert all(batch.ids.numel() == batch.tokens <= 120 for batch in batches)
    assert sorted(i for batch in batches for i in batch.members) == list(range(40))
    for batch in batches:
        expected = np.concatenate([rows[i].ids[rows[i].mask] for i in batch.members])
        assert np.array_equal(batch.targets.numpy(), expected)


def test_what_rows_have_in_common_at_their_beginning_is_computed_once() -> None:
    """Three rows of 20 + 4, 20 + 2 and 20 + 3 tokens, one of 30 + 2. The last token of a prompt foretells the first one of the
    output, so it belongs to the row: a head of 19 and rests of 5, 3 and 4; the last row stands alone."""
    head = range(100, 120)
    rows = [rollout(head, range(5, 5 + n)) for n in (4, 2, 3)] + [rollout(range(200, 230), [5, 6])]
    heads = find_heads(rows, None)
    assert [h and h[0] for h in heads] == [19, 19, 19, 29] and len(set(heads)) == 2
    batch = build_micro_batch(rows, [0, 1, 2, 3], 0, torch.device("cpu"), packed=True, heads=heads)
    assert batch.packing is not None and batch.ids.numel() == 19 + 5 + 3 + 4 + 32
    assert batch.packing.sizes.tolist() == [19, 5, 3, 4, 32] and batch.packing.heads.tolist() == [-1, 0, 0, 0, -1]
    assert batch.packing.positions.tolist() == [*range(19), *range(19, 24), *range(19, 22), *range(19, 23), *range(32)]
    assert batch.targets.tolist() == [5, 6, 7, 8, 5, 6, 5, 6, 7, 5, 6]
    # The ledger counts whole rows: what they cost does not depend on what they were cut with.
    assert batch.tokens == 24 + 22 + 23 + 32 and batch.attended_pairs == (24**2 + 22**2 + 23**2 + 32**2) / 2


def test_rows_of_one_head_stand_together_within_the_budget() -> None:
    rows = list(grouped_rows())
    heads = find_heads(rows, None)
    assert [heads.count(h) for h in heads] == [4] * 4 + [3] + [4] * 4 + [3] * 2  # None: too short, thrice
    for budget in (60, 120, 1000):
        cuts = list(cut_micro_batches(rows, budget, heads=heads))
        order = [i for cut in cuts for i in cut]
        assert sorted(order) == list(range(len(rows)))
        for group in (range(4), range(5, 9)):
            places = sorted(order.index(i) for i in group)
            assert places == list(range(places[0], places[0] + 4))
        assert all(len(cut) == 1 or len(cut) * max(len(rows[i].ids) for i in cut) <= budget for cut in cuts)


def test_a_pass_is_as_long_as_the_memory_allows() -> None:
    """Llama's shape with one layer, eight wide, two heads with one of keys, and 16 inside: for each token 8 x 8 bytes for the
    stream, and 2 x 8 + 2 x (2 + 1) x 4 + 3 x 16 numbers in the precision of computing."""
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    config = AutoConfig.for_model("llama", num_hidden_layers=1, vocab_size=100, **sizes)
    plenty, half, full = 1e15, 64 + 2 * 88, 64 + 4 * 88
    assert fit_pass_tokens(10_000 * half, plenty, config, torch.bfloat16) == 10_000
    assert fit_pass_tokens(10_000 * full, plenty, config, torch.float32) == 10_000
    assert tuple(fit_pass_tokens(room, plenty, config, torch.bfloat16) for room in (0.0, plenty)) == PASS_TOKENS
    # Where weights and caches leave little: 0.8 of it, for activations and eight bytes a logit; never less than a token.
    assert fit_pass_tokens(10_000 * half, 1000 * (half + 800) / 0.8 + 1, config, torch.bfloat16) == 1000
    assert fit_pass_tokens(plenty, -5.0, config, torch.bfloat16) == 1


@pytest.mark.parametrize("lora", [None, LORA])
def test_recomputing_changes_memory_and_not_gradients(root: Path, lora: dict[str, Any] | None) -> None:
    options = {"lora": lora, "grad_clip": 1e9}
    plain, thrifty = (stirred(engine_of(model_folder(root, "qwen3"), recompute=r, **options)) for r in (False, True))
    held = []

    def hold(tensor: torch.Tensor) -> torch.Tensor:
        held[-1] += tensor.numel()
        return tensor

    found = []
    for engine in (plain, thrifty):
        held.append(0)
        with torch.autograd.graph.saved_tensors_hooks(hold, lambda tensor: tensor):
            found.append(gradients(engine, train_batch(mixed_rows(), None, "cross_entropy")))
    assert gap(found[1], found[0]) < 1e-6
    assert held[1] < 0.6 * held[0]


# Half precision.


@pytest.mark.parametrize("lora", [None, LORA])
def test_half_precision_is_as_near_to_float32_as_the_padded_pass_under_any_cut(
    root: Path, lora: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients reach the masters in float32; micro-batches are summed there."""

    def found(dtype: str, micro_tokens: int) -> list[torch.Tensor]:
        engine = stirred(engine_of(soft_folder(root), dtype=dtype, lora=lora, grad_clip=1e9, micro_tokens=micro_tokens))
        return gradients(engine, train_batch(mixed_rows(), None, "cross_entropy"))

    exact, whole, pieces = found("float32", 10_000), found("bfloat16", 10_000), found("bfloat16", 60)
    assert all(g.dtype == torch.float32 for g in whole)
    unpacked(monkeypatch)
    assert 0 < gap(whole, exact) < 1.5 * gap(found("bfloat16", 10_000), exact) < 0.15
    assert gap(pieces, whole) < 0.02


def test_the_working_copy_is_made_once_for_a_step(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(model_folder(root), micro_tokens=60, minibatches=2)
    made = []
    monkeypatch.setattr(
        learner, "make_working_weights", lambda policy: made.append(packed.make_working_weights(policy)) or made[-1]
    )
    assert engine.learn(train_batch(mixed_rows(), [1.0] * 9)).steps == len(made) == 2


# Fused functions.


@pytest.fixture
def compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile on the CPU, as on a GPU, but without the compiler's last stage."""
    monkeypatch.setattr(fused, "_should_compile", lambda args: True)
    through = functools.partial(fused.compile_for_any_length, backend="aot_eager")
    monkeypatch.setattr(fused, "compile_for_any_length", through)


@pytest.mark.usefixtures("compiling")
def test_compiled_functions_compute_the_same_and_are_compiled_once_for_all_lengths(root: Path) -> None:
    options = {"grad_clip": 1e9, "micro_tokens": 100_000}
    engine = engine_of(model_folder(root, "qwen3"), **options)
    found, graphs = [], []
    for count in (9, 7, 5, 3):
        taught = train_batch(mixed_rows(count), [1.0] * count)
        found.append((taught, gradients(engine, taught)))
        graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[1] == graphs[3] > 0, "other numbers of tokens need no other kernels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "_should_compile", lambda args: False)
        for taught, ours in found:
            assert gap(ours, gradients(engine, taught)) < 1e-5


def test_what_cannot_be_compiled_runs_as_it_is_written_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(fused, "_should_compile", lambda args: True)
    through = functools.partial(fused.compile_for_any_length, backend=broken)
    monkeypatch.setattr(fused, "compile_for_any_length", through)

    @fused.compile_fused
    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    with pytest.warns(UserWarning, match="'double' cannot be compiled"):
        assert torch.equal(double(torch.ones(3, 2)), torch.full((3, 2), 2.0))
    assert torch.equal(double(torch.ones(2, 2)), torch.full((2, 2), 2.0))


# What does not fit.


@pytest.mark.parametrize("arch", ["gpt2", "gemma2"])
def test_other_architectures_go_their_own_way(root: Path, arch: str) -> None:
    policy = engine_of(model_folder(root, arch)).policy("p")
    assert explain_misfit(policy) is not None and packed.make_working_weights(policy) is None


def test_recomputing_is_refused_where_the_model_goes_its_own_way(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"policies\.p\.recompute: GPT2LMHeadModel is none of"):
        engine_of(model_folder(root, "gpt2"), recompute=True)


@pytest.mark.parametrize(
    "change",
    [
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": None},
        {"hidden_act": "gelu"},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
    ],
)
def test_what_the_packed_pass_does_not_compute_is_left_to_the_model(root: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    original = model_folder(root, "qwen2")
    config = AutoConfig.from_pretrained(original)
    model = type(make_model("qwen2"))(type(config)(**{**config.to_dict(), **change}))
    model.save_pretrained(tmp_path)
    tokenizer("bytes").save_pretrained(tmp_path)
    assert explain_misfit(engine_of(original).policy("p")) is None
    assert explain_misfit(engine_of(str(tmp_path)).policy("p")) is not None
