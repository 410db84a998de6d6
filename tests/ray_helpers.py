"""One engine with real Ray workers for all tests of a session, and ways to disturb it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from safetensors.torch import load_file

from engine_helpers import mixed_rows, section, soft_folder, train_batch
from milonga.config import PlacementSection, PolicySection
from milonga.engine.local import LocalEngine
from milonga.engine.ray import RayEngine, cluster
from milonga.engine.ray.group import Group
from milonga.types import Rollouts, TrainBatch

RANK = {"rank": 4}
WORKERS = {
    "one": {"samplers": 2},
    "two": {"learners": 2},
    "lora_one": {"samplers": 1},
    "lora_two": {"learners": 2},
}
"""Full weights (those of `two` offloaded) and adapters, one learner and two; with samplers (of the adapters, a common one), and
with learners that sample in turns."""
TANGO: dict[str, Any] = {
    "recipe": "tango",
    "turns": 2,
    "device": "cpu",
    "threads": 1,
    "task": {"name": "chain", "ops": 2},
    "batch": {"problems": 4, "rollouts": 4},
    "eval": {"problems": 4, "samples": 2, "every": 2, "bench": 4, "greedy": False},
    "keep": {"checkpoint_every": 1, "rollouts_every": 1},
    "options": {"warmup": 0, "n_generator": 1, "n_verifier": 1},
}
OWN = {"config.toml", "signature", "timing.jsonl", "machine.jsonl", "report.json", "report.html", "lock"}
"""Files that are not the same in two runs that are."""
VALUES = [1.0, -1.0, 0.5, 0.0, 2.0, -0.3, 0.7, -0.9, 0.1]


def sections(root: Path) -> dict[str, PolicySection]:
    options: dict[str, Any] = {"lr": 1e-3, "warmup": 2, "grad_clip": 1e9, "micro_tokens": 64}
    adapted = section(soft_folder(root), lora=RANK, **options)
    whole = section(soft_folder(root), ema=0.9, **options)
    resting = section(soft_folder(root), ema=0.9, offload=True, **options)
    return {"one": whole, "two": resting, "lora_one": adapted, "lora_two": adapted}


def ray_engine(root: Path, device: str = "cpu", **settings: Any) -> RayEngine:
    placement = PlacementSection(**{"cpus": 0.1, "heartbeat_s": 6.0, "policies": WORKERS, **settings})
    return RayEngine(sections(root), placement, device=device, threads=1)


def local_engine(root: Path, device: str = "cpu") -> LocalEngine:
    return LocalEngine(sections(root), device=device)


@contextmanager
def one_cluster() -> Iterator[None]:
    """For all runs of a file, which join it."""
    ours = cluster.connect(PlacementSection(), 0)
    yield
    if ours:
        ray.shutdown()


def taught(policy: str, values: list[float] | None = None, **switches: Any) -> TrainBatch:
    """A replayed train batch: rows of very different lengths, some of which move nothing, and a reference."""
    made = train_batch(mixed_rows(), values or VALUES, **{"kl_coef": 0.05, **switches})
    made.policy = policy
    return made


def state(folder: Path, policy: str) -> dict[str, torch.Tensor]:
    return load_file(folder / f"{policy}.safetensors")


def gradients(folder: Path, policy: str) -> list[torch.Tensor]:
    """Of the first step, from the mean that the optimizer keeps of them: a tenth of the gradient."""
    kept = state(folder, policy)
    return [kept[key] for key in sorted(kept) if key.startswith("optimizer:exp_avg/")]


def saved(engine: RayEngine | LocalEngine, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    engine.save(folder)
    return folder


def pid(group: Group, rank: int = 0) -> int:
    return int(ray.get(group.workers[rank].__ray_call__.remote(lambda worker: os.getpid())))


def apart(left: list[np.ndarray], right: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(left, right, strict=True))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name not in OWN}


def differing(left: Path, right: Path) -> list[str]:
    """Files in which two runs differ that should be the same."""
    ours, theirs = files_of(left), files_of(right)
    return [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]


def rows() -> Rollouts:
    return mixed_rows()
