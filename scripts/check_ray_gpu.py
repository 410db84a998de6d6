"""On a CUDA device: the engine `ray`, its workers on one GPU, against the local engine on the same GPU.

    python scripts/check_ray_gpu.py [--device cpu] [--out docs/results/ray-gpu-check.json]
    python scripts/check_ray_gpu.py --tiny      # the script itself: two of the policies, on a CPU

Policies of random weights, full and adapters, with one learner and with two; two that share a GPU talk by gloo, since NCCL
refuses that; NCCL is tried with a group of one. In float32: gradients within 1e-5 relative, the same tokens, log-probabilities
within 1e-4. Then workers are killed: what they have learned must come out as if they had not been. Exit code 1 if anything is
off.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from check_gpu import compare
from engine_helpers import gap, prompts, requests
from milonga.config import PlacementSection
from milonga.engine import Decoding
from milonga.engine.local import LocalEngine
from milonga.engine.ray import RayEngine, sharding
from ray_helpers import VALUES, WORKERS, apart, gradients, pid, rows, saved, sections, state, taught
from shapes import conditions, keep, parse

GRADIENTS, LOGPROBS, PARTED = 1e-5, 1e-4, 1
"""Relative; of the worst token; rows whose draw may fall between two roundings."""
WORKER = 0.1
"""Of a GPU: eight of them share it."""

Found = dict[str, float]


def equal(ours: RayEngine, theirs: LocalEngine, policy: str, root: Path) -> Found:
    """Scores, gradients and samples of one policy."""
    found = {"scores": apart(ours.score(policy, rows(), "ref"), theirs.score(policy, rows(), "ref"))}
    for engine in (ours, theirs):
        engine.learn(taught(policy))
    states = [gradients(saved(ours, root / f"{policy} 0"), policy), gradients(saved(theirs, root / f"{policy} 1"), policy)]
    found["gradients"] = gap(*states)
    for engine in (ours, theirs):
        for _ in range(2):
            engine.learn(taught(policy))
        engine.publish(policy)
    asked = requests([*prompts(12), *prompts(12)])
    for tag in ("live", "ref"):
        sampled = compare(ours.sample(policy, asked, Decoding(24), tag), theirs.sample(policy, asked, Decoding(24), tag))
        found |= {f"{tag}: {what}": value for what, value in sampled.items()}
    return found


def history(engine: RayEngine, root: Path, disturb: Callable[[], None]) -> dict[str, torch.Tensor]:
    """What a sharded policy is after two train batches, between which something happens."""
    engine.learn(taught("two"))
    engine.publish("two")
    disturb()
    engine.learn(taught("two", [-value for value in VALUES]))
    engine.publish("two")
    return state(saved(engine, root), "two")


def disturbed(engine: RayEngine, start: Path, root: Path) -> Found:
    """One of two learners is killed, and a sampler: how far the results are from those without, and how long it takes."""
    expected = history(engine, root / "whole", lambda: None)
    engine.load(start)
    killed = time.perf_counter()
    found = history(engine, root / "killed", lambda: os.kill(pid(engine.learners["two"].group, 1), signal.SIGKILL))
    lasted = time.perf_counter() - killed
    worst = max(float((found[key] - expected[key]).abs().max()) for key in expected)
    asked = requests(prompts(12))
    before = engine.sample("one", asked, Decoding(16))
    os.kill(pid(engine.samplers["one"][0].group), signal.SIGKILL)
    again = compare(before, engine.sample("one", asked, Decoding(16)))
    return {"learner: weights": worst, "learner: seconds": lasted, **{f"sampler: {k}": v for k, v in again.items()}}


def sharded_alone(root: Path, device: str) -> Found:
    """FSDP2 over a group of one: by NCCL, where there is a GPU. Gradients and a checkpoint."""
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    mesh = dist.device_mesh.init_device_mesh(device, (1,))
    found = {}
    for policy in ("one", "lora_one"):
        alone = {policy: sections(root)[policy]}
        whole, cut = LocalEngine(alone, device), LocalEngine(alone, "cpu")
        sharding.shard(cut.policy(policy), mesh, dist.new_group(backend="gloo"))
        for engine in (whole, cut):
            engine.learn(taught(policy))
        file = root / f"{policy}.safetensors"
        sharding.save(cut.policy(policy), file)
        kept = {key: tensor.to(device) for key, tensor in state(root, policy).items()}
        names = [key for key in sorted(kept) if key.startswith("optimizer:exp_avg/")]
        expected = whole.policy(policy).get_state()
        found[f"{policy}: gradients"] = gap([kept[n] for n in names], [expected[n].to(device) for n in names])
        scored = cut.score(policy, rows())
        cut.learn(taught(policy))
        sharding.load(cut.policy(policy), file)
        found[f"{policy}: loaded"] = apart(scored, cut.score(policy, rows()))
    dist.destroy_process_group()
    return found


def off(name: str, found: Found) -> list[str]:
    """What is beyond its bound."""
    bounds = {
        "gradients": GRADIENTS,
        "scores": LOGPROBS,
        "loaded": LOGPROBS,
        "worst gap": LOGPROBS,
        "parted": PARTED,
        "weights": 1e-5,
    }
    wrong = []
    for what, value in found.items():
        bound = bounds.get(what.rpartition(": ")[2])
        if bound is not None and not value <= bound:
            wrong.append(f"{name}, {what}: {value:.3g}, allowed {bound:.3g}")
    return wrong


def make_engines(root: Path, args: argparse.Namespace, share: dict[str, float]) -> tuple[RayEngine, LocalEngine]:
    """The same policies by workers of Ray, and in this process. In a tiny run there are as few workers as can be."""
    workers = {"one": {"samplers": 1}, "two": {"learners": 2}} if args.tiny else {name: WORKERS[name] for name in args.policies}
    chosen = {name: sections(root)[name] for name in workers}
    placement = PlacementSection.model_validate({"cpus": 0.1, "heartbeat_s": 60.0, "policies": workers, **share})
    ours = RayEngine(chosen, placement, device=args.device, threads=1)
    return ours, LocalEngine(chosen, device=args.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--policies", nargs="+", choices=list(WORKERS), default=list(WORKERS), help="two and one at least")
    args = parse(parser, device="cpu", policies=["one", "two"])
    result: dict[str, Any] = conditions(args.device)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        began = time.perf_counter()
        share = {"gpus": WORKER} if args.device == "cuda" else {}
        ours, theirs = make_engines(root, args, share)
        result["workers"] = {"started within seconds": time.perf_counter() - began}
        try:
            start = saved(ours, root / "start")
            for policy in args.policies:
                result[policy] = equal(ours, theirs, policy, root)
            ours.load(start)
            result["killed"] = disturbed(ours, start, root)
        finally:
            ours.close()
        (root / "alone").mkdir()
        result["a group of one"] = sharded_alone(root / "alone", args.device)
    result["wrong"] = [line for name, found in result.items() if isinstance(found, dict) for line in off(name, found)]
    keep(result, args.out)
    sys.exit(bool(result["wrong"]))


if __name__ == "__main__":
    main()
