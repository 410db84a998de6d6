"""The kernels of the CUDA sampler on a CPU, by Triton's interpreter: the same tokens and the same books as the portable one.

`scripts/check_gpu.py` checks the same on a device, with graphs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engine_helpers import (
    engine_of,
    kernel_model,
    mixed_rows,
    model_folder,
    prompts,
    requests,
    rollout_of,
    section,
    tokenizer,
    train_batch,
)
from milonga.engine import Completion, Decoding, Request
from milonga.engine.base import Ledger
from milonga.engine.local import LocalEngine
from milonga.engine.local.data_parallel import DataParallel
from milonga.errors import OutOfMemory, UserError
from milonga.types import Rollouts

pytest.importorskip("triton", reason="the kernels are written in Triton")

from milonga.engine.local import history, memory
from milonga.engine.local.cuda import kept_slots, sampler
from milonga.engine.local.cuda.decoder import CHUNK, Decoder, Piece, _split_passes
from milonga.engine.local.cuda.kept_slots import KeptSlots
from milonga.engine.local.cuda.weights import Weights, explain_unsuited


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LocalEngine]:
    made = {}
    for arch in ("llama", "qwen2", "qwen3"):
        folder = tmp_path_factory.mktemp(arch)
        kernel_model(arch, layers=1).save_pretrained(folder)
        tokenizer("bytes").save_pretrained(folder)
        made[arch] = engine_of(str(folder))
    return made


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes milliseconds for a program: small strides and batches."""
    monkeypatch.setattr(sampler, "STRIDE", 3)
    monkeypatch.setattr(sampler, "SMALLEST", 1)


@pytest.mark.parametrize(
    ("arch", "decoding"),
    [
        ("llama", Decoding(5)),
        ("qwen2", Decoding(5, temperature=0.7, stop=("e", "th"))),
        ("qwen3", Decoding(4, greedy=True)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_kernels_sample_what_the_portable_sampler_samples(
    engines: dict[str, LocalEngine], arch: str, decoding: Decoding
) -> None:
    engine = engines[arch]
    policy = engine.policy("p")
    assert explain_unsuited(policy) is None
    contexts = prompts(3, seed=1, longest=6)
    asked = requests([contexts[0], contexts[1], contexts[1], contexts[2], contexts[0]])
    engine.ledger = Ledger()
    expected = engine.sample("p", asked, decoding)
    books = Ledger()
    found = sampler.CudaSampler(policy).sample(asked, decoding, 2, books)
    assert [d.ids.tolist() for d in found] == [d.ids.tolist() for d in expected]
    assert [(d.finish, d.text) for d in found] == [(d.finish, d.text) for d in expected]
    assert max(np.abs(a.logprobs - b.logprobs).max() for a, b in zip(found, expected, strict=True)) < 1e-5
    assert books.to_json() == engine.ledger.to_json()


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_slots, "LEAST", 4)


def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of prompts that each refill computes."""
    counts: list[int] = []
    prefill = Decoder.prefill
    monkeypatch.setattr(
        Decoder,
        "prefill",
        lambda self, pieces: counts.append(sum(len(p.ids) for p in pieces)) or prefill(self, pieces),  # type: ignore[func-returns-value]
    )
    return counts


def check_turn(
    engine: LocalEngine, made: sampler.CudaSampler, asked: list[Request], pages: history.Pages | None, rows: int = 8
) -> list[Completion]:
    """One turn by the kernels is what the portable sampler writes, which keeps nothing."""
    expected = engine.sample("p", asked, Decoding(2))
    found = made.sample(asked, Decoding(2), rows, Ledger(), pages)
    assert [d.ids.tolist() for d in found] == [d.ids.tolist() for d in expected]
    assert max(np.abs(a.logprobs - b.logprobs).max() for a, b in zip(found, expected, strict=True)) < 2e-5
    return found


def following(asked: list[Request], done: list[Completion], seed: int) -> list[Request]:
    said = prompts(len(asked), seed, 1, 3)
    return requests([np.concatenate([r.context, d.ids, s]) for r, d, s in zip(asked, done, said, strict=True)], seed)


@pytest.mark.parametrize(("arch", "rows", "gib"), [("llama", 4, 1), ("qwen2", 1, 1), ("qwen2", 2, 0)])
def test_turns_go_on_from_what_slots_hold(
    engines: dict[str, LocalEngine], arch: str, rows: int, gib: int, small_pages: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group, then a turn of each of its rows, then two branches of one; with slots for all histories, and with few."""
    engine = engines[arch]
    policy, made, kept = engine.policy("p"), sampler.CudaSampler(engine.policy("p")), history.LocalHistory(gib << 30)
    made.limit = kept.limit
    made._get_decoder(rows, 8, 64, 2)  # so large that no history is lost when a longer turn comes
    prompt = prompts(1, seed=1, shortest=9, longest=12)[0]
    first = requests([prompt, prompt])
    counts = computed(monkeypatch)
    done = check_turn(engine, made, first, kept.open_pages(policy, "live"), rows)
    second = following(first, done, 1)
    done = check_turn(engine, made, second, kept.open_pages(policy, "live"), rows)
    third = [*following(second[:1], done[:1], 2), *following(second[:1], done[:1], 3)]
    check_turn(engine, made, third, kept.open_pages(policy, "live"), rows)
    # Of a later turn: the last token of the turn before, and what was said but for its last token, which is decoded.
    told = [(first[0], second[0]), (first[0], second[1]), (second[0], third[0]), (second[0], third[1])]
    enough = len(prompt) - 1 + sum(len(after.context) - len(before.context) - 2 for before, after in told)
    whole = sum(len(r.context) - 1 for r in (*first, *second, *third))
    assert sum(counts) <= enough if gib else sum(counts) < whole, "a branch may also go on from what another branch computed"


def test_slots_forget_what_other_weights_computed(engines: dict[str, LocalEngine], small_pages: None) -> None:
    engine = engines["llama"]
    policy, made, kept = engine.policy("p"), sampler.CudaSampler(engine.policy("p")), history.LocalHistory(1 << 30)
    asked = requests(prompts(1, seed=1, shortest=9, longest=12))
    asked = following(asked, check_turn(engine, made, asked, kept.open_pages(policy, "live")), 1)
    assert made.kept.rows
    before = policy.clone()
    try:
        policy.assign([tensor * 1.05 for tensor in before])
        check_turn(engine, made, asked, kept.open_pages(policy, "live"))
    finally:
        policy.assign(before)
    made.kept.use_history(kept.open_pages(policy, "live"))
    assert not made.kept.rows
    made.kept.put(0, "p@live", asked[0].context)
    made.kept.use_history(None)
    assert not made.kept.rows, "outside of a conversation nothing is held"


def test_slots_for_histories_are_bounded_by_their_memory(engines: dict[str, LocalEngine], small_pages: None) -> None:
    engine = engines["llama"]
    made = sampler.CudaSampler(engine.policy("p"))
    kept = history.LocalHistory(2 * 64 * Weights(engine.policy("p")).token_bytes + 5)
    made.limit = kept.limit
    made._get_decoder(1, 8, 64, 2)
    talks = [requests(prompts(1, seed, 9, 12)) for seed in range(4)]
    for asked in talks:  # one conversation after another, in one history
        check_turn(engine, made, asked, kept.open_pages(engine.policy("p"), "live"), 1)
    assert made.decoder is not None and made.decoder.slots == 1 + 2
    found = [made.kept.find("p@live", asked[0].context) is not None for asked in talks]
    assert found == [False, True, True, True], "the oldest left first"


def test_held_slots_are_found_by_the_longest_beginning(small_pages: None) -> None:
    slots, row = KeptSlots(), np.arange(5, 25)
    slots.put(0, "p@live", row[:9])
    slots.put(1, "p@live", np.concatenate([row[:14], [99, 99]]))
    assert slots.find("p@live", row) == (1, 14), "to the token, not to the page"
    assert slots.find("p@live", row[:14]) == (1, 13), "the last token is decoded"
    assert slots.find("p@ref", row) is None and slots.find("p@live", row[1:]) is None
    slots.forget(1)
    assert slots.find("p@live", row) == (0, 9)
    assert slots.find("p@live", row[:4]) is None, "shorter than a page"


def test_other_architectures_are_refused_with_the_reason(tmp_path: Path) -> None:
    policy = engine_of(model_folder(tmp_path, "gpt2")).policy("p")
    assert "GPT2LMHeadModel is none of" in (explain_unsuited(policy) or "")
    odd = engine_of(model_folder(tmp_path, "llama")).policy("p")
    assert explain_unsuited(odd) == "its heads have 8 dimensions"


def test_long_prompts_are_cut_into_passes_and_go_on_in_order() -> None:
    pieces = [Piece(0, 0, np.arange(CHUNK - 10)), Piece(1, 0, np.arange(30)), Piece(2, 0, np.arange(2 * CHUNK))]
    passes = _split_passes(pieces)
    assert [sum(len(p.ids) for p in found) for found in passes] == [CHUNK, CHUNK, CHUNK, 20]
    for slot, whole in enumerate(pieces):
        parts = [p for found in passes for p in found if p.slot == slot]
        assert np.concatenate([p.ids for p in parts]).tolist() == whole.ids.tolist()
        assert [p.first for p in parts] == np.cumsum([0, *(len(p.ids) for p in parts[:-1])]).tolist()
    assert _split_passes([Piece(0, 0, np.arange(0))]) == []


def test_caches_share_what_learning_will_not_want() -> None:
    assert memory.compute_cache_share(free=100, total=100, promises=0, waiting=0) == 45
    assert memory.compute_cache_share(free=100, total=100, promises=0, waiting=1) == 22
    assert memory.compute_cache_share(free=100, total=100, promises=50, waiting=0) == 20
    assert memory.compute_cache_share(free=30, total=100, promises=50, waiting=0) == 0


def test_a_process_may_have_a_share_of_a_device_whether_or_not_it_has_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get_fraction(device: torch.device | int) -> float:
        asked.append(torch.cuda._utils._get_device_index(device))  # as torch reads it: it refuses what has no number
        return 0.25

    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", get_fraction)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert memory.limit_memory(torch.device("cuda"), 100) == memory.limit_memory(torch.device("cuda", 1), 100) == 25
    assert asked == [3, 1]


def test_what_learning_will_allocate_is_a_gradient_and_two_moments(engines: dict[str, LocalEngine]) -> None:
    policies = [engines[name].policy("p") for name in ("llama", "qwen2")]
    assert memory.count_pending_bytes(policies) == 3 * 4 * sum(p.numel() for policy in policies for p in policy.parameters)


def test_a_learner_that_finds_no_room_for_a_row_takes_the_samplers_room(
    engines: dict[str, LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, closed, asked = engines["llama"], [], []
    rollouts = mixed_rows(3, 20)
    monkeypatch.setattr(engine, "samplers", {"p": SimpleNamespace(close=lambda: closed.append(True))})
    for room in (True, False):
        monkeypatch.setattr(memory, "has_room_to_learn", lambda policy, longest, room=room: asked.append(longest) or room)
        engine.learn(train_batch(rollouts, [1.0, -1.0, 0.0]))
        assert len(closed) == (not room)
    assert asked == [max(len(rollout.ids) for rollout in rollouts)] * 2
    engine.learn(replace(train_batch(rollouts, [1.0, -1.0, 0.0]), units=[0, 1, 0]))
    assert asked[-1] == max(len(rollouts[0].ids) + len(rollouts[2].ids), len(rollouts[1].ids)), "a pair is never split"


def test_room_to_learn_is_what_weights_gradients_and_moments_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """One weight that learns (12 bytes to come), all weights in half precision, and for each token of a row its activations and
    eight bytes a logit, in 0.8 of what is left."""
    model = kernel_model("llama", layers=1)
    weight, config = torch.zeros(1, requires_grad=True), model.config
    policy = SimpleNamespace(
        device=torch.device("cuda"), section=SimpleNamespace(recompute=False, offload=False), causal=model,
        compute_dtype=torch.bfloat16, parameters=[weight], optimizer=SimpleNamespace(state={}), shell=None,
        parallel=DataParallel(),
    )  # fmt: skip
    each = memory.activation_bytes_per_token(config, torch.bfloat16) + 8 * config.vocab_size
    needed = 12 + 2 * sum(p.numel() for p in model.parameters()) + 50 * each / 0.8
    monkeypatch.setattr(memory, "measure_free_memory", lambda device: (needed + 1, 10 * needed))
    assert memory.has_room_to_learn(policy, 50) and not memory.has_room_to_learn(policy, 51)
    assert memory.count_working_bytes(policy) == 2 * sum(p.numel() for p in model.parameters())
    policy.section.recompute = True
    assert memory.has_room_to_learn(policy, 10_000), "activations are then not kept"
    policy.section.offload = True
    assert memory.count_working_bytes(policy) == memory.count_pending_bytes([policy]) == 0, "caches are given up before"
    assert memory.count_step_bytes(policy) == 4, "a gradient lies there through all passes, moments come after them"


def test_weights_are_counted_before_they_are_moved() -> None:
    model = kernel_model("llama", layers=1)
    count = sum(p.numel() for p in model.parameters())
    half = {"dtype": "bfloat16"}
    # float32: weights and average; bfloat16: a copy to sample with.
    assert memory.weight_bytes(section("m", **half), model, False) == count * (4 + 2)
    assert memory.weight_bytes(section("m", ema=0.9, **half), model, False) == count * (2 * 4 + 2)
    assert memory.weight_bytes(section("m", kind="scalar", **half), model, False) == count * 4
    assert memory.weight_bytes(section("m", lora={"rank": 2}, **half), model, False) == count * (4 + 2)
    assert memory.weight_bytes(section("m", lora={"rank": 2}, **half), model, True) == count * 2
    assert memory.weight_bytes(section("m", **half), model, False, copied=False) == count * 4


def test_policies_that_do_not_fit_are_refused_with_the_numbers() -> None:
    needs = {"generator": 40 * 2**30, "verifier": 40 * 2**30}
    memory.require_room("verifier", needs, 100 * 2**30)
    with pytest.raises(UserError, match=r"80\.0 GiB \(generator 40\.0, verifier 40\.0\), and 72\.0 of the device's 80\.0 GiB"):
        memory.require_room("verifier", needs, 80 * 2**30)
    with pytest.raises(
        UserError, match=r"and 50\.0 of the device's 100\.0 GiB .* or lower sampling\.vllm\.gpu_memory_utilization"
    ):
        memory.require_room("verifier", needs, 100 * 2**30, lent=0.4)


def test_a_cache_that_does_not_fit_is_refused_with_the_numbers(
    engines: dict[str, LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "cache_bytes", lambda *_: 1000)
    with pytest.raises(OutOfMemory, match=r"policy 'p' cannot be sampled: the keys and values of a row of 64 tokens need"):
        sampler.CudaSampler(engines["llama"].policy("p")).sample(requests(prompts(1)), Decoding(4), 2, Ledger())


def test_before_a_policy_with_offload_learns_samplers_give_up_their_memory(tmp_path: Path) -> None:
    """And what is made again has the sizes of what was given up: the same rows are computed side by side."""
    kernel_model("llama", layers=1).save_pretrained(tmp_path)
    tokenizer("bytes").save_pretrained(tmp_path)
    asked = requests([*prompts(3, longest=8), *prompts(1, shortest=70, longest=70)])  # the last one needs a larger room
    for offload in (True, False):
        engine = LocalEngine({n: section(str(tmp_path), offload=offload) for n in "pq"}, device="cpu")
        for name in "pq":
            engine.samplers[name] = engine._make_cuda_sampler(engine.policy(name))
        made, other = (engine.samplers[name] for name in "pq")
        assert isinstance(made, sampler.CudaSampler) and isinstance(other, sampler.CudaSampler)
        assert made.waiting() == 1
        done = made.sample(asked, Decoding(3), 6, Ledger())
        other.sample(asked[:1], Decoding(2), 6, Ledger())
        first = made.decoder
        assert first is not None and made.waiting() == 0
        rollouts = Rollouts(rollout_of(r.context, d) for r, d in zip(asked[:2], done, strict=False))
        engine.learn(train_batch(rollouts, [0.0, 0.0]))
        assert (made.decoder is None, other.decoder is None) == (offload, offload)
        assert made.waiting() == offload
        again = made.sample(asked[:2], Decoding(3), 6, Ledger())
        assert [d.ids.tolist() for d in again] == [d.ids.tolist() for d in done[:2]]
        last = made.decoder
        assert last is not None and (last.slots, last.room, last.steps) == (first.slots, first.room, first.steps)


def test_a_decoder_is_kept_where_memory_has_made_it_smaller_than_was_asked(
    engines: dict[str, LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sampler.CudaSampler(engines["llama"].policy("p"))
    monkeypatch.setattr(sampler, "cache_bytes", lambda *_: 3 * 64 * Weights(made.policy).token_bytes)
    asked = requests(prompts(4, longest=4))
    made.sample(asked, Decoding(2), 4, Ledger())
    first = made.decoder
    assert first is not None and first.slots == 2
    made.sample(asked, Decoding(2), 4, Ledger())
    assert made.decoder is first
