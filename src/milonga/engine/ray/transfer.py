"""Live weights from learners to samplers by vLLM's own transfer: NCCL from GPU to GPU, CUDA IPC within one.

Each pair of a policy's learners and one of its samplers has a link, made by vLLM's `WeightTransferTrainerFactory` when it is
first used. All learners call `send_weights`, and gather their shards tensor by tensor; the first one sends, and leads the
sampler through the phases init, start, update and finish.

**Untested: NCCL's broadcast**, which takes two GPUs; it is called as vLLM 0.32 documents it. Tested on a CPU: this file, and
vLLM's rendezvous, phases and loading, a TCP store in the place of the broadcast. CUDA IPC: `scripts/check_vllm_gpu.py`.
A transfer that goes wrong does not go unseen: the probe that follows it compares the learners' log-probabilities with those of
vLLM itself.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import RayTaskError
from torch import Tensor
from vllm.distributed.weight_transfer import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

from milonga.engine.local.policy import Policy
from milonga.engine.local.vllm_sampler import FAILURES, iterate_parameters, iterate_weights
from milonga.errors import UserError


class Source(WeightSource):  # type: ignore[misc]
    """A policy's live weights, whole, in the precision it computes in, by the names of a Hugging Face folder."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def metadata(self) -> list[Any]:
        """What an iteration yields, without gathering it."""
        return [ParamMeta(n, self.policy.compute_dtype, tuple(p.shape)) for n, p in iterate_parameters(self.policy)]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return iterate_weights(self.policy)


class Client:
    """A sampler's worker as vLLM's sending side calls it (its protocol `VLLMWeightSyncClient`)."""

    def __init__(self, sampler: Any, policy: str) -> None:
        self.sampler, self.policy = sampler, policy

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call_phase("init_weight_transfer_engine", init_info=init_info)

    def start_weight_update(self) -> None:
        self._call_phase("start_weight_update")

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        self._call_phase("update_weights", update_info=update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Versions are counted by the driver."""
        self._call_phase("finish_weight_update")

    def _call_phase(self, phase: str, **told: Any) -> None:
        try:
            ray.get(self.sampler.call.options(num_returns=2).remote("receive", self.policy, phase, told))
        except RayTaskError as error:
            raise (error.cause or error) from None


def make_link(policy: Policy, sampler: Any, backend: str, rank: int) -> Any:
    """What sends a policy's live weights to a sampler's worker. Made, and then called, by all workers of a group together."""
    client = Client(sampler, policy.name)
    return WeightTransferTrainerFactory.trainer_init(make_init_info(backend, rank), client=client, source=Source(policy))


def make_init_info(backend: str, rank: int) -> Any:
    """How both ends find each other, and what is sent in: buffers of bounded size rather than all weights at once."""
    if backend == "ipc":
        return IPCTrainerInitInfo(rank=rank, packed=True)
    host = ray.util.get_node_ip_address()
    return NCCLTrainerInitInfo(master_address=host, master_port=_find_free_port(), world_size=2, packed=True, rank=rank)


def _find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])


@contextmanager
def explain_failures(policy: Policy, backend: str) -> Iterator[None]:
    """A transfer that cannot be made on these machines is the user's to mend."""
    try:
        yield
    except FAILURES as error:
        told = " ".join(str(error).split())[:400] or type(error).__name__
        raise UserError(
            f"policy '{policy.name}': its weights could not be sent by {backend}: {told}; use placement.transfer=store"
        ) from None
