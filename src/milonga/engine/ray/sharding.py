"""A policy whose weights, gradients and moments lie in shards on several workers (FSDP2).

The model's own forward pass runs through `fully_shard`ed layers: each gathers its weights when it is reached and lets go of
them after it; gradients are summed, not averaged, since the learner's denominators are those of all rows (law 5). Optimizer,
clipping and tags work on the shards as they work on whole tensors.

Invariants: every worker makes the same passes in the same order; between passes nothing but shards is held; what leaves a group
(weights for samplers, checkpoints, exports) is whole.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_parts
from torch.distributed.checkpoint.state_dict_saver import save as save_parts
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from milonga.engine.local.data_parallel import DataParallel, Found
from milonga.engine.local.learner import compute_token_logprobs, run_empty_pass
from milonga.engine.local.policy import COUNTER, Policy, choose_compute_dtype


class GroupDataParallel(DataParallel):
    """A part of the rows: those of one worker of a process group, by rank. Numbers are exchanged by the CPU (`talk`)."""

    def __init__(self, talk: Any) -> None:
        self.talk = talk
        self.rank, self.workers = dist.get_rank(talk), dist.get_world_size(talk)

    def select_own_rows(self, sizes: Sequence[int], units: Sequence[int] | None = None) -> list[int]:
        """Units in order of length are dealt out in turn: every worker gets about as many tokens."""
        rows: dict[int, list[int]] = {}
        for row in range(len(sizes)):
            rows.setdefault(row if units is None else units[row], []).append(row)
        order = sorted(rows, key=lambda unit: max(sizes[row] for row in rows[unit]))
        return sorted(row for unit in order[self.rank :: self.workers] for row in rows[unit])

    def max_over_workers(self, passes: int) -> int:
        found = torch.tensor(passes)
        dist.all_reduce(found, dist.ReduceOp.MAX, self.talk)
        return int(found)

    def sum_over_workers(self, values: Tensor) -> Tensor:
        found = values.cpu()
        dist.all_reduce(found, dist.ReduceOp.SUM, self.talk)
        return found.to(values.device)

    def gather_by_row(self, found: dict[int, Found]) -> dict[int, Found]:
        parts: list[Any] = [None] * self.workers
        dist.all_gather_object(parts, found, self.talk)
        return {row: value for part in parts for row, value in part.items()}

    def gather_tensor(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        shares = tensor.is_cuda and dist.get_backend(tensor.device_mesh.get_group()) == "gloo"
        if shares and tensor.placements[0].is_shard():
            # Workers on one GPU, and torch 2.11: gathered by gloo there, shards end in a segmentation fault.
            parts: list[Any] = [None] * self.workers
            dist.all_gather_object(parts, tensor.to_local().cpu(), self.talk)
            return torch.cat(parts).to(tensor.device)
        return tensor.full_tensor()

    def cut_like(self, tensor: Tensor, like: Tensor) -> Tensor:
        return shard_like(tensor, like)

    @torch.no_grad()
    def get_local_part(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Shell(nn.Module):
    """The root of what is sharded: within its forward pass the weights outside of layers (embedding, head) are whole."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy
        self.model = policy.model
        self.head = policy.head

    def forward(self, compute: Callable[..., Any], *args: Any) -> Any:
        return compute(self.policy, *args)


def shard(policy: Policy, mesh: DeviceMesh, talk: Any) -> None:
    """Cut a whole policy, alike on all workers, into shards on the mesh's devices."""
    policy.fingerprint()  # of whole tensors, while there are any
    size = sum(p.numel() for p in policy.causal.parameters())
    shell = Shell(policy)
    for layer in _find_decoder_layers(policy):
        fully_shard(layer, mesh=mesh)
    # Not left whole after the pass: a later change of the shards would not be seen.
    fully_shard(shell, mesh=mesh, reshard_after_forward=True)
    for module in _list_sharded_modules(shell):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    policy.shell, policy.parallel = shell, GroupDataParallel(talk)
    policy.names, policy.parameters = policy.find_trainable()
    policy.device = policy.parameters[0].device
    policy.optimizer = policy.make_optimizer()
    for tag, tensors in policy.tags.items():
        policy.tags[tag] = [
            policy.store_tensor(shard_like(t, p).clone()) for t, p in zip(tensors, policy.parameters, strict=True)
        ]
    policy.compute_dtype = choose_compute_dtype(policy.section, size, mesh.device_type)
    with torch.no_grad():
        # The first pass tells the layers that the shell is their root: sampling reaches them without it.
        run_empty_pass(policy, compute_token_logprobs)


def _find_decoder_layers(policy: Policy) -> list[nn.Module]:
    found = next((m for m in policy.backbone.modules() if isinstance(m, nn.ModuleList)), None)
    return [] if found is None else list(found)


def _list_sharded_modules(shell: nn.Module) -> list[FSDPModule]:
    return [module for module in shell.modules() if isinstance(module, FSDPModule)]


@contextmanager
def gather_weights(policy: Policy) -> Iterator[None]:
    """Gather all weights on every worker, for any number of passes: no worker waits for another meanwhile."""
    if policy.shell is None:
        yield
        return
    modules = _list_sharded_modules(policy.shell)
    try:
        for module in modules:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
        with torch.no_grad():
            yield
    finally:
        for module in modules:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()


def gather_tensors(policy: Policy, tag: str) -> Iterator[Tensor]:
    """The weights of policy@tag, whole, one after another. All workers take part; who needs none of them lets each go."""
    live = [p.detach() for p in policy.parameters]
    for tensor, like in zip(live if tag == "live" else policy.get_tag(tag), live, strict=True):
        yield policy.parallel.gather_tensor(policy.fetch_to_device(tensor, like))


def shard_like(tensor: Tensor, like: Tensor) -> Tensor:
    """Shard a full tensor like the one it is to be copied into: this worker's shard, if that one is sharded."""
    if not isinstance(like, DTensor):
        return tensor.to(like.device)
    mesh = like.device_mesh
    parts = tensor.chunk(mesh.size(), 0)  # as FSDP2 cuts: later workers may get nothing
    rank = mesh.get_local_rank()
    part = parts[rank] if rank < len(parts) else tensor[:0]
    return DTensor.from_local(
        part.to(like.to_local().device), mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def save(policy: Policy, file: Path) -> None:
    """Write the policy's state through torch's distributed checkpoint: every worker its shards, as safetensors, which are then
    put together into the one file that a whole policy would have written."""
    parts = file.with_suffix(".parts")
    writer = HuggingFaceStorageWriter(str(parts), save_distributed=True, enable_consolidation=True)
    # As vectors: the step that puts files together writes zeros for tensors without dimensions.
    state = {key: tensor if tensor.dim() else tensor.reshape(1) for key, tensor in policy.collect_tensors().items()}
    save_parts(state, storage_writer=writer, process_group=_get_cpu_group(policy))
    if dist.get_rank() == 0:
        (written,) = parts.glob("*.safetensors")
        written.replace(file)
        shutil.rmtree(parts)
    dist.barrier(_get_cpu_group(policy))


def load(policy: Policy, file: Path) -> None:
    """Load a training state, sharded or not when it was written: every worker reads its shards."""
    state, counters = _make_empty_state(policy, file)
    # The reader takes all files of a folder: one of its own, which is nobody else's, should this worker not live to remove it.
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / file.name).symlink_to(file.resolve())
        load_parts(state, storage_reader=HuggingFaceStorageReader(folder), process_group=_get_cpu_group(policy))
    policy.load_state(state | counters)


def _make_empty_state(policy: Policy, file: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Make empty tensors for a file's state, each like its parameter; also return the optimizer's step counters, which have
    another shape."""
    like = dict(zip(policy.names, policy.parameters, strict=True))
    with safe_open(file, framework="pt") as stored:
        keys = list(stored.keys())
        counters = {key: stored.get_tensor(key) for key in keys if key.startswith(COUNTER)}

    def room(key: str) -> Tensor:
        found = torch.empty_like(like[key.partition("/")[2]].detach())
        return found if key.startswith("live/") else policy.store_tensor(found)

    return {key: room(key) for key in keys if key not in counters}, counters


def _get_cpu_group(policy: Policy) -> Any:
    assert isinstance(policy.parallel, GroupDataParallel)
    return policy.parallel.talk
