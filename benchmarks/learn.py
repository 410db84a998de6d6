"""How fast one GPU learns: one GRPO step through `engine.learn`, as a share of the measured peak of its matrix products.

A model of the shape of Qwen2.5-1.5B with random weights; 16,384 tokens a step in rows of 64 to 1,024 tokens; advantages that
are never zero. The peak is that of a large bfloat16 product, measured in the same run. Operations are counted on real tokens:
six per multiplied parameter and token (the head only where it is asked, at trained tokens) and those of causal attention; what
is computed again in the backward pass is not counted. With LoRA it is four per parameter: a frozen weight has no gradient.

    python benchmarks/learn.py --out benchmarks/results/learn.json
    python benchmarks/learn.py --lora 16 --out benchmarks/results/learn-lora.json
    python benchmarks/learn.py --tiny            # the script itself, on a CPU, in seconds
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from milonga.config import LoraSection, PolicySection
from milonga.engine.local import LocalEngine
from milonga.engine.local.learner import make_micro_batches
from milonga.engine.local.models import resolve_model_path
from milonga.engine.local.packed import make_working_weights
from milonga.engine.local.policy import Policy
from milonga.objectives import make_objective
from milonga.types import Parsed, Problem, Rollout, Rollouts, Segment, TrainBatch
from shapes import ENDS, QWEN, QWEN_7B, SMOLLM, TINY, conditions, keep, parse, peaks, repeated, spread, wait

LEARNERS = {"qwen2.5-1.5b": QWEN, "qwen2.5-7b": QWEN_7B, "smollm2-135m": SMOLLM}
PROMPT = 64
"""Tokens of a row that are read and not trained, at most; never more than a quarter of it."""
GROUPS: dict[str, tuple[str, ...]] = {
    "attention": ("flash", "fmha", "attention"),
    "matmul": ("gemm", "nvjet", "cutlass", "cublas", "xmma", "splitk", "addmm", "aten::mm"),
    "optimizer": ("adam", "multi_tensor", "lpnorm", "foreach"),
    "head": ("softmax", "scatter", "gather"),
    "copies": ("memcpy", "memset", "copy", "catarray"),
}
"""Kernels by parts of their names, the first group that matches; the rest is element-wise. The head's products are products."""
HEAD = ("log_softmax", "gather", "exp_")
"""The same for compiled functions: those of the head, among the other element-wise ones."""


def make_model(folder: Path, shape: dict[str, Any], device: str) -> None:
    """Random weights in an ordinary folder, in bfloat16 as most published weights; with the embedded tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model_path("embedded"))
    torch.manual_seed(0)
    config = Qwen2Config(**shape, **ENDS)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).cpu().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def lengths_of(tokens: int, shortest: int, longest: int) -> list[int]:
    """Lengths drawn evenly from a range, which sum up to `tokens`."""
    rng, left, lengths = np.random.default_rng(0), tokens, []
    while left > longest + shortest:
        lengths.append(int(rng.integers(shortest, longest + 1)))
        left -= lengths[-1]
    return [*lengths, left] if left <= longest else [*lengths, left // 2, left - left // 2]


def make_train_batch(engine: LocalEngine, tokens: int, vocabulary: int, longest: int) -> TrainBatch:
    """Random rows with the log-probabilities of the policy itself, as if it had sampled them."""
    rng, rows = np.random.default_rng(1), []
    for i, length in enumerate(lengths_of(tokens, 64, longest)):
        prompt = min(PROMPT, length // 4)
        segments = (Segment("prompt", 0, prompt), Segment("g", prompt, length, "g", 0, trained=True))
        ids, parsed = rng.integers(3, vocabulary, length), Parsed(None, 0.0)
        rows.append(Rollout(str(i), "g", Problem("p", "", ""), ids, segments, np.zeros(length), "", parsed))
    rollouts = Rollouts(rows)
    for rollout, logprobs in zip(rollouts, engine.score("g", rollouts), strict=True):
        rollout.logprobs = logprobs
    advantages = [rng.choice([-1.0, 1.0]) * rng.uniform(0.5, 1.5) * rollout.mask for rollout in rollouts]
    return TrainBatch("g", make_objective("grpo").loss, rollouts, advantages=advantages)


def operations(policy: Policy, train_batch: TrainBatch) -> dict[str, float]:
    """TFLOP of one step. `strict` counts the head only where it is computed; `six_n` counts it at every token."""
    config = policy.causal.config
    tokens = sum(len(t.ids) for t in train_batch.rollouts)
    trained = sum(int(t.mask.sum()) for t in train_batch.rollouts)
    factor = 2 if policy.adapter else 3
    whole = factor * policy.flops(tokens, sum(len(t.ids) ** 2 / 2 for t in train_batch.rollouts))
    idle_head = factor * 2 * config.vocab_size * config.hidden_size * (tokens - trained)
    return {"strict": (whole - idle_head) / 1e12, "six_n": whole / 1e12}


def real_share(policy: Policy, train_batch: TrainBatch) -> float:
    """Real tokens among those that are computed."""
    cut = [
        batch
        for batch in make_micro_batches(policy, train_batch.rollouts, None, make_working_weights(policy))
        if batch is not None
    ]
    return sum(batch.tokens for batch in cut) / sum(batch.ids.numel() for batch in cut)


def group_of(kernel: str) -> str:
    name = kernel.lower()
    if name.startswith("triton_"):  # compiled from our own functions, and named after all that was fused into it
        return "head" if any(part in name for part in HEAD) else "element-wise"
    return next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), "element-wise")


def breakdown(action: Callable[[], Any], device: str, step: float) -> dict[str, Any]:
    """Milliseconds of one step by kind of kernel; idle is what is left of the step's time measured without a profiler."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities) as found:
        action()
        wait(device)
    spent: dict[str, float] = {}
    for event in found.key_averages():
        if event.is_user_annotation:  # spans of others, which would count twice
            continue
        if device == "cuda" and event.device_type == torch.autograd.DeviceType.CUDA:
            spent[event.key] = spent.get(event.key, 0.0) + event.self_device_time_total / 1e3
        elif device == "cpu":
            spent[event.key] = spent.get(event.key, 0.0) + event.self_cpu_time_total / 1e3
    groups: dict[str, float] = {}
    for kernel, milliseconds in spent.items():
        groups[group_of(kernel)] = groups.get(group_of(kernel), 0.0) + milliseconds
    groups["idle"] = max(0.0, step * 1e3 - sum(groups.values()))
    top = sorted(spent.items(), key=lambda item: -item[1])[:25]
    return {"groups_ms": {k: round(v, 2) for k, v in groups.items()}, "top_ms": {k[:110]: round(v, 2) for k, v in top}}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    device = "cpu" if args.tiny or not torch.cuda.is_available() else "cuda"
    shape = TINY if args.tiny else LEARNERS[args.shape]
    tokens, longest = args.tokens, args.longest
    peak = peaks(device, args.tiny)
    with tempfile.TemporaryDirectory() as scratch:
        make_model(Path(scratch), shape, device)
        lora = LoraSection(rank=args.lora, alpha=2.0 * args.lora) if args.lora else None
        options = {"lora": lora, "recompute": args.recompute, "micro_tokens": args.micro_tokens}
        engine = LocalEngine({"g": PolicySection(model=scratch, lr=1e-6, **options)}, device=device)
    policy = engine.policy("g")
    train_batch = make_train_batch(engine, tokens, policy.causal.config.vocab_size, longest)
    reports = []
    times = repeated(lambda: reports.append(engine.learn(train_batch)), device, args.repeats)
    assert all(report.steps == 1 and report.skipped is None for report in reports)
    scoring = repeated(lambda: engine.score("g", train_batch.rollouts), device, min(3, args.repeats))
    work, step = operations(policy, train_batch), statistics.median(times)
    return {
        "what": f"one GRPO step over {tokens} tokens in {len(train_batch.rollouts)} rows of 64 to {longest}",
        **conditions(device),
        "shape": "tiny" if args.tiny else args.shape,
        "parameters": sum(p.numel() for p in policy.causal.parameters()),
        "trained_parameters": sum(p.numel() for p in policy.parameters),
        "computing": str(policy.compute_dtype).removeprefix("torch."),
        "measured_peak": peak,
        "seconds": spread(times),
        "tokens_per_second": tokens / step,
        "tflop": work,
        "share_of_peak": {
            **spread([work["strict"] / t / peak["tflops"] for t in times]),
            "counting_the_head_at_every_token": work["six_n"] / step / peak["tflops"],
        },
        "real_token_share": real_share(policy, train_batch),
        "score_seconds": spread(scoring),
        "peak_memory_gib": reports[-1].peak_gib,
        "grad_norm": reports[-1].grad_norm,
        "mismatch": reports[0].mismatch,
        "breakdown": breakdown(lambda: engine.learn(train_batch), device, step),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(LEARNERS), default="qwen2.5-1.5b")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--longest", type=int, default=1024, help="tokens of a row")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--lora", type=int, default=0, metavar="RANK", help="train an adapter instead of all weights")
    parser.add_argument("--recompute", action="store_true", help="compute activations again in the backward pass")
    parser.add_argument("--micro-tokens", type=int, help="tokens in one pass; by default the engine's own choice")
    args = parse(parser, tokens=256, longest=96, repeats=1)
    keep(measure(args), args.out)


if __name__ == "__main__":
    # Some virtual machines announce AMX and then refuse its instructions; it is read when the first product is computed.
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
    main()
