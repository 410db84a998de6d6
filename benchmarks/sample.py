"""Sampling on one GPU: tokens a second, beside transformers' `generate` and what the memory's bandwidth allows.

Random weights, no early end, prompts all different (or `--groups` of equal ones). The limit counts, for every decoding step,
all weights and the live part of the cache once, over the bandwidth of a large copy measured in the same run.

    python benchmarks/sample.py --shape qwen2.5-1.5b --rows 128 --out benchmarks/results/sample-qwen2.5-1.5b.json
    python benchmarks/sample.py --shape smollm2-135m --rows 512 --out benchmarks/results/sample-smollm2-135m.json
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from milonga.engine.base import Decoding, Ledger, Request
from milonga.engine.local import sampler
from milonga.engine.local.policy import Policy
from shapes import SHAPES, conditions, keep, make_policy, peaks, spread, timed


def make_requests(rows: int, prompt: int, groups: int, vocabulary: int) -> list[Request]:
    rng = np.random.default_rng(0)
    contexts = [rng.integers(3, vocabulary, prompt) for _ in range(rows // groups)]
    return [Request(contexts[i // groups], 7919 * i + 1) for i in range(rows)]


def limit(policy: Policy, token_bytes: int, rows: int, prompt: int, new: int, speed: float) -> float:
    """Tokens a second if reading weights and live cache were all there is; the prompts are free."""
    parameters = sum(p.numel() for p in policy.parameters) * policy.compute_dtype.itemsize
    live = rows * (prompt + new / 2) * token_bytes
    return rows * speed / (parameters + live)


def generate(policy: Policy, requests: list[Request], new: int) -> None:
    ids = torch.tensor(np.stack([r.context for r in requests]), device=policy.device)
    model = policy.model
    with torch.no_grad():
        model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, top_p=1.0, max_new_tokens=new,
            min_new_tokens=new, pad_token_id=0,
        )  # fmt: skip


def kinds(prof: Any) -> dict[str, float]:
    """Milliseconds on the device by kind of kernel."""
    names = {
        "attention": ("_attend",), "norms": ("_add_norm",), "gate": ("_gate",), "rotary and cache": ("_rotate",),
        "choosing": ("_reduce_parts", "_choose"),
        "products": ("gemm", "cutlass", "nvjet", "splitK", "cublas"),
    }  # fmt: skip
    found: Counter[str] = Counter()
    for event in prof.key_averages():
        if event.self_device_time_total > 0 and "cuda" in str(event.device_type).lower():
            kind = next((k for k, parts in names.items() if any(p in event.key for p in parts)), "other")
            found[kind] += event.self_device_time_total / 1e3
    return dict(found.most_common())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen2.5-1.5b")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--groups", type=int, default=1, help="rows that share a prompt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--theirs", type=int, help="new tokens for transformers' generate; as many as ours by default")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    args.theirs = args.theirs or args.new
    device = "cuda" if torch.cuda.is_available() else "cpu"
    policy = make_policy(args.shape, device)
    policy.eos = []
    requests = make_requests(args.rows, args.prompt, args.groups, policy.causal.config.vocab_size)
    decoding, tokens = Decoding(args.new), args.rows * args.new
    given = {name: getattr(args, name) for name in ("shape", "rows", "prompt", "new", "theirs")}
    result: dict[str, Any] = conditions(device) | given
    if device == "cuda":
        from milonga.engine.local.cuda.sampler import CudaSampler

        ours = CudaSampler(policy)
        token_bytes = ours.weights.token_bytes
        sample = lambda: ours.sample(requests, decoding, args.rows, Ledger())  # noqa: E731
    else:
        token_bytes = 0
        sample = lambda: sampler.sample(policy, requests, decoding, args.rows, Ledger())  # noqa: E731
    speed = 1e9 * peaks(device)["gb_per_s"]
    first = timed(sample, device)
    times = [timed(sample, device) for _ in range(args.repeats)]
    theirs = policy.model.to(policy.compute_dtype)  # the way transformers is used for generation
    policy.model = theirs
    generate(policy, requests, 4)
    other = [timed(lambda: generate(policy, requests, args.theirs), device) for _ in range(2)]
    mine, most = tokens / spread(times)["median"], limit(policy, token_bytes, args.rows, args.prompt, args.new, speed)
    them = args.rows * args.theirs / min(other)
    result |= {"seconds": spread(times), "first": first, "tokens/s": mine, "generate tokens/s": them, "limit tokens/s": most}
    result |= {"over generate": mine / them, "of the limit": mine / most, "bandwidth": speed}
    if device == "cuda":
        decoder = ours.decoder
        assert decoder is not None
        decoder.rows["live"].fill_(1)
        decoder.rows["rooms"].fill_(10 * args.new)
        decoder.rows["slots"].copy_(decoder.order)
        decoder.rows["positions"].fill_(args.prompt + args.new // 2)
        decoder.rows["counts"].zero_()
        result["step ms"] = 1e3 * timed(lambda: [decoder.step(args.rows, False) for _ in range(64)], device) / 64
        decoder.rows["positions"].fill_(args.prompt + args.new // 2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
            timed(lambda: [decoder.step(args.rows, False) for _ in range(8)], device)
        result["step ms by kind"] = {kind: ms / 8 for kind, ms in kinds(prof).items()}
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as prof:
            timed(sample, device)
        result["call ms by kind"] = kinds(prof)
        result["peak memory GiB"] = torch.cuda.max_memory_allocated() / 2**30
    keep(result, args.out)


if __name__ == "__main__":
    main()
