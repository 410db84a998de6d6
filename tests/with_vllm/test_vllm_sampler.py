"""Sampling by vLLM on a CPU beside our own sampler and our own forward pass. Run by `make test-vllm`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from engine_helpers import TINY, model_folder, requests, rollout_of, section, stirred, tokenizer, train_batch
from milonga.config import VllmSection
from milonga.engine import Completion, Decoding, Request
from milonga.engine.local import LocalEngine, vllm_sampler
from milonga.errors import ConfigError, UserError
from milonga.types import Rollouts

CLOSE = 1e-4
SMALL_CACHE = VllmSection(cpu_cache_gib=0.1)


def engine_of(model: str = "embedded", vllm: VllmSection | None = SMALL_CACHE, names: str = "p", **options: Any) -> LocalEngine:
    return LocalEngine({n: section(model, **options) for n in names}, device="cpu", rows=64, vllm=vllm)


@pytest.fixture
def fresh() -> Iterator[Any]:
    """Makes an engine, and closes it. One at a time: what engines of vLLM share in a process ends with the first."""
    made: list[LocalEngine] = []

    def make(*args: Any, **options: Any) -> LocalEngine:
        assert not made
        made.append(engine_of(*args, **options))
        return made[0]

    yield make
    made[0].close()


@pytest.fixture
def embedded(fresh: Any) -> LocalEngine:
    """The embedded model."""
    engine: LocalEngine = fresh()
    return engine


def contexts(count: int = 12, seed: int = 0, vocabulary: int = 259) -> list[np.ndarray]:
    """Some twice, as in a group."""
    drawn = np.random.default_rng(seed)
    some = [drawn.integers(3, vocabulary, drawn.integers(2, 30)) for _ in range(count)]
    return [*some, *some[: count // 2]]


def worst(
    engine: LocalEngine, prompts: list[np.ndarray], done: list[Completion], heat: float = 1.0, tag: str = "live"
) -> float:
    """The largest difference between what was reported and a fresh forward pass of our model."""
    rollouts = Rollouts(rollout_of(c, d, heat, f"t{i}") for i, (c, d) in enumerate(zip(prompts, done, strict=True)))
    scored = engine.score("p", rollouts, tag)
    return max(float(np.abs(s[t.mask] - d.logprobs).max()) for s, t, d in zip(scored, rollouts, done, strict=True))


def random_folder(root: Path, arch: str) -> str:
    """Biases, grouped heads, a head of its own; norms of heads. vLLM's kernels want heads of 32 dimensions."""
    shape = TINY | {"hidden_size": 128, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 256}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "dtype": "float32"}
    torch.manual_seed(0)
    if arch == "qwen2":
        model: Any = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=False))
    else:
        model = Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=32, tie_word_embeddings=True))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    folder = root / arch
    model.save_pretrained(folder)
    tokenizer("bytes").save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("heat", [1.0, 0.6, 1.7])
def test_log_probabilities_are_those_of_the_distribution_sampled_from(embedded: LocalEngine, heat: float) -> None:
    prompts = contexts()
    done = embedded.sample("p", requests(prompts), Decoding(24, heat))
    assert worst(embedded, prompts, done, heat) < CLOSE
    assert len({d.ids.tobytes() for d in done}) > len(done) // 2


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_weights_that_are_away_while_vllm_samples_are_handed_over_all_the_same(fresh: Any, lora: dict[str, Any] | None) -> None:
    engine, prompts = stirred(fresh(lora=lora, lr=3e-3, offload=True), 0.1), contexts()
    for _ in range(2):
        done = engine.sample("p", requests(prompts), Decoding(12))
        assert worst(engine, prompts, done) < CLOSE
        rollouts = Rollouts(rollout_of(c, d, 1.0, f"t{i}") for i, (c, d) in enumerate(zip(prompts, done, strict=True)))
        assert engine.learn(train_batch(rollouts, [1.0, -1.0] * (len(rollouts) // 2))).steps == 1
        assert worst(engine, prompts, done) > 10 * CLOSE
    start = engine.sample("p", requests(prompts), Decoding(12), tag="ref")
    assert worst(engine, prompts, start, tag="ref") < CLOSE


@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_what_sleep_takes_comes_back(fresh: Any, monkeypatch: pytest.MonkeyPatch, lora: dict[str, Any] | None) -> None:
    """vLLM cannot sleep on a CPU: here its weights are lost by hand, as on level 2, and its calls are written down."""
    engine, prompts = stirred(fresh(lora=lora), 0.1), contexts()
    done = engine.sample("p", requests(prompts), Decoding(12))
    sampler, told = engine.samplers["p"], []
    real = sampler.engine.collective_rpc

    def sleep(level: int) -> None:
        told.append(f"sleep {level}")
        if level == 2:
            (worker,) = real(lambda worker: worker)
            for parameter in worker.model_runner.get_model().parameters():
                parameter.data.fill_(float("nan"))

    def call(method: Any, *args: Any, **options: Any) -> Any:
        told.append(method)
        return real(method, *args, **options)

    monkeypatch.setattr(sampler.engine, "sleep", sleep)
    monkeypatch.setattr(sampler.engine, "wake_up", lambda tags: told.append(f"wake {tags[0]}"))
    monkeypatch.setattr(sampler.engine, "collective_rpc", call)
    monkeypatch.setattr(sampler, "section", sampler.section.model_copy(update={"sleep": True}))
    for _ in range(2):
        again = engine.sample("p", requests(prompts), Decoding(12))
        assert [d.ids.tolist() for d in again] == [d.ids.tolist() for d in done]
    level, reload = ("sleep 2", ["reload_weights"]) if lora is None else ("sleep 1", [])
    assert told == ["wake weights", "wake kv_cache", level, "wake weights", *reload, "wake kv_cache", level]


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_other_shapes(fresh: Any, tmp_path: Path, arch: str) -> None:
    engine, prompts = fresh(random_folder(tmp_path, arch)), contexts(vocabulary=300)
    done = engine.sample("p", requests(prompts), Decoding(16, 0.9))
    assert worst(engine, prompts, done, 0.9) < CLOSE


def test_greedy_outputs_are_ours(embedded: LocalEngine) -> None:
    prompts, decoding = contexts(), Decoding(40, greedy=True)
    theirs = embedded.sample("p", requests(prompts), decoding)
    ours = engine_of(vllm=None).sample("p", requests(prompts), decoding)
    for a, b in zip(theirs, ours, strict=True):
        assert a.ids.tolist() == b.ids.tolist()
        assert (a.text, a.finish, a.ends.tolist()) == (b.text, b.finish, b.ends.tolist())
        assert np.abs(a.logprobs - b.logprobs).max() < CLOSE
    assert {d.finish for d in theirs} >= {"eos"}


def test_an_output_depends_on_its_key_and_not_on_its_neighbours(embedded: LocalEngine) -> None:
    asked, decoding = requests(contexts()), Decoding(24)
    whole = embedded.sample("p", asked, decoding)
    again = embedded.sample("p", asked, decoding)
    assert all(
        np.array_equal(a.ids, b.ids) and np.array_equal(a.logprobs, b.logprobs) for a, b in zip(whole, again, strict=True)
    )
    alone = embedded.sample("p", asked[5:6], decoding)[0]
    assert np.array_equal(alone.ids, whole[5].ids)
    other = embedded.sample("p", [Request(r.context, r.key + 1) for r in asked], decoding)
    assert sum(np.array_equal(a.ids, b.ids) for a, b in zip(whole, other, strict=True)) < len(whole) // 2


def test_tokens_are_drawn_with_their_probabilities(embedded: LocalEngine) -> None:
    """Untruncated: how often each first token comes, against what the model says of it."""
    context, heat, count = np.array([1, 50, 60, 70, 80]), 1.3, 2000
    done = embedded.sample("p", [Request(context, key * 7919 + 1) for key in range(count)], Decoding(1, heat))
    with torch.no_grad():
        logits = embedded.policy("p").model(torch.from_numpy(context)[None]).logits[0, -1]
    wanted = torch.softmax(logits / heat, -1).double().numpy()
    seen = np.bincount([int(d.ids[0]) for d in done], minlength=len(wanted)) / count
    likely = wanted > 0.005
    error = np.sqrt(wanted * (1 - wanted) / count)
    assert likely.sum() > 5
    assert (np.abs(seen - wanted)[likely] < 4.5 * error[likely]).all()
    assert abs(seen[~likely].sum() - wanted[~likely].sum()) < 4.5 * np.sqrt(wanted[~likely].sum() / count)


def test_after_learning_samples_come_from_the_new_weights(fresh: Any) -> None:
    engine, prompts = fresh(lr=3e-3), contexts()
    before = engine.sample("p", requests(prompts), Decoding(12, greedy=True))
    assert worst(engine, prompts, before) < CLOSE
    drawn = engine.sample("p", requests(prompts), Decoding(12))
    rollouts = Rollouts(rollout_of(c, d, 1.0, f"t{i}") for i, (c, d) in enumerate(zip(prompts, drawn, strict=True)))
    report = engine.learn(train_batch(rollouts, [1.0, -1.0] * (len(rollouts) // 2)))
    assert report.mismatch is not None and report.mismatch < CLOSE
    engine.publish("p")
    assert worst(engine, prompts, before) > 100 * CLOSE  # the step was a real one
    after = engine.sample("p", requests(prompts), Decoding(12, greedy=True))
    assert worst(engine, prompts, after) < CLOSE
    start = engine.sample("p", requests(prompts), Decoding(12, greedy=True), tag="ref")
    assert [d.ids.tolist() for d in start] == [d.ids.tolist() for d in before]
    assert worst(engine, prompts, start, tag="ref") < CLOSE
    again = engine.sample("p", requests(prompts), Decoding(12, greedy=True))
    assert [d.ids.tolist() for d in again] == [d.ids.tolist() for d in after]


def test_vllm_holds_weights_of_its_own(fresh: Any) -> None:
    """Learning writes in place: what it writes must not reach vLLM before it is handed over and probed."""
    engine = fresh()
    asked, decoding = requests(contexts()), Decoding(8, greedy=True)
    engine.sample("p", asked, decoding)
    sampler = engine.samplers["p"]
    held = sampler._generate(asked, decoding)
    with torch.no_grad():
        for parameter in engine.policy("p").parameters:
            parameter.mul_(1.5)
    later = sampler._generate(asked, decoding)
    assert all(a.ids == b.ids and np.array_equal(a.logprobs, b.logprobs) for a, b in zip(held, later, strict=True))


def test_weights_are_handed_over_only_when_they_changed(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, given = fresh(), []
    real = vllm_sampler.iterate_weights
    monkeypatch.setattr(vllm_sampler, "iterate_weights", lambda policy: given.append(policy.name) or real(policy))
    asked = requests(contexts(4))
    for _ in range(3):
        engine.sample("p", asked, Decoding(4))
    assert given == ["p"]


def test_two_policies_and_a_copy(fresh: Any) -> None:
    engine, prompts = fresh(names="pq"), contexts(6)
    with torch.no_grad():
        for parameter in engine.policy("q").parameters:
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)), alpha=0.02)
    p, q = (engine.sample(name, requests(prompts), Decoding(12, greedy=True)) for name in "pq")
    assert worst(engine, prompts, p) < CLOSE
    assert worst(engine, prompts, q) > 100 * CLOSE
    engine.copy("p", "q")
    copied = engine.sample("p", requests(prompts), Decoding(12, greedy=True))
    assert [d.ids.tolist() for d in copied] == [d.ids.tolist() for d in q]
    assert worst(engine, prompts, copied) < CLOSE


def test_adapters_share_one_vllm(fresh: Any) -> None:
    """Each is sampled from as it is, whoever was asked before; a step of one does not touch the other."""
    engine, prompts = stirred(fresh(lora={"rank": 4}, names="pq"), 0.1), contexts()
    done = engine.sample("p", requests(prompts), Decoding(12))
    assert worst(engine, prompts, done) < CLOSE
    other = engine.sample("q", requests(prompts), Decoding(12))
    assert worst(engine, prompts, other, tag="ref") < CLOSE  # q was left at the start
    assert engine.samplers["p"].host is engine.samplers["q"].host
    again = engine.sample("p", requests(prompts), Decoding(12))
    assert [d.ids.tolist() for d in again] == [d.ids.tolist() for d in done]
    assert engine.samplers["p"].host.adapters == 2  # nothing was handed over twice
    assert worst(engine, prompts, done, tag="ref") > 100 * CLOSE
    bare = engine.sample("p", requests(prompts), Decoding(12), tag="ref")
    assert worst(engine, prompts, bare, tag="ref") < CLOSE


def test_stop_strings_are_read_as_ours(embedded: LocalEngine) -> None:
    plain = embedded.sample("p", requests(contexts()), Decoding(24, greedy=True))
    stop = (max((d.text for d in plain), key=len)[3:5], plain[0].text[1:3])
    decoding = Decoding(24, stop=stop, greedy=True)
    theirs = embedded.sample("p", requests(contexts()), decoding)
    ours = engine_of(vllm=None).sample("p", requests(contexts()), decoding)
    assert "stop" in {d.finish for d in theirs}
    for a, b in zip(theirs, ours, strict=True):
        assert (a.ids.tolist(), a.text, a.finish, a.ends.tolist()) == (b.ids.tolist(), b.text, b.finish, b.ends.tolist())


def test_lengths(embedded: LocalEngine) -> None:
    """What was asked for, or what the context leaves."""
    long = np.random.default_rng(0).integers(3, 259, 505)
    done = embedded.sample("p", requests([long, long[:20]]), Decoding(20, 2.0))
    assert len(done[0].ids) <= 512 - 505
    assert all(d.finish == "length" or d.ids[-1] == 2 for d in done)
    with pytest.raises(UserError, match="512 that vLLM has room for"):
        embedded.sample("p", requests([np.full(512, 5)]), Decoding(20))
    assert len(embedded.sample("p", requests([long[:20]]), Decoding(3, 2.0))[0].ids) <= 3


def test_more_prompts_than_fit_into_one_pass(embedded: LocalEngine) -> None:
    prompts = [np.random.default_rng(i).integers(3, 259, 120) for i in range(100)]
    done = embedded.sample("p", requests(prompts), Decoding(4))
    assert worst(embedded, prompts, done) < CLOSE


def test_rows_that_must_give_way_come_back_as_they_were(fresh: Any) -> None:
    """A cache of a few rows: some are thrown out, computed again, and go on with their own randomness."""
    prompts, decoding = [np.full(100, 5 + i) for i in range(8)], Decoding(250, 1.5)
    engine = fresh(vllm=VllmSection(cpu_cache_gib=0.008))
    done = engine.sample("p", requests(prompts), decoding)
    assert sum(100 + len(d.ids) for d in done) * 4 * 2 * 192 * 4 > 0.008 * 2**30  # they did not fit side by side
    assert worst(engine, prompts, done, 1.5) < CLOSE
    for i, row in enumerate(done):
        alone = engine.sample("p", requests(prompts)[i : i + 1], decoding)[0]
        assert np.array_equal(alone.ids, row.ids)


def test_the_ledger_counts_as_for_our_own_sampler(embedded: LocalEngine) -> None:
    own = engine_of(vllm=None)
    before = dict(vars(embedded.ledger.policies.get("p"))) if "p" in embedded.ledger.policies else {"prefill": 0, "decode": 0}
    for engine in (embedded, own):
        engine.sample("p", requests(contexts()), Decoding(24, greedy=True))
    used = embedded.ledger.policies["p"]
    assert (used.prefill - before["prefill"], used.decode - before["decode"]) == (
        own.ledger.policies["p"].prefill,
        own.ledger.policies["p"].decode,
    )


def test_wrong_weights_stop_the_run_with_the_numbers(fresh: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, real = fresh(), vllm_sampler.iterate_weights
    asked = requests(contexts(4))
    with monkeypatch.context() as patched:
        patched.setattr(vllm_sampler, "iterate_weights", lambda policy: ((n, w * 1.02) for n, w in real(policy)))
        with pytest.raises(UserError, match=r"differ by .* on average .*sampling\.vllm\.tolerance"):
            engine.sample("p", asked, Decoding(4))
    done = engine.sample("p", asked, Decoding(4))  # what was refused is not taken for what is held
    assert worst(engine, [r.context for r in asked], done) < CLOSE


def test_a_model_that_vllm_cannot_serve_is_one_line(fresh: Any, tmp_path: Path) -> None:
    engine = fresh(model_folder(tmp_path, "llama"))  # heads of 8 dimensions
    with pytest.raises(UserError, match=r"policy 'p' cannot be sampled by vLLM: .*head_dim=8"):
        engine.sample("p", requests(contexts(2)), Decoding(4))


def test_sleep_is_refused_where_vllm_does_not_know_it(fresh: Any) -> None:
    engine = fresh(vllm=VllmSection(cpu_cache_gib=0.1, sleep=True))
    with pytest.raises(UserError, match=r"policy 'p' cannot be sampled by vLLM: .*[Ss]leep mode"):
        engine.sample("p", requests(contexts(2)), Decoding(4))


def test_another_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="the vLLM installed here is for cpu"):
        vllm_sampler.require_device(torch.device("cuda"))


TINY_RUN = ["--set", "batch.problems=4", "--set", "batch.rollouts=4", "--set", "eval.problems=4", "--set", "eval.bench=4"]
TINY_RUN += ["--set", "sampling.vllm.cpu_cache_gib=0.1", "--set", "threads=1", "--device", "cpu"]


@pytest.mark.parametrize("recipe", ["grpo", "tango"])
def test_a_run(tmp_path: Path, recipe: str) -> None:
    """Two turns from the command line; sampler and learner agree in every turn."""
    command = [sys.executable, "-m", "milonga", "run", recipe, "--sampler", "vllm", "--turns", "2", "--json"]
    done = subprocess.run([*command, "--out", str(tmp_path / "run"), *TINY_RUN], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout.splitlines()[-1])
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    seen = {key: row[key] for row in rows for key in row if key.endswith("/mismatch") and row[key] is not None}
    assert seen and max(seen.values()) < CLOSE, seen
