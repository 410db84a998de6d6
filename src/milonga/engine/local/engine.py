"""The engine for one machine: every policy in this process, on the CPU or on one CUDA device."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn

from milonga.config import LoraSection, PolicySection, VllmSection
from milonga.engine.base import (
    Completion,
    Decoding,
    Engine,
    History,
    LearnReport,
    Ledger,
    Progress,
    Request,
    read_saved_engine,
)
from milonga.engine.local import learner, memory, offload, sampler
from milonga.engine.local.codec import Codec, load_codecs
from milonga.engine.local.history import LocalHistory
from milonga.engine.local.models import first_line, load_model
from milonga.engine.local.policy import Policy
from milonga.engine.local.shapes import explain_misfit
from milonga.errors import ConfigError, MissingExtra, OutOfMemory, RunFolderError, suggest_name
from milonga.types import Floats, Prompt, Rollouts, TrainBatch

if TYPE_CHECKING:
    from milonga.engine.local.cuda.sampler import CudaSampler
    from milonga.engine.local.vllm_sampler import VllmSampler

VALUE_HEAD = "value_head.safetensors"
"""File of the value head beside an exported policy of the scalar kind."""


def choose_device(name: str) -> torch.device:
    """Choose the torch device; `auto` is the first CUDA device if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"unknown device '{name}': use auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device '{name}' is not supported: use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device '{name}' was asked for, but torch sees {torch.cuda.device_count()} CUDA devices")
    return device


@contextmanager
def _explain_out_of_memory(policy: str, work: str, advice: str) -> Iterator[None]:
    """Turn an out-of-memory error into a message to the user: what was being done, and what would need less."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise OutOfMemory(
            f"policy '{policy}' ran out of the device's memory while {work}: {advice} ({first_line(error)})"
        ) from None


def group_by_sampler(sections: Mapping[str, PolicySection]) -> list[list[str]]:
    """Group policies that can share a sampler: adapters on one base; every other policy is alone. Policies with value heads are
    not sampled from."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, section in sections.items():
        if section.kind != "scalar":
            found.setdefault(("policy", name) if section.lora is None else ("base", section.model), []).append(name)
    return list(found.values())


def _count_longest_unit(train_batch: TrainBatch) -> int:
    """Count the tokens of the longest unit of rows: a pass never splits it."""
    tokens: Counter[int] = Counter()
    for row, rollout in enumerate(train_batch.rollouts):
        tokens[train_batch.units[row] if train_batch.units else row] += len(rollout.ids)
    return max(tokens.values(), default=0)


class LocalEngine(Engine):
    """Policies in this process. Policies with LoRA on the same model share one base."""

    def __init__(
        self,
        policies: Mapping[str, PolicySection],
        device: str = "auto",
        rows: int = 512,
        vllm: VllmSection | None = None,
        history_gib: float = 0.0,
    ) -> None:
        self.device = choose_device(device)
        if self.device.index is not None:
            torch.cuda.set_device(self.device)  # kernels and streams are those of the current device
        self.rows = rows
        self.vllm = vllm
        """How vLLM is to sample; None: our own samplers do."""
        self.history_gib = history_gib
        """Most memory for the prefix cache of conversations; 0 for none."""
        self.lent = 0.0 if vllm is None else vllm.gpu_memory_utilization * len(group_by_sampler(policies))
        """Share of a GPU that vLLM will take beside our weights; 0 if one of the two is always offloaded."""
        if vllm is not None and vllm.sleep and all(section.offload for section in policies.values()):
            self.lent = 0.0
        self.ledger = Ledger()
        self.bases: dict[str, Any] = {}
        self.samplers: dict[str, CudaSampler | VllmSampler | None] = {}
        self.needs: dict[str, int] = {}
        """Bytes of the device that each policy's weights will take."""
        codecs = load_codecs(policies)
        self.policies = {name: self._make_policy(name, section, codecs[name]) for name, section in policies.items()}
        for name, policy in self.policies.items():
            if policy.section.recompute and (why := explain_misfit(policy)) is not None:
                raise ConfigError(f"policies.{name}.recompute: {why}; set it to false and lower micro_tokens")

    def _make_policy(self, name: str, section: PolicySection, codec: Codec) -> Policy:
        if section.lora is None:
            if section.adapter is not None:
                raise ConfigError(f"policies.{name}: an adapter to start from needs lora")
            model = self._move_to_device(name, section, load_model(section.model)).eval()
            return Policy(name, section, model, codec, adapter=None)
        model = self._add_adapter(name, section, section.lora)
        return Policy(name, section, model, codec, adapter=name)

    def _move_to_device(self, name: str, section: PolicySection, model: nn.Module) -> nn.Module:
        """Move a model to the engine's device, if all policies fit there."""
        self._require_room(name, section, model, False)
        return model.to(self.device)

    def _require_room(self, name: str, section: PolicySection, model: nn.Module, shared: bool) -> None:
        if self.device.type == "cuda":
            self.needs[name] = memory.weight_bytes(section, model, shared, copied=self.vllm is None)
            total = torch.cuda.get_device_properties(self.device).total_memory
            memory.require_room(name, self.needs, memory.limit_memory(self.device, total), self.lent)

    def _add_adapter(self, name: str, section: PolicySection, lora: LoraSection) -> Any:
        """Add this policy's adapter to the shared base; adapters start alike for every policy of one rank."""
        try:
            import peft

            from milonga.engine.local import adapters
        except ImportError:
            raise MissingExtra("lora", "lora") from None
        config = peft.LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            lora_dropout=0.0,
            target_modules=lora.targets or "all-linear",
            task_type="CAUSAL_LM",
        )
        shared = self.bases.get(section.model)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if shared is None:
                base = self._move_to_device(name, section, load_model(section.model)).eval()
                shared = peft.get_peft_model(base, config, adapter_name=name)
                self.bases[section.model] = shared
            else:
                self._require_room(name, section, shared.get_base_model(), True)
                shared.add_adapter(name, config)
        if section.adapter is not None:
            adapters.load(shared, name, Path(section.adapter).expanduser())
        return shared.eval()

    def policy(self, name: str) -> Policy:
        if name not in self.policies:
            raise ConfigError(f"unknown policy '{name}': {suggest_name(name, self.policies)}")
        return self.policies[name]

    def encode_all(self, policy: str, prompts: Sequence[Prompt]) -> list[NDArray[np.int64]]:
        return self.policy(policy).codec.encode_all(prompts)

    def encode_next_turns(self, policy: str, prompts: Sequence[Prompt], last: Sequence[int]) -> list[NDArray[np.int64]]:
        return self.policy(policy).codec.encode_next_turns(prompts, last)

    def encode_completion(self, policy: str, text: str, end: bool = True) -> Completion:
        return self.policy(policy).codec.encode_completion(text, end)

    def uses_chat(self, policy: str) -> bool:
        return self.policy(policy).codec.chat

    def has_same_vocabulary(self, policy: str, other: str) -> bool:
        mine, theirs = (self.policy(name).codec.tokenizer.get_vocab() for name in (policy, other))
        return bool(mine == theirs)

    def context_limit(self, policy: str) -> int:
        return self.policy(policy).context

    def open_history(self) -> History:
        """Open a prefix cache. With vLLM it keeps nothing: vLLM must not share prefixes between calls."""
        if not self.history_gib or self.vllm is not None:
            return History()
        return LocalHistory(memory.history_bytes(self.history_gib, self.device, list(self.policies.values())))

    def sample(
        self,
        policy: str,
        requests: Sequence[Request],
        decoding: Decoding,
        tag: str = "live",
        history: History | None = None,
    ) -> list[Completion]:
        chosen = self.policy(policy)
        if chosen.head is not None:
            raise ValueError(f"policy '{policy}' has a value head: it judges, and cannot be sampled from")
        with _explain_out_of_memory(policy, "sampling", "lower sampling.rows or sampling.max_tokens"), chosen.use_version(tag):
            fast = self._get_fast_sampler(chosen)
            tell = self._make_teller(policy, len(requests), decoding.max_tokens)
            pages = history.open_pages(chosen, tag) if isinstance(history, LocalHistory) else None
            if fast is not None and requests:
                return fast.sample(requests, decoding, self.rows, self.ledger, pages, tell)
            return sampler.sample(chosen, requests, decoding, self.rows, self.ledger, pages, tell)

    def _make_teller(self, policy: str, total: int, limit: int) -> sampler.Tell | None:
        """Make what a sampler tells how far it is."""
        if (watch := self.watch) is None:
            return None
        return lambda done, writing, tokens: watch(Progress(policy, "sample", total, done, writing, tokens, limit))

    def _get_fast_sampler(self, policy: Policy) -> CudaSampler | VllmSampler | None:
        """The fast sampler of a policy: vLLM if it was asked for; else our CUDA sampler, for models that it knows. None
        otherwise, with one warning that says why."""
        if self.vllm is None and self.device.type != "cuda":
            return None
        if policy.name not in self.samplers:
            self.samplers[policy.name] = (
                self._make_cuda_sampler(policy) if self.vllm is None else self._make_vllm(policy, self.vllm)
            )
        return self.samplers[policy.name]

    def get_vllm_sampler(self, policy: str) -> VllmSampler:
        """The vLLM sampler of a policy."""
        from milonga.engine.local.vllm_sampler import VllmSampler

        found = self._get_fast_sampler(self.policy(policy))
        assert isinstance(found, VllmSampler)
        return found

    def _make_vllm(self, policy: Policy, section: VllmSection) -> VllmSampler:
        from milonga.engine.local.vllm_sampler import Host, VllmSampler

        sections = {name: p.section for name, p in self.policies.items()}
        names = next(names for names in group_by_sampler(sections) if policy.name in names)
        others = [made.host for name in names if isinstance(made := self.samplers.get(name), VllmSampler)]
        host = (
            others[0]
            if others
            else Host([self.policies[name] for name in names], self._can_discard_weights(), self._offload_weights)
        )
        return VllmSampler(policy, section, host)

    def _can_discard_weights(self) -> bool:
        """Whether vLLM engines may discard their weights when they sleep: not if there are adapters, since their base is loaded
        only once. In one process all do or none does: they share a memory allocator, and one that sleeps takes the others
        along."""
        return all(policy.adapter is None for policy in self.policies.values() if policy.head is None)

    def _make_cuda_sampler(self, policy: Policy) -> CudaSampler | None:
        try:
            from milonga.engine.local.cuda.sampler import CudaSampler, explain_unsuited
        except ImportError:
            why: str | None = "triton is not installed"
        else:
            why = explain_unsuited(policy)
        if why is not None:
            warnings.warn(f"policy '{policy.name}' is sampled by the slower, general path: {why}", stacklevel=2)
            return None
        beside = [p for p in self.policies.values() if p is not policy]
        return CudaSampler(policy, beside, lambda: sum(p.head is None and not self._is_cache_settled(p.name) for p in beside))

    def _is_cache_settled(self, name: str) -> bool:
        """Whether a policy's key-value cache is allocated, or never will be."""
        return name in self.samplers and getattr(self.samplers[name], "decoder", True) is not None

    def score(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[Floats]:
        with _explain_out_of_memory(policy, "scoring", f"lower policies.{policy}.micro_tokens"):
            return learner.score(self.policy(policy), rollouts, tag, self.ledger)

    def values(self, policy: str, rollouts: Rollouts, tag: str = "live") -> list[Floats]:
        with _explain_out_of_memory(policy, "scoring", f"lower policies.{policy}.micro_tokens"):
            return learner.score_values(self.policy(policy), rollouts, tag, self.ledger)

    def learn(self, train_batch: TrainBatch) -> LearnReport:
        chosen = self.policy(train_batch.policy)
        advice = f"lower policies.{train_batch.policy}.micro_tokens, or set policies.{train_batch.policy}.recompute=true"
        advice += "" if chosen.section.offload else f" or policies.{train_batch.policy}.offload=true"
        if chosen.section.offload or not memory.has_room_to_learn(chosen, _count_longest_unit(train_batch)):
            self._free_samplers()
        with _explain_out_of_memory(train_batch.policy, "learning", advice):
            watch = self.watch or (lambda progress: None)
            tell = lambda done, total: watch(Progress(train_batch.policy, "learn", total, done))  # noqa: E731
            return learner.learn(chosen, train_batch, self.ledger, tell)

    def _free_samplers(self) -> None:
        """Free the memory of our samplers for a learner; the next sampling call makes them again. vLLM sleeps by itself."""
        if self.vllm is None:
            for made in self.samplers.values():
                if made is not None:
                    made.close()

    @contextmanager
    def _offload_weights(self) -> Iterator[None]:
        """Offload the weights of policies with `offload` while vLLM starts or samples: nothing else computes then."""
        chosen = [policy for policy in self.policies.values() if policy.section.offload]
        tensors = list({id(tensor): tensor for policy in chosen for tensor in policy.list_weights()}.values())
        offload.move_to_host(tensors, self.device)
        try:
            yield
        finally:
            offload.move_to_device(tensors, self.device)

    def publish(self, policy: str) -> int:
        """Publish: count the version and update the running average. Sampler and learner share the weights here."""
        chosen = self.policy(policy)
        chosen.update_average()
        chosen.version += 1
        return chosen.version

    def version(self, policy: str) -> int:
        return self.policy(policy).version

    def snapshot(self, policy: str, tag: str) -> None:
        chosen = self.policy(policy)
        if tag in ("live", "ref") or "/" in tag or (tag == "ema" and chosen.section.ema is None):
            raise ValueError(f"'{tag}' is not a name for a snapshot")
        chosen.tags[tag] = chosen.clone()

    def copy(self, policy: str, source: str, tag: str = "live") -> None:
        target, origin = self.policy(policy), self.policy(source)
        tensors = [p.detach() for p in origin.parameters] if tag == "live" else origin.get_tag(tag)
        shapes = [tuple(t.shape) for t in tensors] == [tuple(p.shape) for p in target.parameters]
        if not shapes:
            raise ConfigError(f"policy '{policy}' cannot take the weights of '{source}': their shapes differ")
        target.assign(tensors)
        target.optimizer, target.gradients = target.make_optimizer(), None

    def save(self, folder: Path) -> None:
        for name, policy in self.policies.items():
            save_file(policy.get_state(), folder / f"{name}.safetensors")
        state = {
            "ledger": self.ledger.to_json(),
            "policies": {
                name: {"version": p.version, "updates": p.updates, "start": p.fingerprint()}
                for name, p in self.policies.items()
            },
        }
        (folder / "engine.json").write_text(json.dumps(state, indent=1))

    def load(self, folder: Path) -> None:
        state = read_saved_engine(folder, self.policies)
        self.ledger.from_json(state.ledger)
        for name, policy in self.policies.items():
            saved = state.policies[name]
            if saved.start != policy.fingerprint():
                raise RunFolderError(
                    f"policy '{name}' did not start from what '{policy.section.model}' holds now: "
                    "its KL reference would change; put the original model back"
                )
            policy.load_file(folder / f"{name}.safetensors")
            policy.version, policy.updates = saved.version, saved.updates

    def export(self, policy: str, folder: Path, merged: bool = False) -> None:
        chosen = self.policy(policy)
        folder.mkdir(parents=True, exist_ok=True)
        if chosen.adapter:
            from milonga.engine.local import adapters  # needs peft, which is optional

            if merged:
                adapters.merge_adapter(chosen.model, chosen.adapter).save_pretrained(folder)
            else:
                adapters.export(chosen.model, chosen.adapter, folder)
        else:
            chosen.model.save_pretrained(folder)
        if chosen.head is not None:
            save_file({name: t.contiguous().cpu() for name, t in chosen.head.state_dict().items()}, folder / VALUE_HEAD)
        chosen.codec.tokenizer.save_pretrained(folder)

    def checkpoint_bytes(self) -> int:
        """Size of one checkpoint: live weights, two moments, and the other versions, except the start."""
        total = 0
        for policy in self.policies.values():
            size = sum(p.numel() * p.element_size() for p in policy.parameters)
            total += size * (3 + policy.section.optimism + sum(tag != "ref" for tag in policy.tags))
        return total

    def close(self) -> None:
        """Close the samplers: vLLM engines are not freed by garbage collection alone."""
        for made in self.samplers.values():
            if made is not None:
                made.close()
        self.samplers = {}
