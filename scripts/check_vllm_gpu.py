"""On a CUDA device with a vLLM for it: sampling by vLLM in turns with learning, its sleep, offloaded weights, and CUDA IPC.

    python scripts/check_vllm_gpu.py [--model FOLDER] [--dtype bfloat16] [--out FILE.json]
    python scripts/check_vllm_gpu.py --tiny      # the script itself, on a CPU: our own sampler takes the place of vLLM

Every case is a process of its own, since vLLM gives back all memory only with its process. A case takes a few turns: vLLM
samples, our own forward pass scores what it wrote, a step is learned, and vLLM must then be as near to the new weights. Printed
are the gaps of log-probabilities and the memory of the device with vLLM awake and asleep. The last case sends weights by CUDA
IPC from a learner to a sampler of Ray on the same device; it is left out, and said so, where Ray is not installed. Exit code 1
if anything is off.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from engine_helpers import requests, rollout_of, section, stirred, train_batch
from milonga.config import PlacementSection, VllmSection
from milonga.engine import Completion, Decoding, Engine, Request
from milonga.engine.local import LocalEngine
from milonga.engine.local.vllm_sampler import TOLERANCES
from milonga.types import Rollouts, TrainBatch
from shapes import parse

LORA = {"rank": 8, "alpha": 16}
HALF = "bfloat16"
"""Of policies with adapters: vLLM computes them in no other precision on a GPU."""
CASES: dict[str, dict[str, Any]] = {
    "awake": {},
    "sleep": {"sleep": True},
    "sleep, offload": {"sleep": True, "offload": True},
    "offload": {"offload": True},
    "adapter, awake": {"lora": LORA},
    "adapter, sleep, offload": {"lora": LORA, "sleep": True, "offload": True},
    "two policies, sleep, offload": {"names": ("p", "q"), "sleep": True, "offload": True},
    "whole beside an adapter, sleep": {"names": ("p", "q"), "sleep": True, "mixed": True},
    "ipc": {"ipc": True},
}
TINY_CASES = ("whole beside an adapter, sleep",)
"""What a tiny run tries: one case, with all kinds of weights."""
TURNS, ROWS, TOKENS = 3, 32, 32
SHARE = 0.2
"""Of the device, for each engine of vLLM."""
FREED = 0.5
"""Of an engine's share, that must be free while it sleeps; and at most a tenth of that may be, while it does not."""
GIB = 2**30


def used() -> float:
    """GiB of the device, all processes together, that are not only kept by torch's allocator; 0 on a CPU."""
    if not torch.cuda.is_available():
        return 0.0
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def asked_of(engine: Engine, policy: str, turn: int) -> list[Request]:
    """Groups of four with one prompt."""
    drawn = np.random.default_rng(turn)
    vocabulary = min(engine_vocabulary(engine, policy), 250)
    contexts = [drawn.integers(5, vocabulary, drawn.integers(4, 40)) for _ in range(ROWS // 4)]
    return requests([context for context in contexts for _ in range(4)], turn)


def engine_vocabulary(engine: Engine, policy: str) -> int:
    codec = engine.policy(policy).codec if isinstance(engine, LocalEngine) else engine.codecs[policy]  # type: ignore[attr-defined]
    return len(codec.tokenizer)


def rollouts_of(asked: list[Request], done: list[Completion]) -> Rollouts:
    return Rollouts(rollout_of(r.context, d, name=f"t{i}") for i, (r, d) in enumerate(zip(asked, done, strict=True)))


def gap(engine: Engine, policy: str, rows: Rollouts, tag: str = "live") -> dict[str, float]:
    """Between what vLLM reported and our own forward pass, over all sampled tokens."""
    pairs = zip(engine.score(policy, rows, tag), rows, strict=True)
    apart = np.concatenate([np.abs(scored - row.logprobs)[row.mask] for scored, row in pairs])
    return {"mean": float(apart.mean()), "worst": float(apart.max())}


def taught(policy: str, rows: Rollouts) -> TrainBatch:
    made = train_batch(rows, [1.0, -1.0] * (len(rows) // 2), kl_coef=0.01)
    made.policy = policy
    return made


def watch(engine: LocalEngine, policy: str, seen: list[dict[str, Any]]) -> None:
    """Look at the device just before and just after vLLM goes to sleep; where sleep is off, at the same moments."""
    host = engine.get_vllm_sampler(policy).host
    rest, parameters = host.put_to_sleep, engine.policy(policy).parameters

    def looked(section: VllmSection) -> None:
        away = sum(not parameter.is_cuda for parameter in parameters)
        before = used()
        rest(section)
        seen.append({"policy": policy, "awake": before, "asleep": used(), "ours away": away, "ours": len(parameters)})

    host.put_to_sleep = looked  # type: ignore[method-assign]


def in_turns(model: str, dtype: str, case: dict[str, Any], tiny: bool = False) -> dict[str, Any]:
    """One process that samples by vLLM and learns. In a tiny run our own sampler is asked, on a CPU."""
    names, offload = case.get("names", ("p",)), case.get("offload", False)
    adapted = [case.get("lora")] * len(names) if not case.get("mixed") else [None, LORA]
    options: dict[str, Any] = {"lr": 1e-4, "offload": offload, "ema": 0.9}
    sections = {
        name: section(model, lora=lora, dtype=dtype if lora is None else HALF, **options)
        for name, lora in zip(names, adapted, strict=True)
    }
    vllm = None if tiny else VllmSection(gpu_memory_utilization=SHARE, sleep=case.get("sleep", False))
    engine = stirred(LocalEngine(sections, device="cpu" if tiny else "cuda", rows=ROWS, limit=TOKENS, vllm=vllm), 0.02)
    found: dict[str, Any] = {"before": used(), "gaps": [], "sleep": []}
    for name in () if tiny else names:
        watch(engine, name, found["sleep"])
    for turn in range(1 if tiny else TURNS):
        for name in names:
            asked = asked_of(engine, name, turn)
            rows = rollouts_of(asked, engine.sample(name, asked, Decoding(TOKENS)))
            new = {"policy": name, "turn": turn, **gap(engine, name, rows)}
            report = engine.learn(taught(name, rows))
            engine.publish(name)
            new |= {"steps": report.steps, "learning GiB": report.peak_gib, "after the step": gap(engine, name, rows)["mean"]}
            found["gaps"].append(new)
        start = asked_of(engine, names[0], 100 + turn)
        kept = rollouts_of(start, engine.sample(names[0], start, Decoding(TOKENS), "ref"))
        found["gaps"].append({"policy": f"{names[0]}@ref", "turn": turn, "steps": 1, **gap(engine, names[0], kept, "ref")})
    found["dtypes"] = {name: str(engine.policy(name).compute_dtype) for name in names}
    found["total"] = 0.0 if tiny else torch.cuda.get_device_properties(0).total_memory / GIB
    engine.close()
    return found


def by_ipc(model: str, dtype: str) -> dict[str, Any]:
    """A learner and a sampler of Ray, half a device each; weights go through memory that both processes see."""
    from milonga.engine.ray import RayEngine

    placement = PlacementSection(samplers=1, gpus=0.5, cpus=1, transfer="ipc")
    vllm = VllmSection(gpu_memory_utilization=SHARE)
    sections = {"p": section(model, dtype=dtype, lr=1e-4)}
    engine = RayEngine(sections, placement, device="cuda", rows=ROWS, limit=TOKENS, vllm=vllm)
    found: dict[str, Any] = {"gaps": [], "sleep": [], "dtypes": {"p": engine.facts["p"].dtype}}
    try:
        for turn in range(TURNS):
            asked = asked_of(engine, "p", turn)
            rows = rollouts_of(asked, engine.sample("p", asked, Decoding(TOKENS)))
            new = {"policy": "p", "turn": turn, **gap(engine, "p", rows)}
            report = engine.learn(taught("p", rows))
            engine.publish("p")
            found["gaps"].append(new | {"steps": report.steps, "after the step": gap(engine, "p", rows)["mean"]})
    finally:
        engine.close()
    return found


def wrong(case: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """What a case must not show."""
    limits = {name: TOLERANCES[getattr(torch, dtype.removeprefix("torch."))] for name, dtype in found["dtypes"].items()}
    said = []
    for one in found["gaps"]:
        limit = limits[one["policy"].removesuffix("@ref")]
        if not one["mean"] <= limit:
            said.append(f"too far from our own pass ({limit:g} is allowed): {one}")
        if not one["steps"]:
            said.append(f"nothing was learned: {one}")
    for one in found["sleep"]:
        freed = (one["awake"] - one["asleep"]) / (SHARE * found["total"])
        if freed < FREED if case.get("sleep") else freed > FREED / 10:
            said.append(f"{freed:.2f} of vLLM's share became free between calls: {one}")
        if one["ours away"] != (one["ours"] if case.get("offload") else 0):
            said.append(f"weights of ours were not where they should be while vLLM sampled: {one}")
    return said


def apart(name: str, model: str, dtype: str, tiny: bool) -> dict[str, Any]:
    """A case in a process of its own: what it found, or the end of what it said."""
    command = [sys.executable, __file__, "--model", model, "--dtype", dtype, "--case", name, *(["--tiny"] if tiny else [])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    last = done.stdout.strip().splitlines()[-1:]
    if done.returncode or not last:
        return {"wrong": [f"exit code {done.returncode}: {done.stderr.strip()[-2000:]}"]}
    found: dict[str, Any] = json.loads(last[0])
    return found | {"wrong": wrong(CASES[name], found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded", help="`embedded`, or the folder of a model that vLLM can serve")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--case", choices=CASES, help="only this one, in this process: prints what it found as JSON")
    args = parse(parser)
    if args.case is not None:
        case = CASES[args.case]
        found = by_ipc(args.model, args.dtype) if case.get("ipc") else in_turns(args.model, args.dtype, case, args.tiny)
        print(json.dumps(found))
        return
    result: dict[str, Any] = {}
    for name in TINY_CASES if args.tiny else CASES:
        if CASES[name].get("ipc") and importlib.util.find_spec("ray") is None:
            result[name] = {"left out": "Ray is not installed", "wrong": []}
        else:
            result[name] = apart(name, args.model, args.dtype, args.tiny)
        print(f"{name}: {'WRONG' if result[name]['wrong'] else 'ok'}\n{json.dumps(result[name], indent=1)}", flush=True)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(any(one["wrong"] for one in result.values()))


if __name__ == "__main__":
    main()
