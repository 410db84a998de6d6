"""Placement of workers on machines, and the memory that each needs: computed before anything is started.

Invariants: nothing is loaded for it (shapes come from a model's config); what cannot fit is refused with the numbers. The
figures are lower bounds from sizes; what Ray decides may differ where there are several ways.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from milonga.config import LoraSection, PlacementSection, PolicySection, VllmSection
from milonga.engine.local.engine import group_by_sampler
from milonga.engine.local.memory import CPU_TOKENS, GIB, PASS_TOKENS, activation_bytes_per_token
from milonga.engine.local.models import explain_unloadable, make_source
from milonga.engine.local.policy import choose_compute_dtype
from milonga.errors import ConfigError, UserError

STORED = 2
"""Copies of all weights that the store of a cluster of our own has room for: the next ones come before the last are gone."""


@dataclass(frozen=True)
class Size:
    """Size of one policy, in parameters."""

    config: Any
    total: int
    trained: int
    block: int
    """Parameters of the largest part that sharded workers gather at once: a layer, or all that is outside of layers."""


@dataclass(frozen=True)
class Need:
    """Resources of a group of identical workers."""

    name: str
    workers: int
    cpus: float
    gpus: float
    bytes: int
    """Memory of each worker on its device."""
    host: int = 0
    """Host memory of each worker on a GPU, for what is offloaded."""

    @property
    def device(self) -> str:
        return "cuda" if self.gpus else "cpu"


@dataclass(frozen=True)
class Machine:
    """What a machine offers."""

    name: str
    cpus: float
    gpus: float
    memory: int
    gpu_memory: int | None = None
    """Memory of each GPU; None if unknown here."""


def compute_size(section: PolicySection) -> Size:
    """Compute the size of a policy from the shapes of its model, which need no memory."""
    with explain_unloadable(f"model '{section.model}'"):
        config = AutoConfig.from_pretrained(**make_source(section.model))
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    total = sum(p.numel() for p in model.parameters())
    layers = next((list(m) for m in model.get_decoder().modules() if isinstance(m, nn.ModuleList)), [])
    inside = [sum(p.numel() for p in layer.parameters()) for layer in layers]
    block = max([total - sum(inside), *inside])
    return Size(
        config.get_text_config(),
        total,
        total if section.lora is None else _count_adapter_parameters(model, section.lora),
        block,
    )


def _count_adapter_parameters(model: nn.Module, lora: LoraSection) -> int:
    head = model.get_output_embeddings()  # type: ignore[operator]
    linears = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m is not head]
    chosen = [m for n, m in linears if not lora.targets or n.rpartition(".")[2] in lora.targets]
    return sum(lora.rank * (m.in_features + m.out_features) for m in chosen)


def store_bytes(sizes: Mapping[str, Size], staleness: int = 0) -> int:
    """Room for what goes from learners to samplers, and for older versions that are still sampled from."""
    return (STORED + staleness) * 4 * sum(size.trained for size in sizes.values())


def choose_gpus(placement: PlacementSection, device: str, machines: Sequence[Machine]) -> float:
    """Choose the number of GPUs of each worker."""
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"device '{device}': Ray chooses the GPU of each worker; use auto, cpu or cuda")
    if placement.gpus is not None and placement.gpus > 1 and placement.gpus % 1:
        raise ConfigError(f"placement.gpus is {placement.gpus:g}: Ray gives a part of one GPU, or whole ones")
    there = any(machine.gpus for machine in machines)
    if device == "cpu" or (device == "auto" and not there):
        if placement.gpus:
            raise ConfigError(f"placement.gpus is {placement.gpus:g}, but {'device is cpu' if there else 'there are none'}")
        return 0.0
    if not there:
        raise ConfigError("device 'cuda' was asked for, but no machine of the cluster has a GPU")
    return 1.0 if placement.gpus is None else placement.gpus


def compute_needs(
    sections: Mapping[str, PolicySection],
    sizes: Mapping[str, Size],
    placement: PlacementSection,
    device: str,
    vllm: VllmSection | None,
    machines: Sequence[Machine],
) -> list[Need]:
    """Compute the resources of all groups of a run; configs that no placement can help are refused here."""
    needs = []
    for name, section in sections.items():
        own = placement.for_policy(name)
        _refuse_unshardable(name, section, own, vllm)
        gpus = choose_gpus(own, device, machines)
        refuse_transfer(name, section, own, gpus, vllm, machines)
        kind = "cuda" if gpus else "cpu"
        size = _learner_bytes(section, sizes[name], own, kind)
        host = _offloaded_bytes(section, sizes[name], own, vllm) if _is_offloaded(section, kind) else 0
        needs.append(Need(f"learners of {name}", own.learners, own.cpus, gpus, size, host))
    for names in group_by_sampler(sections):
        count, own = max(placement.for_policy(name).samplers for name in names), placement.for_policy(names[0])
        if count:
            gpus = choose_gpus(own, device, machines)
            size = _sampler_bytes([sections[n] for n in names], [sizes[n] for n in names], "cuda" if gpus else "cpu", vllm)
            needs.append(Need(f"samplers of {', '.join(names)}", count, own.cpus, gpus, size))
    return needs


def _refuse_unshardable(name: str, section: PolicySection, placement: PlacementSection, vllm: VllmSection | None) -> None:
    if placement.learners > 1 and section.recompute:
        raise ConfigError(f"policies.{name}.recompute: sharded learners do not know it; lower micro_tokens, or use one learner")
    if placement.learners > 1 and vllm is not None and not placement.samplers and section.kind != "scalar":
        raise ConfigError(
            f"policy '{name}': vLLM needs whole weights, and {placement.learners} learners have shards: set samplers"
        )


def choose_transfer(section: PolicySection, placement: PlacementSection) -> str | None:
    """Choose the vLLM backend that sends a policy's live weights to its samplers; None: Ray's object store, as for adapters."""
    if placement.transfer in ("auto", "store") or section.lora is not None or section.kind == "scalar":
        return None
    return placement.transfer


def refuse_transfer(
    name: str,
    section: PolicySection,
    placement: PlacementSection,
    gpus: float,
    vllm: VllmSection | None,
    machines: Sequence[Machine],
) -> None:
    chosen, why = choose_transfer(section, placement), None
    if chosen is None:
        return
    if vllm is None:
        why = "only vLLM can be sent weights so: set sampling.sampler=vllm"
    elif not placement.samplers:
        why = "its learners sample themselves, and nothing is sent: set placement.samplers"
    elif not gpus:
        why = "it takes GPUs, and its workers have none"
    elif chosen == "nccl" and gpus < 1:
        why = f"NCCL needs two GPUs, and workers with {gpus:g} of one may share it: set placement.gpus=1, or use ipc"
    elif chosen == "ipc" and (placement.learners > 1 or sum(machine.gpus for machine in machines) != 1):
        why = "learner and sampler must share a GPU, which is certain only for one learner in a cluster of one GPU: use nccl"
    if why is not None:
        raise ConfigError(f"placement.transfer is {chosen}, but for policy '{name}' {why}; or use store")


def _learner_bytes(section: PolicySection, size: Size, placement: PlacementSection, device: str) -> int:
    """Weights, gradients, two moments and the average in float32, in shards; what is gathered, a copy to compute or sample
    with, and the activations of one pass. With `offload` on a GPU the most of it that is there at once: in a pass, in a
    step, or to sample."""
    dtype, count = choose_compute_dtype(section, size.total, device), placement.learners
    version = 4 * size.trained // count
    base = 4 * (size.total - size.trained * (section.lora is None)) // count
    samples = section.kind != "scalar" and not placement.samplers
    if count > 1:
        to_learn, to_sample = 4 * 2 * size.block, 4 * size.total * samples
        held = max(to_learn, to_sample)
    else:
        to_learn = dtype.itemsize * size.total if dtype != torch.float32 else 0
        to_sample = to_learn * samples
        held = to_learn + to_sample
    least = CPU_TOKENS if device == "cpu" else PASS_TOKENS[0]
    activations = (section.micro_tokens or least) * activation_bytes_per_token(size.config, dtype)
    if _is_offloaded(section, device):
        phases = 2 * version + to_learn + activations, (4 + section.optimism) * version, version + to_sample
        return base + max(phases)
    return base + version * (4 + _count_offloaded_versions(section)) + held + activations


def _count_offloaded_versions(section: PolicySection) -> int:
    """Versions of the weights that are only now and then computed with: the average, the last gradients. The start comes on top
    where something uses it."""
    return (section.ema is not None) + section.optimism


def _is_offloaded(section: PolicySection, device: str) -> bool:
    return section.offload and device == "cuda"


def _offloaded_bytes(section: PolicySection, size: Size, placement: PlacementSection, vllm: VllmSection | None) -> int:
    """What a learner with `offload` has in host memory beside its GPU: two moments and what is at rest; while vLLM samples in
    its place, the weights as well."""
    aside = 4 * size.total if vllm is not None and not placement.samplers and section.kind != "scalar" else 0
    return 4 * size.trained * (2 + _count_offloaded_versions(section)) // placement.learners + aside


def _sampler_bytes(sections: Sequence[PolicySection], sizes: Sequence[Size], device: str, vllm: VllmSection | None) -> int:
    """The weights, or the base with its adapters, in float32, and a copy to sample with. Caches take what is left."""
    dtype = choose_compute_dtype(sections[0], sizes[0].total, device)
    adapters = sum(size.trained for section, size in zip(sections, sizes, strict=True) if section.lora is not None)
    held = 4 * (sizes[0].total + adapters)
    if vllm is not None:
        return held + dtype.itemsize * sizes[0].total + (int(vllm.cpu_cache_gib * GIB) if device == "cpu" else 0)
    return held + (len(sizes) * dtype.itemsize * sizes[0].total if device == "cuda" else 0)


def describe_this_machine() -> Machine:
    """Describe this machine, if no cluster is running: what a cluster on it would offer."""
    gpus = torch.cuda.device_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(socket.gethostname(), float(os.cpu_count() or 1), float(gpus), memory, _get_gpu_memory())


def _get_gpu_memory() -> int | None:
    return int(torch.cuda.get_device_properties(0).total_memory) if torch.cuda.is_available() else None


def list_machines() -> list[Machine]:
    """List the machines of the cluster that this process has joined."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    found = []
    for node in nodes:
        offers = node["Resources"]
        known = _get_gpu_memory() if len(nodes) == 1 else None
        name = node["NodeManagerHostname"]
        found.append(Machine(name, offers.get("CPU", 0.0), offers.get("GPU", 0.0), int(offers.get("memory", 0)), known))
    return found


@dataclass
class Room:
    """What is left of a machine."""

    machine: Machine
    cpus: float
    gpus: list[float]
    """Free part of each GPU: a worker's part of one is never put together from several."""
    memory: float

    def take(self, need: Need) -> bool:
        """Give a worker its place; False where there is none."""
        known = self.machine.gpu_memory
        if need.gpus and known is not None and need.bytes > known * min(1.0, need.gpus):
            return False
        memory, part, count = need.host if need.gpus else need.bytes, min(1.0, need.gpus), math.ceil(need.gpus)
        chosen = [number for number, free in enumerate(self.gpus) if part <= free + 1e-9][:count]
        if need.cpus > self.cpus + 1e-9 or memory > self.memory or len(chosen) < count:
            return False
        self.cpus -= need.cpus
        self.memory -= memory
        for number in chosen:
            self.gpus[number] -= part
        return True

    def __str__(self) -> str:
        known = self.machine.gpu_memory
        each = "" if known is None else f", GPUs of {known / GIB:.1f} GiB"
        whole, parts = sum(free >= 1 for free in self.gpus), [free for free in self.gpus if 1e-9 < free < 1]
        gpus = " + ".join(f"{free:g}" for free in (whole, *parts))
        return f"{self.machine.name} {self.cpus:g} CPU, {gpus} GPU, {self.memory / GIB:.1f} GiB{each}"


def place_workers(needs: Sequence[Need], machines: Sequence[Machine]) -> list[list[str]]:
    """A machine for each worker of each group, the first that has room; refused where there is none."""
    rooms = [Room(m, m.cpus, [1.0] * int(m.gpus), float(m.memory)) for m in machines]
    found = []
    for need in needs:
        chosen: list[str] = []
        for _ in range(need.workers):
            room = next((room for room in rooms if room.take(need)), None)
            if room is None:
                raise UserError(explain_shortage(need, len(chosen), rooms))
            chosen.append(room.machine.name)
        found.append(chosen)
    return found


def explain_shortage(need: Need, placed: int, rooms: Sequence[Room]) -> str:
    wants = f"{need.cpus:g} CPU, {need.gpus:g} GPU and {_format_memory(need)}"
    return (
        f"{need.name}: {need.workers - placed} of {need.workers} workers do not fit. Each needs {wants}; left are "
        f"{'; '.join(map(str, rooms))}. "
        "Lower placement.learners, samplers, cpus (parts of a core are allowed) or gpus, or use smaller models"
    )


def _format_memory(need: Need) -> str:
    offloaded = f" and {need.host / GIB:.2f} GiB of the host" if need.host else ""
    return f"{need.bytes / GIB:.2f} GiB{' of the GPU' if need.gpus else ''}{offloaded}"


def format_lines(needs: Sequence[Need], machines: Sequence[Machine]) -> list[str]:
    """Format the placement of workers as lines for the user."""
    out = []
    for need, where in zip(needs, place_workers(needs, machines), strict=True):
        counted = ", ".join(f"{where.count(name)} on {name}" for name in dict.fromkeys(where))
        each = f"{need.cpus:g} CPU, {need.gpus:g} GPU, {_format_memory(need)}"
        out.append(f"{need.name}: {need.workers} x ({each}): {counted}")
    return out
