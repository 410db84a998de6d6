"""Tiny real parts for the engine's tests: random models of four architectures, five tokenizers, rollouts by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from milonga.config import LoraSection, PolicySection
from milonga.engine import Completion, Decoding, Request
from milonga.engine.local import LocalEngine
from milonga.objectives import make_objective
from milonga.types import Floats, Parsed, Problem, Rollout, Rollouts, Segment, TrainBatch

torch.set_num_threads(1)

SPECIALS = ["<pad>", "<bos>", "<eos>", "<|user|>", "<|model|>"]
CORPUS = [
    "the quick brown fox jumps over the lazy dog. the answer is 42; is it right? step 1: 3+4=7. step 2: 7*2=14.",
    "naïve café déjà vu — 東京タワー 🙂👍🏽 Ünïcödé",
]
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<|model|>{% endif %}"


@cache
def tokenizer(kind: str) -> Any:
    """bytes: byte-level BPE with merges. chat: the same with a chat template, and a BOS before plain text. word:
    WordPiece. meta: metaspace BPE with byte fallback, as from SentencePiece. unigram: could spell specials itself."""
    build = {"bytes": _bytes, "chat": _chat, "word": _word, "meta": _meta, "unigram": _unigram}[kind]
    wrapped = PreTrainedTokenizerFast(tokenizer_object=build(), pad_token="<pad>", bos_token="<bos>", eos_token="<eos>")
    wrapped.add_special_tokens({"extra_special_tokens": SPECIALS[3:]})
    if kind in ("word", "unigram"):
        wrapped.add_special_tokens({"unk_token": "<unk>"})
    if kind == "chat":
        wrapped.chat_template = TEMPLATE
    return wrapped


def _bytes() -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"initial_alphabet": alphabet, "special_tokens": SPECIALS, "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=300, **options)
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _chat() -> Tokenizer:
    backend = _bytes()
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return backend


def _word() -> Tokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.decoder = decoders.WordPiece(cleanup=False)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=[*SPECIALS, "<unk>"], show_progress=False)
    backend.train_from_iterator([*CORPUS, "a<|b|>c<d>e| xmodel xuser xpad xbos"], trainer)
    return backend


def _meta() -> Tokenizer:
    pieces = [*SPECIALS, *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz.<>|:"]
    pieces += ["▁t", "he", "▁the", "is", "▁is"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("i", "s"), ("▁", "is")]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    backend = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _unigram() -> Tokenizer:
    """A vocabulary that could spell a special token from ordinary text: the model itself prefers the whole name."""
    pieces = [(name, 0.0) for name in [*SPECIALS, "<unk>"]] + [(c, -5.0) for c in "▁abcdefghijklmnopqrstuvwxyz.<>|"]
    backend = Tokenizer(models.Unigram([*pieces, ("▁the", -3.0), ("▁is", -3.0)], unk_id=5))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.decoder = decoders.Metaspace(prepend_scheme="first")
    return backend


TINY = {"vocab_size": 320, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = {**TINY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}


def make_model(arch: str, seed: int = 0) -> Any:
    """Random weights, wide enough that distributions are far from uniform. The vocabulary is padded, as real ones."""
    torch.manual_seed(seed)
    if arch == "llama":
        config: Any = LlamaConfig(**SMALL, tie_word_embeddings=True, max_position_embeddings=256)
        model: Any = LlamaForCausalLM(config)
    elif arch == "qwen2":
        config = Qwen2Config(**SMALL, num_key_value_heads=2, tie_word_embeddings=False, max_position_embeddings=256)
        model = Qwen2ForCausalLM(config)
    elif arch == "qwen3":
        extra = {"num_key_value_heads": 2, "head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}
        model = Qwen3ForCausalLM(Qwen3Config(**SMALL, **extra, max_position_embeddings=256))
    elif arch == "gpt2":
        model = GPT2LMHeadModel(GPT2Config(**TINY, n_embd=32, n_layer=2, n_head=4, n_positions=96))
    elif arch == "gemma2":
        extra = {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 12, "final_logit_softcapping": 5.0}
        model = Gemma2ForCausalLM(Gemma2Config(**SMALL, **extra, max_position_embeddings=256))
    else:
        raise ValueError(arch)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(9.0)
    return model.eval()


ARCHITECTURES = ("llama", "qwen2", "gpt2", "gemma2")


def kernel_model(arch: str, layers: int = 2, seed: int = 0) -> Any:
    """Random weights in the shapes that the CUDA kernels know: grouped heads, biases, norms of heads, odd numbers of heads."""
    torch.manual_seed(seed)
    shape = TINY | {"hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": layers, "max_position_embeddings": 256}
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16}
    if arch == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**shape, **heads, tie_word_embeddings=True))
    elif arch == "qwen2":
        four = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
        model = Qwen2ForCausalLM(Qwen2Config(**shape | four, tie_word_embeddings=False))
    elif arch == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**shape, **heads, tie_word_embeddings=True))
    else:
        raise ValueError(arch)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(6.0)
            else:
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


def model_folder(root: Path, arch: str = "llama", kind: str = "bytes", seed: int = 0) -> str:
    """An ordinary Hugging Face folder."""
    folder = root / f"{arch}-{kind}-{seed}"
    if not folder.exists():
        make_model(arch, seed).save_pretrained(folder)
        tokenizer(kind).save_pretrained(folder)
    return str(folder)


def chat_folder(root: Path) -> str:
    """A random model with a chat template and room for prompts in prose."""
    folder = model_folder(root, kind="chat")
    config = Path(folder) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 4096}))
    return folder


def section(model: str, lora: dict[str, Any] | None = None, warmup: int = 0, **options: Any) -> PolicySection:
    """Without warm-up, unless a test is about it: whole steps move the weights by more than rounding does."""
    return PolicySection(model=model, lora=LoraSection(**lora) if lora is not None else None, warmup=warmup, **options)


def engine_of(model: str, rows: int = 512, **options: Any) -> LocalEngine:
    """One policy, `p`, on the CPU."""
    return LocalEngine({"p": section(model, **options)}, device="cpu", rows=rows)


def prompts(count: int, seed: int = 0, shortest: int = 3, longest: int = 14, vocab: int = 300) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(5, vocab, rng.integers(shortest, longest + 1)) for _ in range(count)]


def requests(contexts: Sequence[np.ndarray], seed: int = 0) -> list[Request]:
    return [Request(context, 1_000_003 * (seed + 1) + 7919 * i) for i, context in enumerate(contexts)]


def rollout_of(context: np.ndarray, completion: Completion, temperature: float = 1.0, name: str = "t") -> Rollout:
    return rollout(context, completion.ids, completion.logprobs, temperature, name)


def rollout(
    context: Sequence[int] | np.ndarray,
    output: Sequence[int] | np.ndarray,
    logprobs: np.ndarray | None = None,
    temperature: float = 1.0,
    name: str = "t",
) -> Rollout:
    start, count = len(context), len(output)
    known = np.zeros(count) if logprobs is None else logprobs
    return Rollout(
        id=name,
        agent="solver",
        problem=Problem(name, "", ""),
        ids=np.concatenate([np.asarray(context, dtype=np.int64), np.asarray(output, dtype=np.int64)]),
        segments=(Segment("prompt", 0, start), Segment("solver", start, start + count, "p", 0, trained=True)),
        logprobs=np.concatenate([np.zeros(start), known]),
        text="",
        parsed=Parsed(None, 0.0),
        temperature=temperature,
    )


def sample_rollouts(engine: LocalEngine, count: int = 8, tokens: int = 10, temperature: float = 1.0, seed: int = 0) -> Rollouts:
    """What policy `p` samples itself: the rows of a policy gradient."""
    contexts = prompts(count, seed)
    done = engine.sample("p", requests(contexts, seed), Decoding(tokens, temperature))
    return Rollouts(rollout_of(c, d, temperature, f"t{i}") for i, (c, d) in enumerate(zip(contexts, done, strict=True)))


def constant(rollouts: Rollouts, values: Sequence[float]) -> list[Floats]:
    """An advantage per row, on its trained tokens."""
    return [np.where(t.mask, value, 0.0) for t, value in zip(rollouts, values, strict=True)]


def train_batch(rollouts: Rollouts, values: Sequence[float] | None = None, preset: str = "grpo", **switches: Any) -> TrainBatch:
    loss = make_objective(preset, switches).loss
    return TrainBatch("p", loss, rollouts, None if values is None else constant(rollouts, values))


def weights(engine: LocalEngine, policy: str = "p") -> list[torch.Tensor]:
    return [p.detach().clone() for p in engine.policy(policy).parameters]


def same_bits(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def mixed_rows(count: int = 9, longest: int = 40) -> Rollouts:
    """Rows of very different lengths, with made-up log-probabilities."""
    contexts, outputs = prompts(count, 0, 1, 12), prompts(count, 1, 1, longest)
    pairs = zip(contexts, outputs, strict=True)
    return Rollouts(rollout(c, o, np.full(len(o), -3.0), 0.9, f"t{i}") for i, (c, o) in enumerate(pairs))


def stirred(engine: LocalEngine, size: float = 0.2) -> LocalEngine:
    """An adapter's B starts at zero, a value head too: nothing would be seen of them."""
    drawn = torch.Generator().manual_seed(1)  # on the CPU: the same numbers for every device
    policy = engine.policy("p")
    policy.assign(
        [
            size * torch.randn(p.shape, generator=drawn) if "lora_" in name or "value_head" in name else p.detach().clone()
            for name, p in zip(policy.names, policy.parameters, strict=True)
        ]
    )
    return engine


def gradients(engine: LocalEngine, taught: TrainBatch) -> list[torch.Tensor]:
    """What a step would be taken with; the step itself is not taken."""
    found: list[torch.Tensor] = []
    policy = engine.policy(taught.policy)
    step = policy.optimizer.step

    def keep() -> None:
        found.extend(torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in policy.parameters)

    try:
        policy.optimizer.step = keep  # type: ignore
        engine.learn(taught)
    finally:
        policy.optimizer.step = step  # type: ignore
    return found


def gap(left: list[torch.Tensor], right: list[torch.Tensor]) -> float:
    """Of all gradients, and the worst of single tensors: one that is missing or in the wrong place would hide in the sum."""
    total = torch.sqrt(sum((b.double() ** 2).sum() for b in right))
    apart = [(a.double() - b.double()).norm() for a, b in zip(left, right, strict=True)]
    worst = max(float(d / b.double().norm().clamp(min=1e-3 * total)) for d, b in zip(apart, right, strict=True))
    return max(worst, float(torch.stack(apart).norm() / total))


def soft_folder(root: Path) -> str:
    """Weights of the usual size: the sharp distributions of the other models would make rounding look worse than it is."""
    folder = root / "soft"
    if not folder.exists():
        model = make_model("qwen2")
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(4.0 / 9.0)
        model.save_pretrained(folder)
        tokenizer("bytes").save_pretrained(folder)
    return str(folder)
