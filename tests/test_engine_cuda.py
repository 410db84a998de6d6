"""The kernels of the CUDA sampler on a CPU, by Triton's interpreter: the same tokens and the same books as the portable one.

`scripts/check_gpu.py` checks the same on a device, with graphs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine_helpers import engine_of, kernel_model, model_folder, prompts, requests, section, tokenizer
from milonga.engine import Decoding
from milonga.engine.base import Ledger
from milonga.engine.local import LocalEngine
from milonga.errors import UserError

pytest.importorskip("triton", reason="the kernels are written in Triton")

from milonga.engine.local import memory
from milonga.engine.local.cuda import sampler
from milonga.engine.local.cuda.decoder import CHUNK, Piece, _passes
from milonga.engine.local.cuda.weights import unsuited


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
    assert unsuited(policy) is None
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


def test_other_architectures_are_refused_with_the_reason(tmp_path: Path) -> None:
    policy = engine_of(model_folder(tmp_path, "gpt2")).policy("p")
    assert "GPT2LMHeadModel is none of" in (unsuited(policy) or "")
    odd = engine_of(model_folder(tmp_path, "llama")).policy("p")
    assert unsuited(odd) == "its heads have 8 dimensions"


def test_long_prompts_are_cut_into_passes_and_go_on_in_order() -> None:
    pieces = [Piece(0, 0, np.arange(CHUNK - 10)), Piece(1, 0, np.arange(30)), Piece(2, 0, np.arange(2 * CHUNK))]
    passes = _passes(pieces)
    assert [sum(len(p.ids) for p in found) for found in passes] == [CHUNK, CHUNK, CHUNK, 20]
    for slot, whole in enumerate(pieces):
        parts = [p for found in passes for p in found if p.slot == slot]
        assert np.concatenate([p.ids for p in parts]).tolist() == whole.ids.tolist()
        assert [p.first for p in parts] == np.cumsum([0, *(len(p.ids) for p in parts[:-1])]).tolist()
    assert _passes([Piece(0, 0, np.arange(0))]) == []


def test_caches_share_what_learning_will_not_want() -> None:
    assert memory.share(free=100, total=100, promises=0, waiting=0) == 45
    assert memory.share(free=100, total=100, promises=0, waiting=1) == 22
    assert memory.share(free=100, total=100, promises=50, waiting=0) == 20
    assert memory.share(free=30, total=100, promises=50, waiting=0) == 0


def test_what_learning_will_allocate_is_a_gradient_and_two_moments(engines: dict[str, LocalEngine]) -> None:
    policies = [engines[name].policy("p") for name in ("llama", "qwen2")]
    assert memory.promised(policies) == 3 * 4 * sum(p.numel() for policy in policies for p in policy.parameters)


def test_weights_are_counted_before_they_are_moved() -> None:
    model = kernel_model("llama", layers=1)
    count = sum(p.numel() for p in model.parameters())
    half = {"dtype": "bfloat16"}
    # float32: weights and start; bfloat16: a copy to sample with.
    assert memory.weight_bytes(section("m", **half), model, False) == count * (2 * 4 + 2)
    assert memory.weight_bytes(section("m", ema=0.9, **half), model, False) == count * (3 * 4 + 2)
    assert memory.weight_bytes(section("m", kind="scalar", **half), model, False) == count * 2 * 4
    assert memory.weight_bytes(section("m", lora={"rank": 2}, **half), model, False) == count * (4 + 2)
    assert memory.weight_bytes(section("m", lora={"rank": 2}, **half), model, True) == count * 2
    assert memory.weight_bytes(section("m", **half), model, False, copied=False) == count * 2 * 4


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
    with pytest.raises(UserError, match=r"policy 'p' cannot be sampled: the keys and values of a row of 64 tokens need"):
        sampler.CudaSampler(engines["llama"].policy("p")).sample(requests(prompts(1)), Decoding(4), 2, Ledger())


def test_a_decoder_is_kept_where_memory_has_made_it_smaller_than_was_asked(
    engines: dict[str, LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = sampler.CudaSampler(engines["llama"].policy("p"))
    monkeypatch.setattr(sampler, "cache_bytes", lambda *_: 3 * 64 * made.weights.token_bytes)
    asked = requests(prompts(4, longest=4))
    made.sample(asked, Decoding(2), 4, Ledger())
    first = made.decoder
    assert first is not None and first.slots == 2
    made.sample(asked, Decoding(2), 4, Ledger())
    assert made.decoder is first
