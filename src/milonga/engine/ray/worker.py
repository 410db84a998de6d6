"""A worker: a process with some policies in a local engine of its own, whole or as one shard of several.

Invariants: what a worker does is what the local engine does; workers of one group are called alike, in the same order; a call
gives back what it cost, and nothing is charged twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh

from milonga.config import PolicySection, VllmSection
from milonga.engine.base import Completion, Decoding, LearnReport, Ledger, Request
from milonga.engine.local import LocalEngine
from milonga.engine.local.policy import Policy
from milonga.engine.ray import sharding
from milonga.errors import RunFolderError
from milonga.types import Floats, Parsed, Problem, Rollout, Rollouts, Segment, TrainBatch

Arrays = list[NDArray[np.float32]]
Charges = dict[str, dict[str, float]]
PROBES, PROBE_TOKENS = 4, 24


@dataclass(frozen=True)
class Setup:
    """What a worker is made from."""

    policies: Mapping[str, PolicySection]
    device: str
    rows: int
    vllm: VllmSection | None
    threads: int
    crowded: bool = False
    """Whether another worker may be on the same GPU."""
    transfer: str | None = None
    """For a sampler: the vLLM backend that sends it live weights; None if they come through Ray's object store."""


@dataclass(frozen=True)
class Facts:
    """What is known of a policy when its model is loaded."""

    context: int
    shapes: tuple[tuple[int, ...], ...]
    dtype: str


class Pulse(Ledger):
    """A ledger that also knows when something was last computed."""

    def __init__(self) -> None:
        super().__init__()
        self.busy, self.moved = False, time.monotonic()

    def mark(self, *_: Any) -> None:
        self.moved = time.monotonic()

    def charge(self, policy: str, work: str, tokens: int, flops: float) -> None:
        self.mark()
        super().charge(policy, work, tokens, flops)

    def idle_seconds(self) -> float:
        """Seconds since the call in progress last computed something; 0 if there is none."""
        return time.monotonic() - self.moved if self.busy else 0.0


@ray.remote(concurrency_groups={"pulse": 1})
class Worker:
    """The actor. `beat` answers while `call` computes."""

    def __init__(self, setup: Setup, rank: int, size: int) -> None:
        self.setup, self.rank, self.size = setup, rank, size
        self.pulse = Pulse()
        self.work: Work | None = None
        self.store: Any = None

    def meet(self) -> tuple[str, int]:
        """Open the rendezvous (TCP store) of a group's workers on the first one; return its host and port."""
        host = ray.util.get_node_ip_address()
        self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False)
        return host, int(self.store.port)

    def build(self, place: tuple[str, int] | None, patience: float) -> dict[str, Facts]:
        """Load the models; join the others, where there are any."""
        torch.set_num_threads(self.setup.threads)
        if place is not None:
            if self.store is None:
                self.store = TCPStore(*place, is_master=False, wait_for_workers=False)
            if self.setup.device == "cuda":
                torch.cuda.set_device(0)  # Ray shows a worker its own
            # NCCL refuses two workers on one GPU.
            backend = "cpu:gloo,cuda:nccl" if self.setup.device == "cuda" and not self.setup.crowded else "gloo"
            limit = timedelta(seconds=patience)
            dist.init_process_group(backend, store=self.store, rank=self.rank, world_size=self.size, timeout=limit)
        self.work = Work(self.setup, self.size > 1, self.pulse)
        return {name: self.work.facts(name) for name in self.setup.policies}

    def call(self, method: str, *args: Any) -> tuple[Any, Charges]:
        """What the method of that name gives back, and what it cost. Of a group the first worker speaks for all."""
        assert self.work is not None
        torch.set_num_threads(self.setup.threads)  # a thread's own setting, and calls need not come in the same thread
        self.pulse.policies = {}
        self.pulse.busy = True
        self.pulse.mark()
        try:
            value = getattr(self.work, method)(*args)
        finally:
            self.pulse.busy = False
        speaks = self.rank == 0 or method == "sample"
        return value if speaks else None, self.pulse.to_json()

    @ray.method(concurrency_group="pulse")  # type: ignore[untyped-decorator]
    def beat(self) -> float:
        return self.pulse.idle_seconds()


class Work:
    """What a worker can be asked for. Everything but `sample` is asked of all workers of a group together."""

    def __init__(self, setup: Setup, sharded: bool, pulse: Pulse) -> None:
        # Shards go to their devices layer by layer; the whole model would not always fit on one.
        device = "cpu" if sharded else setup.device
        self.engine = LocalEngine(setup.policies, device, setup.rows, setup.vllm)
        self.engine.ledger = pulse
        self.sharded, self.first = sharded, not sharded or dist.get_rank() == 0
        self.rows, self.transfer = setup.rows, setup.transfer
        self.links: dict[tuple[str, int], Any] = {}
        """Ways to send a policy's weights to its samplers, by their number."""
        if setup.transfer is not None:
            for name in setup.policies:
                self.engine.get_vllm_sampler(name).host.transfer = setup.transfer
        for policy in self.engine.policies.values():
            if sharded:
                mesh = init_device_mesh(setup.device, (dist.get_world_size(),))
                sharding.shard(policy, mesh, dist.new_group(backend="gloo"))
            _hook_passes(policy, pulse)

    def policy(self, name: str) -> Policy:
        return self.engine.policy(name)

    def facts(self, name: str) -> Facts:
        policy = self.policy(name)
        return Facts(policy.context, tuple(tuple(p.shape) for p in policy.parameters), str(policy.compute_dtype))

    def sample(self, policy: str, parts: Sequence[list[Request]], decoding: Decoding, tag: str) -> list[Completion]:
        """Continue this worker's part of the requests."""
        requests = parts[dist.get_rank() if self.sharded else 0]
        if self.transfer is not None and tag != "live":
            self.engine.get_vllm_sampler(policy).forget_weights()  # vLLM holds one version at a time
        if not self.sharded:
            return self.engine.sample(policy, requests, decoding, tag)
        with self.policy(policy).use_version(tag), sharding.gather_weights(self.policy(policy)):
            return self.engine.sample(policy, requests, decoding)

    def score(self, policy: str, rollouts: Rollouts, tag: str) -> list[Floats]:
        return self.engine.score(policy, rollouts, tag)

    def values(self, policy: str, rollouts: Rollouts, tag: str) -> list[Floats]:
        return self.engine.values(policy, rollouts, tag)

    def learn(self, train_batch: TrainBatch) -> LearnReport:
        return self.engine.learn(train_batch)

    def publish(self, policy: str) -> int:
        return self.engine.publish(policy)

    def snapshot(self, policy: str, tag: str) -> None:
        self.engine.snapshot(policy, tag)

    def copy(self, policy: str, tag: str) -> None:
        """Copy the policy's own version under another tag to its live weights."""
        self.engine.copy(policy, policy, tag)

    def take(self, policy: str, arrays: Arrays) -> None:
        """Set the live weights to those of another policy; the optimizer starts anew."""
        chosen = self.policy(policy)
        chosen.assign(self._shard_arrays(chosen, arrays))
        chosen.optimizer, chosen.gradients = chosen.make_optimizer(), None

    def weights(self, policy: str, tag: str) -> Arrays:
        """The weights of policy@tag that are trained, whole: with LoRA the adapter alone."""
        whole = sharding.gather_tensors(self.policy(policy), tag)
        return [tensor.cpu().numpy() for tensor in whole if self.first]  # for the others there may be no room

    def hold(self, policy: str, tag: str, arrays: Arrays) -> None:
        """Sample from these weights when policy@tag is asked for."""
        chosen = self.policy(policy)
        tensors = self._shard_arrays(chosen, arrays)
        if tag == "live":
            chosen.assign(tensors)
        else:
            chosen.tags[tag] = [chosen.store_tensor(tensor.clone()) for tensor in tensors]

    def send(self, policy: str, number: int, sampler: Any, backend: str) -> None:
        """The live weights to a sampler's worker, by vLLM's own transfer."""
        from milonga.engine.ray import transfer  # needs vLLM, which is optional

        chosen, place = self.policy(policy), (policy, number)
        with transfer.explain_failures(chosen, backend):
            if place in self.links and self.links[place].client.sampler != sampler:
                self.links.pop(place).shutdown()  # that one was lost
            if place not in self.links:
                self.links[place] = transfer.make_link(chosen, sampler, backend, dist.get_rank() if self.sharded else 0)
            self.links[place].send_weights()

    def receive(self, policy: str, phase: str, told: Mapping[str, Any]) -> None:
        """The other end of `send`: what vLLM is to be told."""
        self.engine.get_vllm_sampler(policy).receive(phase, told, self.rows)

    def _shard_arrays(self, policy: Policy, arrays: Arrays) -> list[torch.Tensor]:
        pairs = zip(arrays, policy.parameters, strict=True)
        # A copy: what the store holds is not to be written to.
        return [sharding.shard_like(torch.from_numpy(array.copy()), p.detach()) for array, p in pairs]

    def probe(self, policy: str, tag: str) -> Floats:
        """Log-probabilities of a few fixed rows, to be compared with those of other workers."""
        chosen = self.policy(policy)
        if self.transfer is not None and tag == "live" and self.engine.get_vllm_sampler(policy).received:
            return np.concatenate(
                self.engine.get_vllm_sampler(policy).score([row.ids for row in _make_probe_rows(chosen)], self.rows)
            )
        if chosen.head is not None:
            return np.concatenate(self.engine.values(policy, _make_probe_rows(chosen), tag))
        return np.concatenate(self.engine.score(policy, _make_probe_rows(chosen), tag))

    def save(self, policy: str, folder: Path) -> dict[str, Any]:
        chosen, file = self.policy(policy), folder / f"{policy}.safetensors"
        if self.sharded:
            sharding.save(chosen, file)
        else:
            save_file(chosen.get_state(), file)
        return {"version": chosen.version, "updates": chosen.updates, "start": chosen.fingerprint()}

    def load(self, policy: str, folder: Path, saved: Mapping[str, Any]) -> None:
        chosen, file = self.policy(policy), folder / f"{policy}.safetensors"
        if saved["start"] != chosen.fingerprint():
            raise RunFolderError(
                f"policy '{policy}' did not start from what '{chosen.section.model}' holds now: "
                "its KL reference would change; put the original model back"
            )
        if self.sharded:
            sharding.load(chosen, file)
        else:
            chosen.load_file(file)
        chosen.version, chosen.updates = saved["version"], saved["updates"]

    def export(self, policy: str, folder: Path, merged: bool) -> None:
        if not self.sharded:
            self.engine.export(policy, folder, merged)
            return
        tensors = [tensor.cpu() for tensor in sharding.gather_tensors(self.policy(policy), "live") if self.first]
        if self.first:
            whole = LocalEngine({policy: self.policy(policy).section}, "cpu")
            whole.policy(policy).assign(tensors)
            whole.export(policy, folder, merged)

    def checkpoint_bytes(self) -> int:
        return self.engine.checkpoint_bytes()


def _hook_passes(policy: Policy, pulse: Pulse) -> None:
    """Register hooks that mark every pass of the model. Written-out passes do not call the model, but its rotary module."""
    rotary = getattr(policy.backbone, "rotary_emb", None)
    for module in (policy.causal, policy.backbone, rotary):
        if module is not None:
            module.register_forward_pre_hook(pulse.mark)


def _make_probe_rows(policy: Policy) -> Rollouts:
    """Make the probe: fixed rows that are the same for every worker of a policy."""
    drawn = np.random.default_rng(0)
    length = min(PROBE_TOKENS, policy.context)
    rows = drawn.integers(0, len(policy.codec.tokenizer), (PROBES, length))
    parts = (Segment("probe", 0, length, trained=True),)
    return Rollouts(
        Rollout(str(i), "", Problem("", "", ""), ids, parts, np.zeros(length), "", Parsed(None, 0.0))
        for i, ids in enumerate(rows)
    )
