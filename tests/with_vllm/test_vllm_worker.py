"""vLLM on a CPU inside a worker of Ray, beside a local engine that has learned the same. Run by `make test-vllm`."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("ray")

from engine_helpers import requests, rollout_of, section, train_batch
from milonga.config import PlacementSection, VllmSection
from milonga.engine import Decoding
from milonga.engine.local import LocalEngine
from milonga.engine.ray import RayEngine
from milonga.types import Rollouts, TrainBatch

CLOSE = 1e-4


def taught(policy: str, rows: Rollouts) -> TrainBatch:
    made = train_batch(rows, [1.0, -1.0, 0.5])
    made.policy = policy
    return made


def test_two_adapters_are_served_by_one_worker_with_what_was_published() -> None:
    sections = {name: section("embedded", lora={"rank": 4}, lr=1e-2) for name in ("p", "q")}
    local = LocalEngine(sections, device="cpu")
    vllm = VllmSection(cpu_cache_gib=0.1)
    placement = PlacementSection(cpus=0.1, samplers=1, policies={"q": {"learners": 2}})
    ray = RayEngine(sections, placement, device="cpu", rows=64, vllm=vllm, threads=1)
    contexts = [np.arange(30, 30 + n) for n in (4, 7, 12)]
    try:
        assert ray.samplers["p"] is ray.samplers["q"]
        for turn in range(2):
            for policy in ("p", "q"):
                asked = requests(contexts, turn)
                done = ray.sample(policy, asked, Decoding(12))
                rows = Rollouts(rollout_of(r.context, d) for r, d in zip(asked, done, strict=True))
                for row, known in zip(rows, local.score(policy, rows), strict=True):
                    assert np.abs(row.logprobs - known).max() < CLOSE
                for engine in (ray, local):
                    engine.learn(taught(policy, rows))
                    engine.publish(policy)
    finally:
        ray.close()
