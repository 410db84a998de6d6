"""Sampling by a vLLM engine in this process: its cache and kernels; our weights, stop strings and learning.

Invariants: token ids go in and come out, never text. Log-probabilities are those of the distribution that was sampled from.
Before a call samples, vLLM holds the weights that the policy computes with at that moment: all of them, or of an adapter the
adapter alone, beside a base that several share; whenever they were handed over, a probe has compared its log-probabilities with
ours before the call gives anything out. Between calls vLLM may sleep, and while it computes our weights may be away. What a
request gets depends on its context, its key and the weights; who is computed beside it changes at most the last bits of a sum.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from milonga.config import VllmSection
from milonga.engine.base import Completion, Decoding, Ledger, Request
from milonga.engine.local.history import Pages
from milonga.engine.local.models import GGUF, resolve_model_path
from milonga.engine.local.policy import Policy, compute_bit_sums
from milonga.engine.local.sampler import (
    Tell,
    Written,
    charge_sampling,
    has_stop_string,
    limit_new_tokens,
    make_completion,
    mask_stop_candidates,
)
from milonga.engine.local.shapes import base_layer
from milonga.errors import ConfigError, UserError
from milonga.types import Finish, Floats

TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.2}
"""Mean absolute difference of log-probabilities that a probe allows. Half precision hides small differences (a 135M model in
bfloat16 and the same under autocast lie 0.07 apart): there it finds wrong weights, but not those of a small step before."""
PROBES, PROBE_CONTEXT, PROBE_TOKENS = 4, 8, 12
ON_CPU = {"enforce_eager": True, "enable_chunked_prefill": False}
"""Compiling costs more there than it gains; and a seeded request whose prompt is computed in parts ends in an error, since vLLM
would turn back a generator that cannot be turned back. Whole prompts must then fit into one pass."""
MOST_AT_ONCE, LONGEST = 4096, 1 << 17
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Most rank of the adapters that an engine of vLLM is made for: it knows these."""
FIRST_PHASE, LAST_PHASE = "init_weight_transfer_engine", "finish_weight_update"
"""First and last phase of a weight transfer from another process, by their names in vLLM."""
FAILURES = (ValueError, RuntimeError, OSError, ImportError, KeyError, AssertionError, NotImplementedError)
"""What vLLM raises where it cannot serve a model or has too little memory."""


@dataclass
class _Row:
    """One request on its way."""

    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None

    def to_written(self) -> Written:
        assert self.finish is not None
        return Written(self.ids, np.array(self.logprobs, dtype=np.float64), self.finish)


class Host:
    """A vLLM engine, started by the first call and kept. Policies with adapters on one base share one; a policy with full
    weights has its own."""

    def __init__(self, policies: Sequence[Policy], discards: bool, aside: Callable[[], AbstractContextManager[None]]) -> None:
        self.policies = policies
        self.discards = discards
        """Whether weights are discarded in sleep (vLLM's level 2), and loaded again after it. Else they wait on the host, since
        nobody would load them again: a base under adapters, or weights sent from another process."""
        self.aside = aside
        """Context manager in which our own weights may be offloaded."""
        self.engine: Any = None
        self.calls = 0
        self.transfer: str | None = None
        """The backend by which vLLM may be sent weights from another process; to be set before it starts."""
        self.adapters = 0
        """Number of adapters loaded so far: each gets the next number."""
        self.folder: tempfile.TemporaryDirectory[str] | None = None

    def wake(self, section: VllmSection, rows: int) -> None:
        """Start the engine, or wake it without its cache: ready for new weights."""
        if self.engine is None:
            with self.aside():
                self.engine = _start_engine(self.policies, section, rows, self.transfer)
            self.folder = tempfile.TemporaryDirectory(prefix="milonga-adapters-")
        elif section.sleep:
            self.engine.wake_up(tags=["weights"])

    def wake_cache(self, section: VllmSection) -> None:
        """Wake the key-value cache too: ready to compute. It is away while weights are loaded, so that both need not fit."""
        if section.sleep:
            self.engine.wake_up(tags=["kv_cache"])

    def put_to_sleep(self, section: VllmSection) -> None:
        """Put the engine to sleep until the next call, if that is wanted: the learner gets the device."""
        if section.sleep:
            self.engine.sleep(level=2 if self.forgets_weights(section) else 1)

    def forgets_weights(self, section: VllmSection) -> bool:
        """Whether weights are lost between calls."""
        return section.sleep and self.discards and self.transfer is None

    def add_adapter(self, policy: Policy) -> Any:
        """Load an adapter into vLLM as it is at this moment; return what names it in requests."""
        from vllm.lora.request import LoRARequest

        from milonga.engine.local import adapters  # needs peft, which is optional

        assert self.folder is not None and policy.adapter is not None
        self.adapters += 1
        folder = Path(self.folder.name) / str(self.adapters)
        folder.mkdir()
        adapters.export(policy.model, policy.adapter, folder)
        request = LoRARequest(f"{policy.name}-{self.adapters}", self.adapters, str(folder))
        self.engine.add_lora(request)
        return request

    def remove_adapter(self, request: Any) -> None:
        """Remove an adapter that another replaces."""
        if request is not None:
            self.engine.remove_lora(request.lora_int_id)
            shutil.rmtree(request.lora_path)

    def close(self) -> None:
        if self.engine is not None:
            self.engine.engine_core.shutdown()
            self.engine = None
        if self.folder is not None:
            self.folder.cleanup()


class VllmSampler:
    """The sampler of one policy."""

    def __init__(self, policy: Policy, section: VllmSection, host: Host) -> None:
        require_known_adapters(policy)
        self.policy = policy
        self.section = section
        self.tolerance = section.tolerance or TOLERANCES[policy.compute_dtype]
        self.host = host
        self.loaded: list[int] | None = None
        """Bit sums of the weights that vLLM holds; None if it holds none that were probed."""
        self.received = False
        """Whether vLLM holds weights that were sent to it from another process, which the policy here does not have."""
        self.adapter: Any = None
        """How requests name the adapter; None where the weights are whole."""

    @property
    def engine(self) -> Any:
        return self.host.engine

    @torch.no_grad()
    def sample(
        self,
        requests: Sequence[Request],
        decoding: Decoding,
        rows: int,
        ledger: Ledger,
        pages: Pages | None = None,
        tell: Tell | None = None,
    ) -> list[Completion]:
        """Sample completions. `pages` are not used: vLLM has its own cache, which must keep nothing between calls; nor is
        `tell`: vLLM is asked for everything at once."""
        asked = _make_probes(self.policy)
        with explain_failures(self.policy):
            self.host.wake(self.section, rows)
            given = self._update_weights()
        with self.host.aside():
            try:
                with explain_failures(self.policy):
                    self.host.wake_cache(self.section)
                    probed = [] if given is None else self._generate(asked, Decoding(PROBE_TOKENS))
                done = self._generate(requests, decoding)
            finally:
                self.host.put_to_sleep(self.section)
        if given is not None:  # looked at only now, so that our weights and vLLM's cache need not fit side by side
            self._check_probe(asked, probed)
            self.loaded = given
        if self.host.forgets_weights(self.section):
            self.loaded = None
        charge_sampling(self.policy, ledger, [r.context for r in requests], [len(row.ids) for row in done])
        return [make_completion(self.policy, row, decoding) for row in done]

    def _update_weights(self) -> list[int] | None:
        """Load the current weights into vLLM, unless it has them: learning, another tag and a copy all change their bit sums.
        Weights that were sent to it stay until `forget`. Return the bit sums to be probed; None if nothing changed."""
        if self.received:
            return None
        wanted = compute_bit_sums(self.policy.parameters)
        if wanted == self.loaded:
            return None
        self.loaded = None
        if self.policy.adapter is None:
            self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iterate_weights(self.policy)})
        else:
            self.host.remove_adapter(self.adapter)
            self.adapter = self.host.add_adapter(self.policy)
        return wanted

    def receive(self, phase: str, told: Mapping[str, Any], rows: int) -> None:
        """One phase of a transfer from another process, by its name in vLLM. Whoever sends compares log-probabilities after
        the last one; nothing may be sampled before it."""
        self.forget_weights()
        with explain_failures(self.policy):
            self.host.wake(self.section, rows)
            if phase == FIRST_PHASE:  # a sender that was lost left its connection behind
                self.engine.collective_rpc("shutdown_weight_transfer_engine")
            self.engine.collective_rpc(phase, kwargs=dict(told))
        if phase == LAST_PHASE:
            self.received = True
            self.host.put_to_sleep(self.section)

    def forget_weights(self) -> None:
        """Forget which weights vLLM holds: the next call loads those of the policy in this process."""
        self.loaded, self.received = None, False

    @torch.no_grad()
    def score(self, rows: Sequence[NDArray[np.int64]], most: int) -> list[Floats]:
        """Log-probabilities that vLLM itself gives to the tokens of these rows, with zero for each first one."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input

        with explain_failures(self.policy):
            self.host.wake(self.section, most)
            self.host.wake_cache(self.section)
        found: dict[str, Floats] = {}
        try:
            self.host.calls += 1
            asked = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False)
            for i, row in enumerate(rows):
                self.engine.add_request(str(i), tokens_input(row.tolist(), cache_salt=str(self.host.calls)), asked)
            while self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    if output.finished:
                        known = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
                        found[output.request_id] = np.array([0.0, *(at[token].logprob for token, at in known)])
        finally:
            self.host.put_to_sleep(self.section)
        return [found[str(i)] for i in range(len(rows))]

    def _check_probe(self, asked: Sequence[Request], done: Sequence[Written]) -> None:
        """Compare vLLM's log-probabilities of the probe tokens with those of our own model; too large a difference is an
        error."""
        ours = [compute_logprobs(self.policy, r.context, row.ids) for r, row in zip(asked, done, strict=True)]
        apart = np.abs(np.concatenate(ours) - np.concatenate([row.logprobs for row in done]))
        if not apart.mean() <= self.tolerance:  # so that NaN is refused too
            raise UserError(
                f"policy '{self.policy.name}': vLLM does not compute what the policy computes. Over {len(apart)} tokens the "
                f"log-probabilities differ by {apart.mean():.2g} on average and {apart.max():.2g} at most, and "
                f"{self.tolerance:.2g} on average is allowed (sampling.vllm.tolerance); use sampler=auto for this model"
            )

    def _generate(self, requests: Sequence[Request], decoding: Decoding) -> list[Written]:
        """Generate a completion for every request, checking for stop strings after every step."""
        rows = {str(i): _Row() for i in range(len(requests))}
        enders = mask_stop_candidates(self.policy, decoding.stop)
        try:
            self._add_requests(requests, decoding)
            while self.engine.has_unfinished_requests():
                outputs = self.engine.step()
                for output in outputs:
                    self._append_output(rows[output.request_id], output, decoding, enders)
                self.engine.abort_request([o.request_id for o in outputs if rows[o.request_id].finish == "stop"])
        finally:  # interrupted: the next call must not meet what is left of this one
            self.engine.abort_request([name for name, row in rows.items() if row.finish is None])
        return [row.to_written() for row in rows.values()]

    def _add_requests(self, requests: Sequence[Request], decoding: Decoding) -> None:
        from vllm.inputs import tokens_input

        self.host.calls += 1
        most = int(self.engine.model_config.max_model_len)
        for name, (request, room) in enumerate(zip(requests, limit_new_tokens(self.policy, requests, decoding), strict=True)):
            if len(request.context) + room > most:
                raise UserError(
                    f"policy '{self.policy.name}': {len(request.context)} tokens of prompt and {room} of output are more than "
                    f"the {most} that vLLM has room for; raise sampling.vllm.gpu_memory_utilization (on a CPU cpu_cache_gib), "
                    "or lower sampling.max_tokens"
                )
            # Prompts are shared within a call and never beyond it: keys and values of other weights would be wrong.
            prompt = tokens_input(request.context.tolist(), cache_salt=str(self.host.calls))
            parameters = self._make_sampling_params(request.key, room, decoding)
            self.engine.add_request(str(name), prompt, parameters, lora_request=self.adapter)

    def _make_sampling_params(self, key: int, room: int, decoding: Decoding) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=0.0 if decoding.greedy else decoding.temperature,
            seed=key,
            max_tokens=room,
            logprobs=0,  # of the sampled token alone
            ignore_eos=True,  # what vLLM takes for the end; the policy's own list follows
            stop_token_ids=self.policy.eos,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )

    def _append_output(self, row: _Row, output: Any, decoding: Decoding, enders: Any) -> None:
        new = output.outputs[0]
        for token, logprobs in zip(new.token_ids, new.logprobs, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprobs[token].logprob)
            if token in self.policy.eos:
                row.finish = "eos"
            elif enders is not None and enders[token] and has_stop_string(self.policy.codec, row.ids, decoding.stop):
                row.finish = "stop"
                return
        if output.finished and row.finish is None:
            row.finish = "length"

    def close(self) -> None:
        """Free vLLM's memory. State that its engines share in a process ends too: all of them are closed, or none."""
        self.host.close()
        self.forget_weights()
        self.adapter = None


@contextmanager
def explain_failures(policy: Policy) -> Iterator[None]:
    """Turn vLLM's errors (an unknown model, too little memory) into a message to the user."""
    try:
        yield
    except FAILURES as error:
        told = " ".join(str(error).split())[:400] or type(error).__name__
        raise UserError(f"policy '{policy.name}' cannot be sampled by vLLM: {told}; use sampler=auto") from None


def _start_engine(policies: Sequence[Policy], section: VllmSection, rows: int, transfer: str | None = None) -> Any:
    """Start a vLLM engine for the model of these policies in this process: a base without adapters, or dummy weights until the
    policy's are loaded."""
    # Weights can be handed over only within a process. The log goes where progress goes, and nothing is reported to anyone.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")  # the learner's threads are these too
    os.environ.setdefault("TRITON_F32_DEFAULT", "ieee")  # or its attention rounds float32 to ten bits: off by 0.001
    set_threads = torch.set_num_threads
    try:
        from vllm import EngineArgs, LLMEngine
        from vllm.config import WeightTransferConfig

        require_device(policies[0].device)
        chosen = _make_engine_arguments(policies, section, rows)
        if transfer is not None:
            chosen["weight_transfer_config"] = WeightTransferConfig(backend=transfer)
        return LLMEngine.from_engine_args(EngineArgs(**chosen))
    finally:
        torch.set_num_threads = set_threads  # type: ignore[assignment]  # on a CPU vLLM puts one there that does nothing


def _make_engine_arguments(policies: Sequence[Policy], section: VllmSection, rows: int) -> dict[str, Any]:
    policy = policies[0]
    if policy.section.model.endswith(GGUF):
        raise ConfigError(f"vLLM does not sample from the GGUF file '{policy.section.model}' here; use --sampler auto")
    on_cpu = policy.device.type == "cpu"
    if not on_cpu:
        torch.cuda.empty_cache()  # what our own allocator only keeps looks taken to vLLM
    chosen = {
        "model": resolve_model_path(policy.section.model),
        "skip_tokenizer_init": True,
        "generation_config": "vllm",  # a model's own would bring truncated sampling with it
        "load_format": "dummy",  # the policy's weights come before the first token
        "dtype": str(policy.compute_dtype).removeprefix("torch."),
        "logprobs_mode": "processed_logprobs",  # by default those before the temperature
        "max_model_len": -1,  # the model's own, or what the cache has room for
        "max_num_seqs": rows,
        "gpu_memory_utilization": section.gpu_memory_utilization,
        "kv_cache_memory_bytes": int(section.cpu_cache_gib * 2**30) if on_cpu else None,
        "enable_sleep_mode": section.sleep,
        "disable_log_stats": True,
        "seed": 0,
    }
    if on_cpu:
        chosen |= ON_CPU | {"max_num_batched_tokens": max(MOST_AT_ONCE, min(policy.context, LONGEST))}
    return chosen | (_make_lora_arguments(policies) if policy.adapter else {})


def _make_lora_arguments(policies: Sequence[Policy]) -> dict[str, Any]:
    """Engine arguments for LoRA: the base is the frozen model itself, with room for the adapters of all policies."""
    rank = max(policy.section.lora.rank for policy in policies if policy.section.lora is not None)
    most = next((known for known in RANKS if rank <= known), RANKS[-1])
    return {"load_format": "auto", "enable_lora": True, "max_loras": len(policies), "max_lora_rank": most}


def require_device(device: torch.device) -> None:
    from vllm.platforms import current_platform

    if current_platform.device_type != device.type:
        raise ConfigError(
            f"the vLLM installed here is for {current_platform.device_type or 'another device'}, and the run computes on "
            f"{device.type}: set device={current_platform.device_type}, or use sampler=auto"
        )
    if device.index:
        raise ConfigError(f"vLLM uses the first CUDA device it sees: set CUDA_VISIBLE_DEVICES={device.index} and device=cuda")


def require_known_adapters(policy: Policy) -> None:
    """vLLM knows adapters on plain linear layers, and on a GPU in half precision."""
    if policy.adapter is not None and policy.device.type == "cuda" and policy.compute_dtype == torch.float32:
        raise ConfigError(
            f"policies.{policy.name}.lora: on a GPU vLLM computes adapters in half precision, and the policy computes in "
            f"float32: set policies.{policy.name}.dtype=bfloat16, or use sampler=auto"
        )
    for name, module in policy.causal.named_modules():
        if policy.adapter in getattr(module, "lora_A", {}) and type(base_layer(module)) is not nn.Linear:
            kind = type(base_layer(module)).__name__
            raise ConfigError(f"policies.{policy.name}.lora: '{name}' is a {kind}; vLLM adapts nn.Linear layers only")


def iterate_weights(policy: Policy) -> Iterator[tuple[str, Tensor]]:
    """Iterate over full weights by the names of a Hugging Face folder. A tied head is named too: vLLM would keep its old one.
    Each is a copy: vLLM must not hold memory that learning writes to. Shards are gathered one by one; all workers of a group
    take part."""
    for name, parameter in iterate_parameters(policy):
        yield name, policy.parallel.gather_tensor(parameter.detach()).to(policy.compute_dtype, copy=True)


def iterate_parameters(policy: Policy) -> Iterator[tuple[str, nn.Parameter]]:
    """Iterate over the parameters that `iterate_weights` copies, in its order: of sharded weights the shards."""
    yield from policy.causal.named_parameters(remove_duplicate=False)


def _make_probes(policy: Policy) -> list[Request]:
    """Make a few fixed prompts for vLLM to continue, by which its weights are checked."""
    contexts = np.random.default_rng(0).integers(0, len(policy.codec.tokenizer), (PROBES, PROBE_CONTEXT))
    return [Request(context, key) for key, context in enumerate(contexts)]


def compute_logprobs(policy: Policy, context: np.ndarray[Any, Any], output: list[int]) -> np.ndarray[Any, Any]:
    """Log-probabilities of these tokens after this context, at temperature 1, by the model's own forward pass."""
    ids = torch.tensor([*context.tolist(), *output], device=policy.device)
    with policy.use_compute_dtype():
        logits = policy.model(input_ids=ids[None], attention_mask=torch.ones_like(ids)[None]).logits[0]
    logp = torch.log_softmax(logits[len(context) - 1 : -1].float(), dim=-1)
    return logp.gather(1, ids[len(context) :, None])[:, 0].double().cpu().numpy()
