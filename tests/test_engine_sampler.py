"""The sampler: log-probabilities that the learner agrees with (law 6), rows that know no neighbours (law 7)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_helpers import (
    ARCHITECTURES,
    engine_of,
    make_model,
    model_folder,
    prompts,
    requests,
    rollout_of,
    section,
    tokenizer,
)
from milonga.engine import Completion, Decoding, Request
from milonga.engine.base import Ledger
from milonga.engine.local import LocalEngine, sampler
from milonga.engine.local.sampler import draw_tokens, draw_uniform
from milonga.types import Part, Rollouts
from numerics import rounding

MODELS = (*ARCHITECTURES, "embedded")
TOLERANCE = dict.fromkeys(ARCHITECTURES, 1e-5) | {"embedded": 5e-5}
"""Of the worst token. The embedded model is trained: logits near 20 lose more to float32. The mean is within 1e-5."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def engines(root: Path) -> dict[str, LocalEngine]:
    return {name: engine_of("embedded" if name == "embedded" else model_folder(root, name)) for name in MODELS}


def contexts(name: str, count: int, seed: int = 0) -> list[np.ndarray]:
    return prompts(count, seed, vocab=259 if name == "embedded" else 300)


def gaps(engine: LocalEngine, asked: list[Request], done: list[Completion], temperature: float = 1.0) -> np.ndarray:
    """Between sampling and a fresh forward pass, of all sampled tokens."""
    rollouts = Rollouts(rollout_of(r.context, d, temperature) for r, d in zip(asked, done, strict=True))
    scores = engine.score("p", rollouts)
    return np.concatenate([np.abs(s - t.logprobs)[t.mask] for s, t in zip(scores, rollouts, strict=True)])


def ids(done: list[Completion]) -> list[list[int]]:
    return [d.ids.tolist() for d in done]


# Law 6: sampler and learner agree.


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.7])
@pytest.mark.parametrize("name", MODELS)
def test_sampling_logprobs_equal_a_fresh_forward(engines: dict[str, LocalEngine], name: str, temperature: float) -> None:
    asked = requests(contexts(name, 6))
    done = engines[name].sample("p", asked, Decoding(24, temperature))
    found = gaps(engines[name], asked, done, temperature)
    rows = Rollouts(rollout_of(r.context, d, temperature) for r, d in zip(asked, done, strict=True))
    assert found.max() <= 2 * rounding(engines[name], rows) and found.mean() < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_groups_that_share_a_prefill_agree_with_a_fresh_forward(engines: dict[str, LocalEngine], name: str) -> None:
    shared = [context for context in contexts(name, 3) for _ in range(4)]
    done = engines[name].sample("p", requests(shared), Decoding(12))
    assert gaps(engines[name], requests(shared), done).max() < TOLERANCE[name]
    assert len({tuple(d.ids) for d in done}) > 3, "rows of a group have randomness of their own"


@pytest.mark.parametrize("name", MODELS)
def test_rows_left_after_compaction_agree_with_a_fresh_forward(
    engines: dict[str, LocalEngine], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    compact = sampler._Batch._compact
    monkeypatch.setattr(sampler, "COMPACT_BELOW", 1.0)
    monkeypatch.setattr(sampler._Batch, "_compact", lambda self, *a: counts.append(len(self.place)) or compact(self, *a))
    monkeypatch.setattr(engines[name].policy("p"), "eos", list(range(2, 40)))
    asked = requests(contexts(name, 12))
    done = engines[name].sample("p", asked, Decoding(20))
    assert len(counts) >= 3, "rows left the batch one after the other"
    assert gaps(engines[name], asked, done).max() < TOLERANCE[name]


def test_greedy_reports_logprobs_at_temperature_one(engines: dict[str, LocalEngine]) -> None:
    asked = requests(contexts("llama", 4))
    done = engines["llama"].sample("p", asked, Decoding(8, temperature=0.3, greedy=True))
    assert gaps(engines["llama"], asked, done).max() < 1e-5


@pytest.mark.parametrize("name", MODELS)
def test_greedy_is_what_transformers_generates(engines: dict[str, LocalEngine], name: str) -> None:
    engine = engines[name]
    asked = requests(contexts(name, 4, seed=3))
    done = engine.sample("p", asked, Decoding(16, greedy=True))
    policy = engine.policy("p")
    for request, completion in zip(asked, done, strict=True):
        context = torch.from_numpy(request.context)[None]
        theirs = policy.model.generate(
            context, attention_mask=torch.ones_like(context), do_sample=False, max_new_tokens=16,
            eos_token_id=policy.eos, pad_token_id=policy.pad,
        )  # fmt: skip
        assert completion.ids.tolist() == theirs[0, len(request.context) :].tolist()


# Law 7: a row does not know its neighbours.


@pytest.mark.parametrize("name", MODELS)
def test_a_row_does_not_depend_on_neighbours_order_or_chunk_size(
    engines: dict[str, LocalEngine], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines[name]
    asked = requests(contexts(name, 9))
    together = ids(engine.sample("p", asked, Decoding(12)))
    alone = [ids(engine.sample("p", [request], Decoding(12)))[0] for request in asked]
    backwards = ids(engine.sample("p", asked[::-1], Decoding(12)))[::-1]
    monkeypatch.setattr(engine, "rows", 4)
    in_chunks = ids(engine.sample("p", asked, Decoding(12)))
    assert together == alone == backwards == in_chunks


def test_another_key_gives_another_output(engines: dict[str, LocalEngine]) -> None:
    context = contexts("llama", 1)[0]
    one, same, other = engines["llama"].sample("p", [Request(context, k) for k in (1, 1, 2)], Decoding(12))
    assert one.ids.tolist() == same.ids.tolist() != other.ids.tolist()


def test_a_longer_limit_only_appends(engines: dict[str, LocalEngine]) -> None:
    asked = requests(contexts("qwen2", 5))
    short = ids(engines["qwen2"].sample("p", asked, Decoding(6)))
    long = ids(engines["qwen2"].sample("p", asked, Decoding(15)))
    assert [row[:6] for row in long] == short


# Randomness.


def splitmix64(key: int, step: int) -> int:
    """The reference, in plain numbers."""
    wrap = (1 << 64) - 1
    z = (key + (step + 1) * 0x9E3779B97F4A7C15) & wrap
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & wrap
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & wrap
    return z ^ (z >> 31)


@settings(deadline=None, derandomize=True)
@given(st.integers(0, (1 << 63) - 1), st.integers(0, 100_000))
def test_uniform_is_the_top_of_splitmix64(key: int, step: int) -> None:
    assert float(draw_uniform(torch.tensor([key]), step)) == (splitmix64(key, step) >> 40) / (1 << 24)


def test_uniform_has_a_known_value() -> None:
    assert splitmix64(1234567, 0) == 6457827717110365317  # from the reference implementation of splitmix64


def test_uniform_is_uniform_over_keys_and_over_steps() -> None:
    over_keys = draw_uniform(torch.arange(40_000), 7)
    over_steps = torch.cat([draw_uniform(torch.tensor([99]), step) for step in range(4_000)])
    for drawn in (over_keys, over_steps):
        assert float(drawn.min()) >= 0 and float(drawn.max()) < 1
        counts = torch.histc(drawn, 20, 0, 1)
        expected = len(drawn) / 20
        assert float(((counts - expected) ** 2 / expected).sum()) < 43.8  # chi-square, 19 degrees, p = 0.001


weights_and_chance = st.tuples(
    st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-9, 1e-3, 1.0, 3.0]), min_size=2, max_size=12).filter(any),
    st.sampled_from([0.0, 1 - 2**-24, 0.5, 2**-24]) | st.floats(0, 1 - 2**-24, width=32),
)


@settings(deadline=None, derandomize=True)
@given(weights_and_chance)
def test_pick_never_returns_a_token_of_probability_zero(case: tuple[list[float], float]) -> None:
    weights, chance = case
    logp = torch.log_softmax(torch.tensor([weights]).log(), dim=-1)
    chosen = int(draw_tokens(logp, torch.tensor([chance])))
    assert 0 <= chosen < len(weights) and weights[chosen] > 0


def test_pick_frequencies_match_the_probabilities() -> None:
    p = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])
    count = 50_000
    chosen = draw_tokens(p.log().expand(count, -1).contiguous(), draw_uniform(torch.arange(count) * 31 + 5, 3))
    seen = torch.bincount(chosen, minlength=5) / count
    assert torch.allclose(seen, p, atol=4 * 0.5 / count**0.5)
    assert seen[1] == 0


# Ends.


def test_eos_is_included_trained_and_not_in_the_text(engines: dict[str, LocalEngine], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engines["llama"]
    monkeypatch.setattr(engine.policy("p"), "eos", list(range(2, 30)))
    done = engine.sample("p", requests(contexts("llama", 30)), Decoding(10))
    assert {d.finish for d in done} == {"eos", "length"}
    for d in done:
        ended = [token in range(2, 30) for token in d.ids]
        assert len(d.ids) == len(d.logprobs) == len(d.ends) <= 10
        assert not any(ended[:-1]) and ended[-1] == (d.finish == "eos")
        spoken = d.ids[:-1] if d.finish == "eos" else d.ids
        assert d.text == engine.policy("p").codec.decode_ids(spoken.tolist())
        assert d.ends[-1] == len(d.text) or d.text.endswith("\ufffd")


@pytest.mark.parametrize("kind", ["bytes", "word", "meta"])
@pytest.mark.parametrize("stop", [("e",), ("é", "is"), ("x", "th", "q", ".")])
def test_nothing_follows_a_stop_string(root: Path, kind: str, stop: tuple[str, ...]) -> None:
    engine = engine_of(model_folder(root, "llama", kind))
    vocab = len(tokenizer(kind))
    free = engine.sample("p", requests(prompts(40, vocab=vocab)), Decoding(24))
    done = engine.sample("p", requests(prompts(40, vocab=vocab)), Decoding(24, stop=stop))
    text = engine.policy("p").codec.decode_ids
    assert "stop" in {d.finish for d in done}
    for whole, d in zip(free, done, strict=True):
        spoken = whole.ids[:-1].tolist() if whole.finish == "eos" else whole.ids.tolist()
        stopped = [n for n in range(1, len(spoken) + 1) if any(s in text(spoken[:n]) for s in stop)]
        assert d.ids.tolist() == (spoken[: stopped[0]] if stopped else whole.ids.tolist())
        assert d.finish == ("stop" if stopped else whole.finish)
        if stopped:
            full = text(d.ids.tolist())
            assert d.text == full[: min(full.find(s) + len(s) for s in stop if s in full)]
        assert (np.diff(d.ends) >= 0).all() and d.ends[-1] <= len(d.text)


def test_a_stop_string_whose_last_character_is_cut_across_tokens_is_seen(
    engines: dict[str, LocalEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engines["embedded"]
    codec = engine.policy("p").codec
    script = codec.encode((Part("a🙂b"),)).tolist()[len(codec.head) :]
    assert len(script) == 6
    monkeypatch.setattr(sampler, "draw_tokens", lambda logp, chance: torch.tensor([script.pop(0)] * len(logp)))
    (done,) = engine.sample("p", [Request(codec.encode((Part("q"),)), 1)], Decoding(9, stop=("🙂",)))
    assert (done.finish, done.text, len(done.ids)) == ("stop", "a🙂", 5)


def test_the_models_context_ends_a_row(root: Path) -> None:
    engine = engine_of(model_folder(root, "gpt2"))
    limit = engine.context_limit("p")
    asked = requests([np.arange(5, 5 + n) for n in (limit - 6, limit - 1, 12)])
    done = engine.sample("p", asked, Decoding(40))
    for request, d in zip(asked, done, strict=True):
        assert d.finish == "eos" or len(d.ids) == min(40, limit - len(request.context))
    assert gaps(engine, asked, done).max() < 1e-5


@pytest.mark.parametrize("kind", ["bytes", "meta"])
def test_tokens_beyond_the_tokenizer_are_sampled_and_have_no_text(
    root: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(model_folder(root, "qwen2", kind))
    monkeypatch.setattr(sampler, "draw_tokens", lambda logp, chance: torch.tensor([315] * len(logp)))
    (done,) = engine.sample("p", requests(prompts(1)), Decoding(3, stop=("x",)))
    assert (done.ids.tolist(), done.text, done.ends.tolist()) == ([315] * 3, "", [0, 0, 0])


# The ledger.


def test_the_ledger_counts_shared_prompts_once_and_every_decoded_token(root: Path) -> None:
    engine = engine_of(model_folder(root))
    shared = [context for context in prompts(3) for _ in range(4)]
    done = engine.sample("p", requests(shared), Decoding(7))
    usage = engine.ledger.policies["p"]
    assert usage.prefill == sum(len(c) for c in prompts(3))
    assert usage.decode == sum(len(d.ids) - 1 for d in done), "the last token of a row is never fed back"
    assert usage.flops > 0 and usage.learn == usage.score == 0


def test_the_ledger_does_not_depend_on_the_neighbours(root: Path) -> None:
    together, alone = engine_of(model_folder(root)), engine_of(model_folder(root), rows=1)
    for engine in (together, alone):
        engine.sample("p", requests(prompts(7)), Decoding(7))
    assert together.ledger.to_json() == alone.ledger.to_json()


def test_policies_with_different_tokenizers_and_models_live_side_by_side(root: Path) -> None:
    models = {"a": model_folder(root, "llama", "bytes"), "b": model_folder(root, "gpt2", "meta")}
    engine = LocalEngine({name: section(model) for name, model in models.items()}, device="cpu")
    for name in models:
        context = engine.encode(name, (Part("the answer is "),))
        (done,) = engine.sample(name, [Request(context, 5)], Decoding(6))
        assert engine.policy(name).codec.tokenizer.decode(done.ids) == done.text


def test_sampling_under_a_tag_uses_that_version(root: Path) -> None:
    engine = engine_of(model_folder(root))
    before = ids(engine.sample("p", requests(prompts(4)), Decoding(10)))
    other = make_model("llama", seed=5)
    engine.policy("p").assign([p.detach() for p in other.parameters()])
    assert ids(engine.sample("p", requests(prompts(4)), Decoding(10))) != before
    assert ids(engine.sample("p", requests(prompts(4)), Decoding(10), tag="ref")) == before


def test_the_books_do_not_depend_on_how_many_rows_are_decoded_side_by_side(engines: dict[str, LocalEngine]) -> None:
    engine = engines["llama"]
    asked = requests([context for context in contexts("llama", 3) for _ in range(4)])
    policy, books = engine.policy("p"), []
    for rows in (512, 4):
        ledger = Ledger()
        sampler.sample(policy, asked, Decoding(6), rows, ledger)
        books.append(ledger.to_json())
    assert books[0] == books[1] and books[0]["p"]["prefill"] == sum(len(r.context) for r in asked[::4])
