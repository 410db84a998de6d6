"""The learner: exact gradients under any cut (law 5), a fixed old policy, refused updates, versions, resuming."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine_helpers import (
    ARCHITECTURES,
    constant,
    engine_of,
    make_model,
    model_folder,
    prompts,
    rollout,
    same_bits,
    sample_rollouts,
    section,
    tokenizer,
    train_batch,
    weights,
)
from milonga.engine.local import LocalEngine, head, learner
from milonga.engine.local.batches import build_micro_batch, cut_micro_batches
from milonga.errors import ConfigError, RunFolderError, UserError
from milonga.objectives import make_objective
from milonga.types import Parsed, Problem, Rollout, Rollouts, TrainBatch
from numerics import promise

MIXED = [1.0, -0.5, 2.0, 0.0, -1.5, 0.7, 0.0, 1.2]


def say_nothing(done: int, total: int) -> None:
    """A learner may tell how far it is: here to nobody."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def engine(root: Path) -> LocalEngine:
    return engine_of(model_folder(root), lr=1e-3)


def gradients(engine: LocalEngine, taught: TrainBatch) -> list[torch.Tensor]:
    """What the optimizer would be given, before clipping, without taking the step."""
    found: list[torch.Tensor] = []
    policy = engine.policy(taught.policy)
    step = policy.optimizer.step
    try:
        policy.optimizer.step = lambda: found.extend(p.grad.clone() for p in policy.parameters)  # type: ignore
        engine.learn(taught)
    finally:
        policy.optimizer.step = step  # type: ignore
    return found


def relative_gap(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    size = float(torch.sqrt(sum(((b.double()) ** 2).sum() for b in right)))
    gap = torch.sqrt(sum(((a.double() - b.double()) ** 2).sum() for a, b in zip(left, right, strict=True)))
    return float(gap) / size


# The chunked head.


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_the_chunked_head_is_the_full_one(rows: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients in float64, for chunks of any size, at a temperature per token."""
    monkeypatch.setattr(head, "chunk_rows", lambda vocabulary: rows)
    draw = torch.Generator().manual_seed(rows)
    tensors = [torch.randn(*shape, dtype=torch.float64, generator=draw) for shape in ((17, 5), (11, 5), (11,))]
    targets = torch.randint(11, (17,), generator=draw)
    temperature = 0.5 + torch.rand(17, dtype=torch.float64, generator=draw)
    pull = torch.randn(2, 17, dtype=torch.float64, generator=draw)

    def run(which: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
        hidden, weight, offset = (t.clone().requires_grad_() for t in tensors)
        logp, entropy = which(hidden, weight, offset if bias else None, targets, temperature)
        (pull[0] * logp + pull[1] * entropy).sum().backward()
        return [logp, entropy, *(t.grad for t in (hidden, weight, *([offset] if bias else [])))]

    def full(hidden: Any, weight: Any, offset: Any, targets: Any, temperature: Any) -> tuple[torch.Tensor, torch.Tensor]:
        logp = torch.log_softmax(torch.nn.functional.linear(hidden, weight, offset) / temperature[:, None], -1)
        return logp.gather(1, targets[:, None])[:, 0], -(logp.exp() * logp).sum(1)

    for ours, theirs in zip(run(head.compute_chunked_logprobs), run(full), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("which", ["logp", "entropy"])
def test_the_chunked_head_has_the_gradient_of_either_output_alone(which: str) -> None:
    draw = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 4, dtype=torch.float64, generator=draw, requires_grad=True) for n in (6, 9))
    pick = 0 if which == "logp" else 1
    targets, temperature = torch.arange(6), torch.full((6,), 0.7, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda h, w: head.compute_chunked_logprobs(h, w, None, targets, temperature)[pick], (hidden, weight)
    )


def test_the_chunked_head_differentiates_the_precision_it_computed_in() -> None:
    """Under autocast the backward pass, which runs outside of it, repeats the rounding of the forward pass."""
    draw = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(40, 32, generator=draw), torch.randn(50, 32, generator=draw)
    targets = torch.arange(40)
    grads = []
    for chunked in (True, False):
        h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            if chunked:
                logp, _ = head.compute_chunked_logprobs(h, w, None, targets, torch.ones(40))
            else:
                logp = torch.log_softmax(torch.nn.functional.linear(h, w).float(), -1)[torch.arange(40), targets]
        logp.sum().backward()
        grads.append([h.grad, w.grad])
    assert relative_gap(grads[0], grads[1]) < 1e-3


@pytest.mark.parametrize(("arch", "plain"), [("llama", True), ("qwen2", True), ("gpt2", True), ("gemma2", False)])
def test_only_a_plain_head_is_chunked(root: Path, arch: str, plain: bool) -> None:
    assert engine_of(model_folder(root, arch)).policy("p").plain_head is plain


def test_a_cap_on_the_logits_is_seen_even_where_logits_are_small(tmp_path: Path) -> None:
    model = make_model("gemma2")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.01)
    model.config.final_logit_softcapping = 30.0
    model.save_pretrained(tmp_path)
    tokenizer("bytes").save_pretrained(tmp_path)
    assert engine_of(str(tmp_path)).policy("p").plain_head is False


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_scores_are_those_of_the_model_alone(root: Path, arch: str) -> None:
    """Padding, packing, chunking and temperature against one plain forward pass per row."""
    engine = engine_of(model_folder(root, arch), micro_tokens=40)
    rows = Rollouts(
        rollout(c[:4], c[4:], temperature=t) for c, t in zip(prompts(5, 1, 6, 20), (1, 0.5, 2, 1, 0.8), strict=True)
    )
    for row, score in zip(rows, engine.score("p", rows), strict=True):
        ids = torch.from_numpy(row.ids)[None]
        with torch.no_grad():
            logits = engine.policy("p").model(ids).logits[0, :-1] / row.temperature
        expected = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None])[:, 0].numpy()
        assert np.allclose(score[1:], np.where(row.mask[1:], expected, 0), atol=1e-5) and score[0] == 0


def test_rows_without_trained_tokens_score_zero_and_cost_nothing(engine: LocalEngine) -> None:
    silent = [
        rollout(np.arange(5, 9), []),
        rollout([], [7]),
        Rollout.from_text("g", "s", Problem("p", "", ""), "", Parsed(None, 0)),
    ]
    scores = engine.score("p", Rollouts([*silent, rollout([5, 6], [7])]))
    assert [len(s) for s in scores] == [4, 1, 0, 3] and not any(s.any() for s in scores[:3]) and scores[3][2] < 0
    assert engine.ledger.policies["p"].score == 3
    assert len(engine.score("p", Rollouts(silent))) == 3


# Law 5: a weighted sum, divided once.

OBJECTIVES = {
    "grpo": {},
    "dapo": {"entropy_coef": 0.01},
    "dr_grpo": {"kl_coef": 0.1, "length": 16},
    "rloo": {},
    "gspo": {"clip_low": 0.2, "clip_high": 0.2},
    "cispo": {},
    "cross_entropy": {},
}


@pytest.mark.parametrize("preset", OBJECTIVES)
def test_gradients_do_not_depend_on_the_micro_batches(root: Path, preset: str) -> None:
    taught, found = None, []
    for micro_tokens in (1, 60, 100_000):
        engine = engine_of(model_folder(root, "qwen2"), micro_tokens=micro_tokens, grad_clip=1e9)
        taught = taught or train_batch(sample_rollouts(engine), MIXED, preset, **OBJECTIVES[preset])
        found.append(gradients(engine, taught))
    assert taught is not None
    allowed = 2 * promise(lambda: engine_of(model_folder(root, "qwen2"), grad_clip=1e9), lambda: taught).gradients
    assert relative_gap(found[0], found[2]) <= allowed and relative_gap(found[1], found[2]) <= allowed < 1e-3


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_gradient_is_that_of_the_formula(root: Path, arch: str) -> None:
    """REINFORCE with a token mean, against a plain forward pass and autograd, one row at a time."""
    engine = engine_of(model_folder(root, arch), micro_tokens=70, grad_clip=1e9)
    rows = sample_rollouts(engine, temperature=0.8)
    found = gradients(engine, train_batch(rows, MIXED, "grpo", ratio="none", clip="none", aggregate="token_mean"))
    policy = engine.policy("p")
    policy.optimizer.zero_grad()
    for row, advantage in zip(rows, MIXED, strict=True):
        ids = torch.from_numpy(row.ids)[None]
        logp = torch.log_softmax(policy.model(ids).logits[0, :-1] / 0.8, -1).gather(1, ids[0, 1:, None])[:, 0]
        (-advantage * logp[torch.from_numpy(row.mask[1:])].sum() / sum(r.length for r in rows)).backward()
    assert relative_gap(found, [p.grad for p in policy.parameters]) < 1e-5


def test_units_are_never_split(engine: LocalEngine) -> None:
    rows, units = list(sample_rollouts(engine)), [0, 1, 2, 3, 3, 2, 1, 0]
    for budget in (1, 50, 10_000):
        batches = list(cut_micro_batches(rows, budget, units))
        assert sorted(i for batch in batches for i in batch) == list(range(8))
        assert all(sum(units[i] == u for i in batch) in (0, 2) for batch in batches for u in range(4))


def test_batches_stay_within_the_budget(engine: LocalEngine) -> None:
    rows = list(sample_rollouts(engine))
    for members in cut_micro_batches(rows, 60):
        assert len(members) == 1 or build_micro_batch(rows, members, 0, torch.device("cpu")).ids.numel() <= 60


def test_rows_without_advantage_cost_nothing_but_count_in_the_denominator(root: Path) -> None:
    def run(keep: Callable[[float], bool], preset: str = "grpo") -> tuple[LocalEngine, list[torch.Tensor], Rollouts]:
        engine = engine_of(model_folder(root), grad_clip=1e9)
        rows = sample_rollouts(engine)
        chosen = [(t, a) for t, a in zip(rows, MIXED, strict=True) if keep(a)]
        taught = train_batch(Rollouts(t for t, _ in chosen), [a for _, a in chosen], preset)
        return engine, gradients(engine, taught), rows

    everyone, whole, rows = run(lambda a: True)
    movers, part, _ = run(lambda a: a != 0)
    paid = sum(len(t.ids) for t, a in zip(rows, MIXED, strict=True) if a)
    assert everyone.ledger.policies["p"].learn == movers.ledger.policies["p"].learn == paid
    every = train_batch(rows, MIXED)
    allowed = 2 * promise(lambda: engine_of(model_folder(root), grad_clip=1e9), lambda: every).gradients
    assert relative_gap([g * 8 / 6 for g in whole], part) <= allowed < 1e-3


def test_rows_without_advantage_are_computed_where_a_regulariser_moves_them(engine: LocalEngine) -> None:
    rows = sample_rollouts(engine)
    engine.learn(train_batch(rows, [0.0] * 8, entropy_coef=0.01))
    assert engine.ledger.policies["p"].learn == sum(len(t.ids) for t in rows)


def test_a_train_batch_in_which_nothing_moves_takes_no_step(engine: LocalEngine) -> None:
    before, rows = weights(engine), sample_rollouts(engine)
    prompt_only = [np.where(t.mask, 0.0, 1.0) for t in rows]
    for taught in (
        train_batch(rows, [0.0] * 8),
        TrainBatch("p", make_objective("grpo").loss, rows, prompt_only),
        train_batch(Rollouts([]), []),
    ):
        report = engine.learn(taught)
        assert (report.steps, report.tokens, report.skipped) == (0, 0, None)
    assert same_bits(weights(engine), before) and engine.ledger.policies["p"].learn == 0


def test_an_interrupted_update_leaves_no_gradient_behind(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean, broken = (engine_of(model_folder(root), micro_tokens=60) for _ in range(2))
    taught = train_batch(sample_rollouts(clean), MIXED)
    real, calls = learner.compute_loss, []

    def fails(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(learner, "compute_loss", fails)
        with pytest.raises(RuntimeError, match="out of memory"):
            broken.learn(taught)
    for engine in (clean, broken):
        engine.learn(taught)
    assert same_bits(weights(clean), weights(broken))


# Epochs, minibatches, clipping.


def test_clipping_is_alive_over_epochs_and_minibatches(root: Path) -> None:
    engine = engine_of(model_folder(root), lr=3e-3, epochs=2, minibatches=2)
    rows = sample_rollouts(engine)
    old = [t.logprobs.copy() for t in rows]
    report = engine.learn(train_batch(rows, MIXED))
    assert report.steps == 4 and report.clip_fraction > 0
    assert all(np.array_equal(t.logprobs, o) for t, o in zip(rows, old, strict=True)), "the old policy is the sampler"
    ratios = np.concatenate([np.exp(s - o)[t.mask] for s, o, t in zip(engine.score("p", rows), old, rows, strict=True)])
    assert np.abs(ratios - 1).max() > 0.2


def test_a_single_step_is_on_policy(engine: LocalEngine) -> None:
    report = engine.learn(train_batch(sample_rollouts(engine), MIXED))
    assert report.steps == 1 and report.clip_fraction == 0 and report.mismatch < 1e-5


def blur(rows: Rollouts, mean_gap: float) -> Rollouts:
    """Rows whose sampler differed from the learner, by so much a token in the mean, as one in bfloat16 does."""
    draw = np.random.default_rng(0)
    sd = mean_gap * np.sqrt(np.pi / 2)  # of a normal whose mean absolute value is the gap
    return Rollouts(replace(t, logprobs=t.logprobs + t.mask * draw.normal(0, sd, len(t.ids))) for t in rows)


def test_a_ratio_per_sequence_is_to_the_learner_where_sampler_and_learner_differ(root: Path) -> None:
    """A gap of 0.005 a token, usual in bfloat16, moves the mean log-ratio of 10 tokens by 0.002, GSPO's range is 0.0003."""
    engine = engine_of(model_folder(root), lr=1e-9, minibatches=2)
    rows = blur(sample_rollouts(engine, count=32), 0.005)
    advantages = [1.0, -1.0] * 16
    as_sampled = engine.learn(train_batch(rows, advantages, "gspo"))
    learners = engine.learn(train_batch(rows, advantages, "gspo", recompute_old=True))
    assert as_sampled.clip_fraction > 0.3 and learners.clip_fraction == 0
    for report in (as_sampled, learners):
        assert report.mismatch == pytest.approx(0.005, rel=0.2), "it is measured all the same"


def test_who_computes_the_old_policy_by_default() -> None:
    asked = {name: make_objective(name).loss for name in ("grpo", "gspo", "aipo", "rloo")}
    assert [name for name, loss in asked.items() if loss.recomputes_old(on_cpu=False)] == ["gspo"]
    assert not any(loss.recomputes_old(on_cpu=True) for loss in asked.values()), "in float32 on a CPU they agree (law 6)"
    assert make_objective("grpo", {"recompute_old": True}).loss.recomputes_old(on_cpu=True)
    assert not make_objective("gspo", {"recompute_old": False}).loss.recomputes_old(on_cpu=False)


def test_minibatches_part_the_rows_and_keep_units_together(root: Path) -> None:
    engine = engine_of(model_folder(root), minibatches=3)
    rows = sample_rollouts(engine)
    taught = TrainBatch("p", make_objective("grpo").loss, rows, constant(rows, MIXED), units=[0, 0, 1, 1, 2, 2, 3, 3])
    update = learner._Update(engine.policy("p"), taught, engine.ledger, say_nothing)
    first, second = update._split_minibatches(0), update._split_minibatches(1)
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(8)) and first != second
    assert all((row ^ 1) in part for part in first for row in part)
    assert first == update._split_minibatches(0)


# Updates that are refused.


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_advantage_that_is_not_finite_is_refused(engine: LocalEngine, bad: float) -> None:
    engine.learn(train_batch(sample_rollouts(engine), MIXED))
    before, moments = weights(engine), engine.policy("p").get_state()
    report = engine.learn(train_batch(sample_rollouts(engine), [*MIXED[:-1], bad]))
    assert report.skipped is not None and "not finite" in report.skipped and report.steps == 0
    assert same_bits(weights(engine), before)
    assert all(torch.equal(t, moments[k]) for k, t in engine.policy("p").get_state().items())
    assert all(p.grad is None for p in engine.policy("p").parameters)
    assert engine.learn(train_batch(sample_rollouts(engine), MIXED)).skipped is None, "the next train batch is learned"


def test_weights_that_are_not_finite_are_refused_and_kept(engine: LocalEngine) -> None:
    rows = sample_rollouts(engine)
    with torch.no_grad():
        engine.policy("p").parameters[-1].flatten()[3] = float("nan")
    before = weights(engine)
    assert engine.learn(train_batch(rows, MIXED)).skipped is not None
    assert all(torch.equal(a.view(torch.int32), b.view(torch.int32)) for a, b in zip(weights(engine), before, strict=True))


def test_a_gradient_that_is_not_finite_is_refused_though_the_loss_is(engine: LocalEngine) -> None:
    rows, before = sample_rollouts(engine), weights(engine)
    handle = engine.policy("p").parameters[0].register_hook(lambda g: g * float("inf"))
    report = engine.learn(train_batch(rows, MIXED))
    handle.remove()
    assert report.skipped is not None and report.skipped.startswith("gradient") and np.isfinite(report.loss)
    assert same_bits(weights(engine), before)


def test_a_refusal_in_a_later_minibatch_says_so(root: Path) -> None:
    engine = engine_of(model_folder(root), minibatches=2)
    rows = sample_rollouts(engine)
    update = learner._Update(engine.policy("p"), train_batch(rows, MIXED), engine.ledger, say_nothing)
    bad = update._split_minibatches(0)[1][0]
    report = engine.learn(train_batch(rows, [np.nan if i == bad else 1.0 for i in range(8)]))
    assert report.steps == 1 and report.skipped is not None and "after 1 steps" in report.skipped
    assert all(torch.isfinite(w).all() for w in weights(engine))


# Versions.


def test_versions_part_while_learning_and_live_comes_back_bit_for_bit(root: Path) -> None:
    engine = engine_of(model_folder(root), lr=1e-3, ema=0.5)
    rows = sample_rollouts(engine)
    start = engine.score("p", rows, "ref")
    assert all(np.array_equal(a, b) for a, b in zip(start, engine.score("p", rows), strict=True))
    for turn in range(3):
        engine.learn(train_batch(rows, MIXED))
        assert engine.publish("p") == turn + 1 == engine.version("p")
        if turn == 0:
            engine.snapshot("p", "first")
    live, bits = engine.score("p", rows), weights(engine)
    seen = [engine.score("p", rows, tag) for tag in ("live", "ref", "ema", "first")]
    assert all(np.abs(a[0] - b[0]).max() > 1e-4 for i, a in enumerate(seen) for b in seen[:i])
    assert same_bits(weights(engine), bits)
    assert all(np.array_equal(a, b) for a, b in zip(engine.score("p", rows), live, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(engine.score("p", rows, "ref"), start, strict=True))


def test_the_average_follows_the_live_weights(root: Path) -> None:
    engine = engine_of(model_folder(root), lr=1e-2, ema=0.75)
    start = weights(engine)
    engine.learn(train_batch(sample_rollouts(engine), MIXED))
    engine.publish("p")
    for mean, old, new in zip(engine.policy("p").get_tag("ema"), start, weights(engine), strict=True):
        assert torch.allclose(mean, 0.75 * old + 0.25 * new, atol=1e-7)


def test_live_comes_back_after_an_exception(engine: LocalEngine) -> None:
    engine.learn(train_batch(sample_rollouts(engine), MIXED))
    before, policy = weights(engine), engine.policy("p")
    places = [p.data_ptr() for p in policy.parameters]
    with pytest.raises(KeyboardInterrupt), policy.use_version("ref"):  # noqa: PT012
        assert not same_bits(weights(engine), before)
        raise KeyboardInterrupt
    with pytest.raises(IndexError):
        engine.score("p", Rollouts([rollout([5], [999_999])]), "ref")
    assert same_bits(weights(engine), before) and places == [p.data_ptr() for p in policy.parameters]


def test_an_unknown_version_is_an_error_that_names_the_known(engine: LocalEngine) -> None:
    with pytest.raises(UserError, match="did you mean 'ref'"):
        engine.score("p", sample_rollouts(engine), "reff")
    for taken in ("live", "ref", "ema", "a/b"):
        with pytest.raises(ValueError, match="not a name"):
            engine.snapshot("p", taken)


# What is learned.


def test_kl_to_the_start_is_zero_at_first_and_grows(engine: LocalEngine) -> None:
    rows = sample_rollouts(engine)
    first = engine.learn(train_batch(rows, MIXED, kl_coef=0.01))
    second = engine.learn(train_batch(rows, MIXED, kl_coef=0.01))
    assert first.kl == pytest.approx(0, abs=1e-9) and second.kl is not None and second.kl > 1e-5
    assert engine.learn(train_batch(rows, MIXED)).kl is None, "not computed where the objective has none"


def test_a_kl_penalty_pulls_back_to_the_start(root: Path) -> None:
    distance = []
    for coefficient in (0.0, 5.0):
        engine = engine_of(model_folder(root), lr=1e-3)
        rows = sample_rollouts(engine)
        start = engine.score("p", rows, "ref")
        for _ in range(6):
            engine.learn(train_batch(rows, MIXED, kl_coef=coefficient, clip="none"))
        distance.append(sum(np.abs(a - b).sum() for a, b in zip(engine.score("p", rows), start, strict=True)))
    assert distance[1] < 0.7 * distance[0]


def test_an_entropy_bonus_raises_entropy_and_a_malus_lowers_it(root: Path) -> None:
    found = {}
    for coefficient in (-0.5, 0.5):
        engine = engine_of(model_folder(root), lr=1e-3)
        rows = sample_rollouts(engine)
        found[coefficient] = [engine.learn(train_batch(rows, [0.0] * 8, entropy_coef=coefficient)).entropy for _ in range(4)]
    assert found[0.5][-1] > found[0.5][0] == found[-0.5][0] > found[-0.5][-1]


def test_cross_entropy_lowers_the_loss_on_given_text(engine: LocalEngine) -> None:
    own = tokenizer("bytes")
    rows = Rollouts(rollout(own.encode("step 1: "), own.encode(text)) for text in ("3+4=7.", "7*2=14.", "the answer is 42"))
    losses = []
    for _ in range(12):
        report = engine.learn(train_batch(rows, None, "cross_entropy"))
        losses.append(report.loss)
    assert losses[-1] < 0.7 * losses[0] and report.mismatch is None
    scores = engine.score("p", rows)
    assert -sum(s.sum() for s in scores) / sum(t.length for t in rows) < losses[0]


def test_a_policy_gradient_raises_what_was_good_and_lowers_what_was_bad(engine: LocalEngine) -> None:
    rows = sample_rollouts(engine)
    before = [s.sum() for s in engine.score("p", rows)]
    for _ in range(3):
        engine.learn(train_batch(rows, [1.0, -1.0] * 4))
    change = [s.sum() - b for s, b in zip(engine.score("p", rows), before, strict=True)]
    assert min(change[0::2]) > 0 > max(change[1::2])


def test_clipping_by_global_norm_bounds_the_step_not_its_direction(root: Path) -> None:
    free, bound = (engine_of(model_folder(root), grad_clip=c) for c in (1e9, 0.01))
    taught = train_batch(sample_rollouts(free), MIXED)
    loose, tight = gradients(free, taught), gradients(bound, taught)
    norm = float(torch.sqrt(sum((g**2).sum() for g in loose)))
    assert norm > 0.01 and float(torch.sqrt(sum((g**2).sum() for g in tight))) == pytest.approx(0.01, rel=1e-3)
    assert relative_gap([g * 0.01 / norm for g in loose], tight) < 1e-4


# Saving, loading, copying, exporting.


def taught_engine(model: str, **options: Any) -> LocalEngine:
    engine = engine_of(model, lr=1e-3, minibatches=2, ema=0.9, **options)
    for _ in range(2):
        engine.learn(train_batch(sample_rollouts(engine), MIXED))
        engine.publish("p")
    engine.snapshot("p", "kept")
    return engine


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_resumed_engine_goes_on_in_the_same_bits(root: Path, tmp_path: Path, lora: dict[str, Any] | None) -> None:
    first = taught_engine(model_folder(root, "qwen2"), lora=lora)
    first.save(tmp_path)
    second = engine_of(model_folder(root, "qwen2"), lr=1e-3, minibatches=2, ema=0.9, lora=lora)
    second.snapshot("p", "stale")
    second.load(tmp_path)
    for engine in (first, second):
        rows = sample_rollouts(engine, seed=4)
        engine.learn(train_batch(rows, MIXED, kl_coef=0.1))
        engine.publish("p")
    assert same_bits(weights(first), weights(second))
    assert first.policy("p").get_state().keys() == second.policy("p").get_state().keys(), "stale versions are forgotten"
    assert all(torch.equal(t, second.policy("p").get_state()[k]) for k, t in first.policy("p").get_state().items())
    assert first.ledger.to_json() == second.ledger.to_json() and first.version("p") == second.version("p") == 3


def test_a_resumed_run_notices_that_its_start_was_changed(root: Path, tmp_path: Path) -> None:
    for name, lora in (("full", None), ("adapter", {"rank": 4})):
        folder = tmp_path / name
        folder.mkdir()
        engine_of(model_folder(root, seed=0), lora=lora).save(folder)
        engine_of(model_folder(root, seed=0), lora=lora).load(folder)
        with pytest.raises(RunFolderError, match="did not start from"):
            engine_of(model_folder(root, seed=1), lora=lora).load(folder)


def test_a_copy_takes_the_weights_and_starts_the_optimizer_anew(root: Path) -> None:
    engine = LocalEngine({n: section(model_folder(root), lr=1e-3) for n in ("p", "q")}, device="cpu")
    rows = sample_rollouts(engine)
    engine.learn(train_batch(rows, MIXED))
    engine.copy("q", "p")
    assert same_bits(weights(engine, "q"), weights(engine, "p"))
    assert {p.data_ptr() for p in engine.policy("q").parameters}.isdisjoint(p.data_ptr() for p in engine.policy("p").parameters)
    assert engine.policy("p").optimizer.state
    engine.copy("p", "p", "ref")
    assert not engine.policy("p").optimizer.state and same_bits(weights(engine), engine.policy("p").get_tag("ref"))


def test_a_copy_between_shapes_is_refused(root: Path) -> None:
    models = {"p": model_folder(root), "q": model_folder(root, "qwen2")}
    engine = LocalEngine({n: section(m) for n, m in models.items()}, device="cpu")
    with pytest.raises(ConfigError, match="shapes differ"):
        engine.copy("p", "q")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_exported_folder_is_an_ordinary_model(root: Path, tmp_path: Path, arch: str) -> None:
    engine = engine_of(model_folder(root, arch), lr=1e-3)
    engine.learn(train_batch(sample_rollouts(engine), MIXED))
    engine.export("p", tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(theirs(ids).logits, engine.policy("p").model(ids).logits)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").encode("the answer") == tokenizer("bytes").encode("the answer")
    assert not list((tmp_path / "out").glob("*.bin")), "law 9: safetensors only"


def test_a_checkpoint_is_as_large_as_announced(root: Path, tmp_path: Path) -> None:
    engine = taught_engine(model_folder(root))
    engine.save(tmp_path)
    size = sum(f.stat().st_size for f in tmp_path.iterdir())
    assert size == pytest.approx(engine.checkpoint_bytes(), rel=0.1)
