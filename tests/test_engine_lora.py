"""LoRA: one adapter per policy on a shared base that nobody moves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from engine_helpers import (
    ARCHITECTURES,
    constant,
    model_folder,
    prompts,
    requests,
    rollout_of,
    same_bits,
    sample_rollouts,
    section,
    train_batch,
    weights,
)
from milonga.engine import Decoding
from milonga.engine.local import LocalEngine
from milonga.engine.local.vllm_sampler import require_known_adapters
from milonga.errors import ConfigError
from milonga.objectives import make_objective
from milonga.types import Floats, Rollouts, TrainBatch

RANK = {"rank": 4, "alpha": 8.0}
MIXED = [1.0, -0.5, 2.0, 0.0, -1.5, 0.7, 0.0, 1.2]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def pair(model: str, lora: dict[str, Any] = RANK, **options: Any) -> LocalEngine:
    """Two policies, `p` and `q`, on one base."""
    options = {"lr": 1e-2, **options}
    return LocalEngine({n: section(model, lora=lora, **options) for n in ("p", "q")}, device="cpu")


def base_weights(engine: LocalEngine) -> dict[str, torch.Tensor]:
    named = engine.policy("p").causal.named_parameters()
    return {n: p.detach().clone() for n, p in named if "lora_" not in n}


def equal(left: list[Floats], right: list[Floats]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(left, right, strict=True))


def bare_scores(model: str, rollouts: Rollouts) -> list[Floats]:
    return LocalEngine({"p": section(model)}, device="cpu").score("p", rollouts)


def test_policies_on_one_model_share_the_base_and_nothing_else(root: Path) -> None:
    engine = pair(model_folder(root))
    p, q = engine.policy("p"), engine.policy("q")
    assert p.causal is q.causal
    theirs = [dict(policy.causal.named_parameters()) for policy in (p, q)]
    assert all(theirs[0][n].data_ptr() == theirs[1][n].data_ptr() for n in theirs[0])
    assert {t.data_ptr() for t in p.parameters}.isdisjoint(t.data_ptr() for t in q.parameters)
    assert [n.replace(".p.", ".q.") for n in p.names] == q.names and all("lora_" in n for n in p.names)
    assert p.matmuls == q.matmuls, "the ledger charges a policy for its own adapter only"


def test_another_model_is_another_base(root: Path) -> None:
    sections = {"p": section(model_folder(root), lora=RANK), "q": section(model_folder(root, seed=1), lora=RANK)}
    engine = LocalEngine(sections, device="cpu")
    assert engine.policy("p").causal is not engine.policy("q").causal


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_at_the_start_live_and_reference_are_the_bare_base(root: Path, arch: str) -> None:
    engine = pair(model_folder(root, arch))
    rows = sample_rollouts(engine)
    bare = bare_scores(model_folder(root, arch), rows)
    for policy in ("p", "q"):
        for tag in ("live", "ref"):
            assert equal(engine.score(policy, rows, tag), bare)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_learning_one_policy_leaves_the_other_and_the_base_alone(root: Path, arch: str) -> None:
    engine = pair(model_folder(root, arch))
    rows = sample_rollouts(engine)
    base, other, start = base_weights(engine), weights(engine, "q"), engine.score("q", rows)
    for _ in range(2):
        engine.learn(train_batch(rows, MIXED))
    moved = engine.score("p", rows)
    assert max(np.abs(a - b).max() for a, b in zip(moved, start, strict=True)) > 1e-3
    assert equal(engine.score("q", rows), start) and same_bits(weights(engine, "q"), other)
    assert equal(engine.score("p", rows, "ref"), start), "the reference is the untouched base"
    assert all(torch.equal(base_weights(engine)[n], t) for n, t in base.items())
    assert equal(engine.score("p", rows), moved), "and comes back after the other was used"


def test_policies_may_learn_in_turns(root: Path) -> None:
    """Two adapters on one base learn what each would have learned alone."""
    together, alone = pair(model_folder(root)), pair(model_folder(root))
    rows = sample_rollouts(together)
    for_q = TrainBatch("q", make_objective("grpo").loss, rows, constant(rows, [-a for a in MIXED]))
    for _ in range(2):
        together.learn(train_batch(rows, MIXED))
        together.learn(for_q)
        alone.learn(for_q)
    assert same_bits(weights(together, "q"), weights(alone, "q"))
    assert not same_bits(weights(together, "p"), weights(together, "q"))


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_sampler_and_learner_agree_under_an_adapter(root: Path, arch: str) -> None:
    engine = pair(model_folder(root, arch))
    engine.learn(train_batch(sample_rollouts(engine), MIXED))
    for policy in ("p", "q"):
        done = engine.sample(policy, requests(prompts(5)), Decoding(12, 0.8))
        rows = Rollouts(rollout_of(c, d, 0.8) for c, d in zip(prompts(5), done, strict=True))
        scores = engine.score(policy, rows)
        assert max(np.abs(s - t.logprobs).max() for s, t in zip(scores, rows, strict=True)) < 1e-5


@pytest.mark.parametrize("lora", [RANK, {**RANK, "targets": ["q_proj", "lm_head"]}])
def test_the_learner_computes_what_the_adapted_model_computes(root: Path, lora: dict[str, Any]) -> None:
    """An adapter on the head counts too."""
    engine = pair(model_folder(root, "qwen2"), lora, lr=0.05)
    for _ in range(2):
        engine.learn(train_batch(sample_rollouts(engine), MIXED))
    policy = engine.policy("p")
    assert all(bool(t.any()) for t in policy.parameters), "every adapter moved"
    (row,) = sample_rollouts(engine, count=1)
    ids = torch.from_numpy(row.ids)[None]
    policy.activate()
    with torch.no_grad():
        logp = torch.log_softmax(policy.model(input_ids=ids).logits[0, :-1], -1).gather(1, ids[0, 1:, None])[:, 0].numpy()
    assert np.allclose(engine.score("p", Rollouts([row]))[0][1:], np.where(row.mask[1:], logp, 0), atol=1e-5)


def test_the_head_is_adapted_only_where_it_is_named(root: Path) -> None:
    assert not any("lm_head" in n for n in pair(model_folder(root, "qwen2")).policy("p").names)
    named = pair(model_folder(root, "qwen2"), {**RANK, "targets": ["lm_head"]})
    assert all("lm_head" in n for n in named.policy("p").names)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_an_exported_adapter_is_an_ordinary_peft_folder(root: Path, tmp_path: Path, arch: str) -> None:
    engine = pair(model_folder(root, arch))
    engine.learn(train_batch(sample_rollouts(engine), MIXED))
    engine.export("p", tmp_path / "p")
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {f.name for f in (tmp_path / "p").iterdir()}
    base = AutoModelForCausalLM.from_pretrained(model_folder(root, arch))
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "p").eval()
    ids = torch.arange(5, 25)[None]
    engine.policy("p").activate()
    with torch.no_grad():
        assert torch.equal(theirs(input_ids=ids).logits, engine.policy("p").model(input_ids=ids).logits)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_merged_adapter_is_an_ordinary_model_and_the_shared_base_stays(root: Path, tmp_path: Path, arch: str) -> None:
    engine = pair(model_folder(root, arch))
    rows = sample_rollouts(engine)
    engine.learn(train_batch(rows, MIXED))
    before, base = engine.score("p", rows), base_weights(engine)
    engine.export("p", tmp_path / "p", merged=True)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "p")
    ids = torch.arange(5, 25)[None]
    engine.policy("p").activate()
    with torch.no_grad():
        ours = engine.policy("p").model(input_ids=ids).logits
        start = AutoModelForCausalLM.from_pretrained(model_folder(root, arch))(input_ids=ids).logits
        assert torch.allclose(theirs(input_ids=ids).logits, ours, atol=1e-4)
        assert not torch.allclose(start, ours, atol=1e-3)
    assert equal(engine.score("p", rows), before)
    assert all(torch.equal(t, base[n]) for n, t in base_weights(engine).items())


def test_a_policy_starts_from_a_saved_adapter_and_that_is_its_reference(root: Path, tmp_path: Path) -> None:
    first = pair(model_folder(root))
    rows = sample_rollouts(first)
    first.learn(train_batch(rows, MIXED))
    first.export("p", tmp_path)
    sections = {
        "p": section(model_folder(root), lora=RANK, adapter=str(tmp_path), lr=1e-2),
        "q": section(model_folder(root), lora=RANK),
    }
    second = LocalEngine(sections, device="cpu")
    assert same_bits(weights(second, "p"), weights(first, "p"))
    learned = first.score("p", rows)
    assert equal(second.score("p", rows), learned)
    assert equal(second.score("q", rows), bare_scores(model_folder(root), rows))
    second.learn(train_batch(rows, MIXED))
    assert equal(second.score("p", rows, "ref"), learned) and not equal(second.score("p", rows), learned)


def test_exporting_one_adapter_does_not_disturb_training(root: Path, tmp_path: Path) -> None:
    watched, plain = pair(model_folder(root)), pair(model_folder(root))
    rows = sample_rollouts(plain)
    for engine in (watched, plain):
        engine.learn(train_batch(rows, MIXED))
        if engine is watched:
            engine.export("q", tmp_path / "q")
        engine.learn(train_batch(rows, MIXED))
    assert same_bits(weights(watched), weights(plain))
    assert all(not t.any() for n, t in load_file(tmp_path / "q" / "adapter_model.safetensors").items() if "lora_B" in n)


@pytest.mark.parametrize("lora", [{**RANK, "rank": 2}, {**RANK, "alpha": 16.0}, {**RANK, "targets": ["q_proj"]}])
def test_an_adapter_of_another_shape_is_refused(root: Path, tmp_path: Path, lora: dict[str, Any]) -> None:
    pair(model_folder(root)).export("p", tmp_path)
    with pytest.raises(ConfigError, match="adapter"):
        LocalEngine({"p": section(model_folder(root), lora=lora, adapter=str(tmp_path))}, device="cpu")


def test_a_missing_adapter_is_an_error_that_names_the_folder(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=str(tmp_path)):
        LocalEngine({"p": section(model_folder(root), lora=RANK, adapter=str(tmp_path))}, device="cpu")
    with pytest.raises(ConfigError, match="needs lora"):
        LocalEngine({"p": section(model_folder(root), adapter=str(tmp_path))}, device="cpu")


def test_a_checkpoint_holds_the_adapters_and_not_the_base(root: Path, tmp_path: Path) -> None:
    engine = pair(model_folder(root))
    engine.learn(train_batch(sample_rollouts(engine), MIXED))
    engine.save(tmp_path)
    for name in ("p", "q"):
        assert all("lora_" in key for key in load_file(tmp_path / f"{name}.safetensors"))
    assert set(json.loads((tmp_path / "engine.json").read_text())["policies"]) == {"p", "q"}


def test_learning_an_adapter_is_charged_less_than_learning_a_model(root: Path) -> None:
    whole = LocalEngine({"p": section(model_folder(root))}, device="cpu")
    adapted = pair(model_folder(root))
    rows = sample_rollouts(whole)
    for engine in (whole, adapted):
        engine.ledger.policies.clear()
        engine.learn(train_batch(rows, MIXED))
    full, part = (engine.ledger.policies["p"] for engine in (whole, adapted))
    assert full.learn == part.learn and part.flops < full.flops


def test_vllm_is_not_asked_for_adapters_in_float32_on_a_gpu(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels know half precision alone, and say so by an assertion without words."""
    policy = pair(model_folder(root, "llama")).policy("p")
    require_known_adapters(policy)
    monkeypatch.setattr(policy, "device", torch.device("cuda"))
    with pytest.raises(ConfigError, match=r"policies\.p\.lora: on a GPU vLLM .* set policies\.p\.dtype=bfloat16"):
        require_known_adapters(policy)
