"""How long samplers of the engine `ray` wait for a learner's weights after each publish, by the ways of `placement.transfer`.

A learner and a sampler share one GPU (or, to try the script, this machine's cores). By the store, weights are gathered on the
host and go through Ray's object store into the sampler, for our own sampler (`own`), or from there into vLLM (`store`). `ipc`
is vLLM's transfer through memory that both processes see. The probe that compares log-probabilities is a part of each.

    python benchmarks/handover.py --out benchmarks/results/handover.json
    python benchmarks/handover.py --tiny      # the script itself, without vLLM
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from milonga.config import PlacementSection, PolicySection, VllmSection
from milonga.engine import Decoding, Request
from milonga.engine.local.models import resolve_model_path
from milonga.engine.ray import RayEngine
from shapes import SHAPES, conditions, keep, parse, spread

WAYS = ("own", "store", "ipc")


def save(shape: str, folder: Path) -> int:
    """A model with random weights; returns how many."""
    torch.manual_seed(0)
    model = SHAPES[shape]()
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(resolve_model_path("embedded")).save_pretrained(folder)
    return int(sum(parameter.numel() for parameter in model.parameters()))


def handed(way: str, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of each publish, and of what the sampler is asked after it."""
    vllm = None if way == "own" else VllmSection(gpu_memory_utilization=0.2)
    share: dict[str, Any] = {"gpus": 0.5} if args.device == "cuda" else {}
    transfer = "ipc" if way == "ipc" else "store"
    placement = PlacementSection(samplers=1, cpus=0.5, transfer=transfer, **share)
    began = time.perf_counter()
    engine = RayEngine({"p": PolicySection(model=str(folder))}, placement, args.device, rows=32, limit=16, vllm=vllm)
    asked = [Request(np.arange(5, 25), key) for key in range(32)]
    try:
        engine.sample("p", asked, Decoding(8))
        started = time.perf_counter() - began
        publishing: list[float] = []
        sampling: list[float] = []
        for _ in range(args.repeats + 1):
            for work, seconds in ((lambda: engine.publish("p"), publishing), (lambda: ask(engine, asked), sampling)):
                began = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - began)
    finally:
        engine.close()
    return {"start_s": started, "publish_s": spread(publishing[1:]), "sample_s": spread(sampling[1:])}


def ask(engine: RayEngine, asked: list[Request]) -> None:
    engine.sample("p", asked, Decoding(8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2.5-1.5b", choices=SHAPES)
    parser.add_argument("--device", default="cuda", choices=("cpu", "cuda"))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--repeats", type=int, default=5)
    args = parse(parser, shape="tiny", device="cpu", ways=["own"], repeats=1)
    with tempfile.TemporaryDirectory() as scratch:
        result: dict[str, Any] = {"shape": args.shape, "parameters": save(args.shape, Path(scratch))}
        for way in args.ways:
            result[way] = handed(way, Path(scratch), args)
            print(way, result[way], flush=True)
    keep(result | conditions(args.device), args.out)


if __name__ == "__main__":
    main()
