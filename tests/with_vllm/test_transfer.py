"""Weights sent by vLLM's own transfer from learners to a sampler, in workers of Ray on a CPU. Run by `make test-vllm`.

There is no NCCL on a CPU: the tensors take another way between vLLM's two ends (`by_tcp`). All the rest is what runs on GPUs:
our side, and of vLLM the rendezvous, the order of the phases, and the loading of what arrives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

ray = pytest.importorskip("ray")

from vllm import EngineArgs
from vllm.distributed.weight_transfer import VLLMWeightSyncClient, WeightTransferTrainerFactory, ipc_engine, nccl_engine
from vllm.v1.worker.gpu_worker import Worker as VllmWorker

from engine_helpers import model_folder, requests, rollout_of, section, train_batch
from milonga.config import PlacementSection, VllmSection
from milonga.engine import Decoding
from milonga.engine.local import LocalEngine
from milonga.engine.ray import RayEngine, layout, transfer
from milonga.errors import UserError
from milonga.types import Rollouts

CLOSE = 1e-4
SMALL_CACHE = VllmSection(cpu_cache_gib=0.1)


def parameters(function: Callable[..., Any]) -> set[str]:
    return set(inspect.signature(function).parameters)


def test_what_is_called_is_there_under_these_names() -> None:
    assert {"init_info", "client", "source"} <= parameters(WeightTransferTrainerFactory.trainer_init)
    assert {"nccl", "ipc"} <= WeightTransferTrainerFactory._registry.keys()
    assert {"master_address", "master_port", "world_size", "packed", "rank"} <= parameters(nccl_engine.NCCLTrainerInitInfo)
    assert {"packed", "rank"} <= parameters(ipc_engine.IPCTrainerInitInfo)
    assert "weight_transfer_config" in parameters(EngineArgs)
    for sender in (nccl_engine.NCCLTrainerWeightTransferEngine, ipc_engine.IPCTrainerWeightTransferEngine):
        assert parameters(sender.send_weights) == parameters(sender.shutdown) == {"self"}
    phases = {
        "init_weight_transfer_engine": {"init_info"},
        "start_weight_update": set(),
        "update_weights": {"update_info"},
        "finish_weight_update": set(),
        "shutdown_weight_transfer_engine": set(),
    }
    for phase, told in phases.items():
        assert parameters(getattr(VllmWorker, phase)) == {"self", *told}


def test_the_client_answers_to_what_the_protocol_asks() -> None:
    assert isinstance(transfer.Client(None, "p"), VLLMWeightSyncClient)
    asked = [name for name, value in vars(VLLMWeightSyncClient).items() if inspect.isfunction(value) and name[0] != "_"]
    assert len(asked) == 4
    for name in asked:
        assert parameters(getattr(transfer.Client, name)) == parameters(getattr(VLLMWeightSyncClient, name))


@pytest.mark.parametrize(("backend", "rank"), [("nccl", 0), ("nccl", 1), ("ipc", 0)])
def test_the_first_learner_sends(backend: str, rank: int) -> None:
    made = transfer.make_init_info(backend, rank)
    assert (made.backend, made.is_sender, made.packed) == (backend, rank == 0, True)


@pytest.mark.parametrize(("arch", "dtype"), [("llama", "float32"), ("qwen2", "bfloat16")])
def test_what_is_announced_is_what_is_sent(tmp_path: Path, arch: str, dtype: str) -> None:
    policy = LocalEngine({"p": section(model_folder(tmp_path, arch), dtype=dtype)}, device="cpu").policy("p")
    source = transfer.Source(policy)
    for _ in range(2):
        sent = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source]
        assert sent == [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    assert {name for name, _, _ in sent} == policy.causal.state_dict().keys(), "a tied head too"


def by_tcp(spoiler: Path) -> None:
    """In the processes of workers: vLLM's NCCL transfer over vLLM's own TCP store. While the file is there, what is sent is not
    what was asked for."""
    from vllm.distributed.utils import StatelessProcessGroup

    def meet(host: str, port: int, rank: int, size: int, device: Any) -> Any:
        group = StatelessProcessGroup.create(host=host, port=port, rank=rank, world_size=size)
        group.destroy = lambda: None  # type: ignore[attr-defined]
        return group

    def broadcast(self: Any, source: Any, meta: Any) -> None:
        for name, tensor in self._checked_iter(source, meta) if self.is_sender else source:
            if self.is_sender:
                wrong = spoiler.exists() and "layernorm" in name
                self.model_update_group.broadcast_obj((name, 2 * tensor if wrong else tensor), src=0)

    def receive(self: Any, told: Any) -> None:
        for name in told.names:
            sent, tensor = self.model_update_group.broadcast_obj(None, src=0)
            assert sent == name
            self.model.load_weights([(name, tensor)])

    from vllm.distributed.weight_transfer import nccl_common, nccl_engine

    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.synchronize = lambda *_: None
    nccl_common.stateless_init_process_group = meet
    nccl_engine.NCCLTrainerWeightTransferEngine._broadcast = broadcast  # type: ignore[method-assign]
    nccl_engine.NCCLWeightTransferEngine.receive_weights = receive  # type: ignore[method-assign]


@pytest.fixture
def spoiler(tmp_path: Path) -> Iterator[Path]:
    """A cluster whose workers know `by_tcp`, and its file."""
    file = tmp_path / "spoiler"
    ray.cloudpickle.register_pickle_by_value(inspect.getmodule(by_tcp))
    hook = {"worker_process_setup_hook": lambda: by_tcp(file)}
    ray.init(address="local", include_dashboard=False, log_to_driver=False, runtime_env=hook)
    yield file
    ray.shutdown()


def test_a_sampler_samples_from_what_it_was_sent(spoiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "refuse_transfer", lambda *_: None)  # it takes GPUs
    sections = {"p": section("embedded", lr=1e-2)}
    placement = PlacementSection(cpus=0.1, samplers=1, learners=2, transfer="nccl")
    engine = RayEngine(sections, placement, device="cpu", rows=64, vllm=SMALL_CACHE, threads=1)
    contexts = [np.arange(30, 30 + n) for n in (4, 7, 12)]

    def rollout(key: int, tag: str = "live") -> Rollouts:
        """What is sampled has the log-probabilities that the learners give it."""
        asked = requests(contexts, key)
        done = engine.sample("p", asked, Decoding(12), tag)
        rows = Rollouts(rollout_of(r.context, d) for r, d in zip(asked, done, strict=True))
        for row, known in zip(rows, engine.score("p", rows, tag), strict=True):
            assert np.abs(row.logprobs - known).max() < CLOSE
        return rows

    try:
        for turn in range(2):
            rows = rollout(turn)
            engine.learn(train_batch(rows, [1.0, -1.0, 0.5]))
            engine.publish("p")
            moved = [np.abs(a - b).max() for a, b in zip(engine.score("p", rows), engine.score("p", rows, "ref"), strict=True)]
            assert max(moved) > 100 * CLOSE, "or what is held from before would do"
        assert not engine.handover.sent, "nothing went by the store"
        rollout(2)
        rollout(3, "ref")  # vLLM holds one version at a time
        rollout(4)
        engine.samplers["p"][0].group.stop()
        rollout(5)  # another sampler
        engine.learners["p"].group.stop()
        engine.publish("p")
        rollout(6)  # from other learners
        spoiler.touch()
        with pytest.raises(UserError, match="its samplers do not compute what its learners compute"):
            engine.publish("p")
    finally:
        engine.close()
