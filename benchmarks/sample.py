"""Sampling on one GPU: tokens a second, beside transformers' `generate` and what the memory's bandwidth allows.

Random weights, no early end, prompts all different (or `--groups` of equal ones). The limit counts, for every decoding step,
all weights and the live part of the cache once, over the bandwidth of a large copy measured in the same run.

    python benchmarks/sample.py --shape qwen2.5-1.5b --rows 128 --out benchmarks/results/sample-qwen2.5-1.5b.json
    python benchmarks/sample.py --shape smollm2-135m --rows 512 --out benchmarks/results/sample-smollm2-135m.json
    python benchmarks/sample.py --tiny      # the script itself, on a CPU: the kernels run in Triton's interpreter
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if "--tiny" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton must know before it is loaded, and torch loads it

import numpy as np
import torch

from milonga.engine.base import Decoding, Ledger, Request
from milonga.engine.local import sampler
from milonga.engine.local.policy import Policy
from shapes import SHAPES, conditions, keep, make_policy, parse, peaks, spread, timed

if TYPE_CHECKING:
    from milonga.engine.local.cuda.sampler import CudaSampler


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


def kinds(prof: Any, device: str) -> dict[str, float]:
    """Milliseconds on the device by kind of kernel."""
    names = {
        "attention": ("_attend",), "norms": ("_add_norm",), "gate": ("_gate",), "rotary and cache": ("_rotate",),
        "choosing": ("_reduce_parts", "_choose"),
        "products": ("gemm", "cutlass", "nvjet", "splitK", "cublas"),
    }  # fmt: skip
    found: Counter[str] = Counter()
    for event in prof.key_averages():
        spent = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        if spent > 0 and device in str(event.device_type).lower():
            kind = next((k for k, parts in names.items() if any(p in event.key for p in parts)), "other")
            found[kind] += spent / 1e3
    return dict(found.most_common())


def measure(args: argparse.Namespace, device: str) -> dict[str, Any]:
    """Ours and `generate` in turn; then, where the kernels run, what one decoding step costs and on what."""
    policy = make_policy(args.shape, device)
    policy.eos = []
    requests = make_requests(args.rows, args.prompt, args.groups, policy.causal.config.vocab_size)
    decoding, tokens = Decoding(args.new), args.rows * args.new
    kernels = make_kernel_sampler(policy, args.tiny) if device == "cuda" or args.tiny else None

    def sample() -> None:
        if kernels is None:
            sampler.sample(policy, requests, decoding, args.rows, Ledger())
        else:
            kernels.sample(requests, decoding, args.rows, Ledger())

    speed = 1e9 * peaks(device, args.tiny)["gb_per_s"]
    first = timed(sample, device)
    times = [timed(sample, device) for _ in range(args.repeats)]
    token_bytes = kernels.decoder.weights.token_bytes if kernels is not None and kernels.decoder is not None else 0
    policy.model = policy.model.to(policy.compute_dtype)  # the way transformers is used for generation
    generate(policy, requests, min(4, args.new))
    other = [timed(lambda: generate(policy, requests, args.theirs), device) for _ in range(2)]
    mine, most = tokens / spread(times)["median"], limit(policy, token_bytes, args.rows, args.prompt, args.new, speed)
    them = args.rows * args.theirs / min(other)
    result = {name: getattr(args, name) for name in ("shape", "rows", "prompt", "new", "theirs")}
    result |= {"seconds": spread(times), "first": first, "tokens/s": mine, "generate tokens/s": them, "limit tokens/s": most}
    result |= {"over generate": mine / them, "of the limit": mine / most, "bandwidth": speed}
    return result if kernels is None else result | measure_steps(kernels, sample, args, device)


def make_kernel_sampler(policy: Policy, tiny: bool) -> CudaSampler:
    """The sampler with kernels; in a tiny run they are interpreted on the CPU."""
    from milonga.engine.local.cuda import sampler as kernels

    if tiny:
        kernels.STRIDE = kernels.SMALLEST = 1  # the interpreter takes milliseconds for each program
    return kernels.CudaSampler(policy)


def measure_steps(ours: CudaSampler, sample: Callable[[], None], args: argparse.Namespace, device: str) -> dict[str, Any]:
    """Milliseconds of a decoding step in the middle of a row, and where they go; the same of a whole call."""
    decoder = ours.decoder
    assert decoder is not None

    def step(times: int) -> None:
        for _ in range(times):
            decoder.step(args.rows, False)

    decoder.rows["live"].fill_(1)
    decoder.rows["rooms"].fill_(10 * args.new)
    decoder.rows["slots"].copy_(decoder.order)
    decoder.rows["positions"].fill_(args.prompt + args.new // 2)
    decoder.rows["counts"].zero_()
    result: dict[str, Any] = {"step ms": 1e3 * timed(lambda: step(args.steps), device) / args.steps}
    decoder.rows["positions"].fill_(args.prompt + args.new // 2)
    profiled = max(1, args.steps // 8)
    activity = torch.profiler.ProfilerActivity.CUDA if device == "cuda" else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as prof:
        timed(lambda: step(profiled), device)
    result["step ms by kind"] = {kind: ms / profiled for kind, ms in kinds(prof, device).items()}
    with torch.profiler.profile(activities=[activity]) as prof:
        timed(sample, device)
    result["call ms by kind"] = kinds(prof, device)
    if device == "cuda":
        result["peak memory GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="qwen2.5-1.5b")
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--groups", type=int, default=1, help="rows that share a prompt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=64, help="decoding steps that are timed alone")
    parser.add_argument("--theirs", type=int, help="new tokens for transformers' generate; as many as ours by default")
    args = parse(parser, shape="tiny", rows=2, prompt=4, new=2, repeats=1, steps=1)
    args.theirs = args.theirs or args.new
    device = "cuda" if torch.cuda.is_available() and not args.tiny else "cpu"
    keep(conditions(device) | measure(args, device), args.out)


if __name__ == "__main__":
    main()
