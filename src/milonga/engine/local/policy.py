"""One policy: named weights with one optimizer, and other versions of the same weights under tags.

A version is a list of tensors, one for each trainable parameter: the whole model in full fine-tuning, the adapter with
LoRA. To score under another version, the parameters point to it for a moment. One mechanism serves the KL reference,
averages, snapshots, full weights and adapters alike; with LoRA the untouched start of an adapter is the bare base, and
the start of one that begins from a saved adapter is that adapter.

The start of whole weights, `ref`, takes memory only from when it is first asked for, and half of it if bfloat16 holds the same
numbers. If the live weights have moved by then, it is read again from the model's files.

With `offload` the other versions, the optimizer's moments and kept gradients are in host memory, except while they are used.
Invariant: code that computes with them fetches them first (`use_version`, `fetch_to_device`, `moments_on_device`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from milonga.config import PolicySection
from milonga.engine.local import offload
from milonga.engine.local.codec import Codec
from milonga.engine.local.data_parallel import DataParallel
from milonga.engine.local.models import (
    SMALL,
    count_matmul_parameters,
    explain_unloadable,
    find_eos_ids,
    find_not_finite,
    load_model,
)
from milonga.errors import RunFolderError, UserError, suggest_name
from milonga.objectives.losses import extrapolate_gradient
from milonga.reading import UNREADABLE
from milonga.types import Floats

COUNTER, MOMENTS = "optimizer:step", ("optimizer:exp_avg", "optimizer:exp_avg_sq")
"""Key prefix of the step counters in a state. They have not the shape of their parameter, and may be written as vectors."""


def choose_compute_dtype(section: PolicySection, parameters: int, device: str) -> torch.dtype:
    """The precision in which a policy computes: what its section says; else float32 on a CPU and for small models."""
    if section.dtype != "auto":
        return getattr(torch, section.dtype)  # type: ignore[no-any-return]
    return torch.float32 if device == "cpu" or parameters < SMALL else torch.bfloat16


def read_state(file: Path) -> dict[str, Tensor]:
    """Read a training state that was saved, with weights that are finite in all its versions."""
    state: dict[str, Tensor] = load_file(file)
    weights = {key: tensor for key, tensor in state.items() if key.startswith(("live/", "tag:"))}
    if (bad := find_not_finite(weights)) is not None:
        raise RunFolderError(
            f"checkpoint '{file.parent}' cannot be used: the weights '{bad}' of policy '{file.stem}' are not finite, "
            "or too large; remove it to use the one before it"
        )
    return state


def compute_bit_sums(tensors: Iterable[Tensor]) -> list[int]:
    """For each float32 tensor its bits, summed as integers: the same on every device and with any number of threads."""
    return [int(t.detach().contiguous().view(torch.int32).sum(dtype=torch.int64)) for t in tensors]


class Policy:
    """Weights, tokenizer, optimizer, and versions of one policy."""

    def __init__(self, name: str, section: PolicySection, model: Any, codec: Codec, adapter: str | None) -> None:
        self.name = name
        self.section = section
        self.model = model
        self.adapter = adapter
        self.codec, tokenizer = codec, codec.tokenizer
        with explain_unloadable(f"model '{section.model}'"):
            self.eos = find_eos_ids(self.causal, tokenizer)
            self.pad = int(tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id)
        self.version = 0
        self.updates = 0
        self.activate()
        self.head = self._make_value_head() if section.kind == "scalar" else None
        self.names, self.parameters = self.find_trainable()
        self.device = self.parameters[0].device
        """Device that it computes on, even while its weights are offloaded."""
        self.parallel = DataParallel()
        """The rows that are this process's to compute."""
        self.optimizer = self.make_optimizer()
        self.gradients: list[Tensor] | None = None
        """Gradients of the last step, before extrapolation; only with `optimism` (OGDA)."""
        self.is_at_start = True
        """Whether the live weights are still those of the start."""
        self.tags: dict[str, list[Tensor]] = {"ref": self.clone()} if adapter else {}
        """The other versions that are in memory."""
        if section.ema is not None:
            self.tags["ema"] = self.clone()
        self.compute_dtype = choose_compute_dtype(section, sum(p.numel() for p in self.causal.parameters()), self.device.type)
        with explain_unloadable(f"model '{section.model}'"):  # the first pass: what a config says may be found wrong only here
            self.plain_head = self._probe_head()
        self.matmuls = count_matmul_parameters(self.causal, self.parameters)
        self.start = ""
        self.shell: nn.Module | None = None
        """What every pass goes through where the weights are sharded over several processes; None where they are whole."""

    @property
    def causal(self) -> Any:
        """The causal model itself, without an adapter's wrapping."""
        return self.model.get_base_model() if self.adapter else self.model

    @property
    def context(self) -> int:
        """Most tokens, prompt and output together, that the model can look at."""
        return int(getattr(self.causal.config.get_text_config(), "max_position_embeddings", None) or 1 << 30)

    def activate(self) -> None:
        """Make this policy's adapter the one that computes, where several share a base."""
        # To set it walks through all modules, which takes longer than a small model's pass.
        if self.adapter and self.model.active_adapter != self.adapter:
            self.model.set_adapter(self.adapter)

    def find_trainable(self) -> tuple[list[str], list[nn.Parameter]]:
        """Names and tensors of what is trained: the whole model, or the adapter; and a value head."""
        if not self.adapter:
            for parameter in self.model.parameters():
                parameter.requires_grad_(True)
        pairs = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        if self.head is not None:
            pairs += [(f"value_head.{n}", p) for n, p in self.head.named_parameters()]
        return [n for n, _ in pairs], [p for _, p in pairs]

    def _make_value_head(self) -> nn.Linear:
        """One number from each hidden state. It starts at zero: a judge that knows nothing says one half to everything."""
        weights = next(self.model.parameters())
        head = nn.Linear(self.causal.config.get_text_config().hidden_size, 1, device=weights.device)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return head

    def compute_value(self, hidden: Tensor) -> Tensor:
        if self.head is None:
            raise ValueError(f"policy '{self.name}' has no value head")
        values: Tensor = self.head(hidden.to(self.head.weight.dtype))[:, 0]
        return values

    def require_finite(self, numbers: Floats) -> None:
        """Refuse what no usable weights compute. Finite ones may overflow, which shows in numbers that the host has anyway."""
        if np.isnan(numbers).any():
            what = "its weights are damaged, or far too large"
            raise UserError(f"policy '{self.name}' computes numbers that are not finite: {what}")

    def make_optimizer(self) -> torch.optim.AdamW:
        s = self.section
        return torch.optim.AdamW(
            self.parameters, lr=s.learning_rate, betas=s.betas, eps=s.eps, weight_decay=s.weight_decay, fused=True
        )

    def count_steps(self) -> int:
        """Count the optimizer steps since the optimizer was made, by its own counters: a checkpoint has them."""
        return max((int(state["step"]) for state in self.optimizer.state.values()), default=0)

    def step_optimizer(self, lr: float) -> None:
        """Take an optimizer step at this learning rate."""
        self.is_at_start = False
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()

    def run_pass(self, compute: Callable[..., Any], *args: Any) -> Any:
        """Run `compute(policy, *args)` as a pass in which all weights are available, gathered if they are sharded."""
        return compute(self, *args) if self.shell is None else self.shell(compute, *args)

    def use_compute_dtype(self) -> Any:
        """Context manager (autocast) for the compute dtype; the master weights stay float32."""
        if self.compute_dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, dtype=self.compute_dtype)

    @torch.no_grad()
    def _probe_head(self) -> bool:
        """Whether logits are a plain linear map of the last hidden states: some models cap or scale them; an adapter
        may sit on the head. For the probe the head gives out large numbers: small logits would not show a cap."""
        head = self.causal.get_output_embeddings()
        if type(head) is not nn.Linear:
            return False
        taken: list[Tensor] = []

        def shout(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            taken.append(inputs[0])
            return torch.full_like(output, 1000.0)

        ids = torch.arange(4, device=self.device)[None] % len(self.codec.tokenizer)
        mask = torch.ones_like(ids)
        hidden = self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        handle = head.register_forward_hook(shout)
        try:
            logits = self.causal(input_ids=ids, attention_mask=mask).logits
        finally:
            handle.remove()
        return len(taken) == 1 and torch.allclose(taken[0], hidden, atol=1e-4) and bool((logits == 1000.0).all())

    @property
    def backbone(self) -> Any:
        """The model without its head."""
        return self.causal.get_decoder()

    def clone(self) -> list[Tensor]:
        return [self.store_tensor(p.detach().clone()) for p in self.parameters]

    def store_tensor(self, tensor: Tensor) -> Tensor:
        """Move a tensor to where it is stored: on the host with `offload`, else on the device."""
        if not self.section.offload:
            return tensor.to(self.device)
        offload.move_to_host([self.parallel.get_local_part(tensor)], self.device)
        return tensor

    def fetch_to_device(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Fetch a tensor that may be on the host, or in half precision, to the device and type of `like`, which has the same
        shape."""
        if not self.section.offload and tensor.dtype == like.dtype:
            return tensor
        found = torch.empty_like(like)
        self.parallel.get_local_part(found).copy_(self.parallel.get_local_part(tensor), non_blocking=True)
        return found

    def list_moments(self) -> list[Tensor]:
        """List the optimizer's moments, without its step counters."""
        states = self.optimizer.state.values()
        return [
            self.parallel.get_local_part(t) for state in states for key, t in state.items() if f"optimizer:{key}" != COUNTER
        ]

    @contextmanager
    def moments_on_device(self) -> Iterator[None]:
        """Context manager of an optimizer step, in which the moments are on the device. In the passes before, when memory is
        short, they are not."""
        if not self.section.offload:
            yield
            return
        offload.move_to_device(self.list_moments(), self.device)
        try:
            yield
        finally:
            offload.move_to_host(
                [*self.list_moments(), *(self.parallel.get_local_part(g) for g in self.gradients or ())], self.device
            )

    def list_weights(self) -> list[Tensor]:
        """List all weights that this process holds, a frozen base and buffers included; policies on one base share them."""
        heads = [] if self.head is None else [self.head]
        return [t for module in (self.model, *heads) for t in (*module.parameters(), *module.buffers())]

    def get_tag(self, tag: str) -> list[Tensor]:
        if tag == "ref" and tag not in self.tags:
            self.tags[tag] = [self.store_tensor(self._shrink_tensor(tensor)) for tensor in self._find_start()]
        if tag not in self.tags:
            raise UserError(f"policy '{self.name}' has no version '{tag}': {suggest_name(tag, ['live', 'ref', *self.tags])}")
        return self.tags[tag]

    def _find_start(self) -> list[Tensor]:
        """The weights of the start, not to be written to: an adapter's are kept; whole ones are the live ones, until these
        move."""
        if self.adapter:
            return self.tags["ref"]
        return [p.detach() for p in self.parameters] if self.is_at_start else self._read_start()

    def _shrink_tensor(self, tensor: Tensor) -> Tensor:
        """A copy in bfloat16 if that has the same numbers, as in models that were published in it; else an exact copy."""
        half, whole = tensor.to(torch.bfloat16), self.parallel.get_local_part(tensor)
        is_exact = torch.equal(self.parallel.get_local_part(half).to(whole.dtype), whole)
        return half if is_exact else tensor.clone()

    def _read_start(self) -> list[Tensor]:
        """Read the start of whole weights again from the model's files; a value head began at zero."""
        found = {name: parameter.detach() for name, parameter in load_model(self.section.model).named_parameters()}
        start = [found[n] if n in found else torch.zeros(p.shape) for n, p in zip(self.names, self.parameters, strict=True)]
        if self.start not in ("", self._hash_start(start)):
            raise UserError(f"policy '{self.name}': '{self.section.model}' has changed since the run began; put it back")
        return [self.parallel.cut_like(tensor, p.detach()) for tensor, p in zip(start, self.parameters, strict=True)]

    @contextmanager
    def use_version(self, tag: str) -> Iterator[None]:
        """Compute with another version of the weights; without gradients."""
        self.activate()
        if tag == "live":
            yield
            return
        others = self.get_tag(tag)
        if self.shell is None:
            others = [self.fetch_to_device(tensor, p.detach()) for tensor, p in zip(others, self.parameters, strict=True)]
        # Shards are gathered from the memory they lie in: pointing elsewhere would not be noticed.
        live = [p.data for p in self.parameters] if self.shell is None else self.clone()
        put = self._point_to if self.shell is None else self._copy_from
        try:
            put(others)
            with torch.no_grad():
                yield
        finally:
            put(live)

    def _point_to(self, tensors: list[Tensor]) -> None:
        for parameter, other in zip(self.parameters, tensors, strict=True):
            parameter.data = other

    def assign(self, tensors: list[Tensor]) -> None:
        """Set the live weights."""
        self.is_at_start = False
        self._copy_from(tensors)

    @torch.no_grad()
    def _copy_from(self, tensors: list[Tensor]) -> None:
        for parameter, other in zip(self.parameters, tensors, strict=True):
            self.parallel.get_local_part(parameter).copy_(self.parallel.get_local_part(other))

    def clip_gradients(self, norm: Tensor, size: float) -> None:
        """Scale the gradients down to the norm that is allowed; `size` is their norm as a number."""
        if size + 1e-6 > self.section.grad_clip:
            torch.nn.utils.clip_grads_with_norm_(self.parameters, self.section.grad_clip, norm)

    def gradient_norm(self) -> Tensor:
        return self.parallel.gather_tensor(
            torch.nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        )

    @torch.no_grad()
    def extrapolate_gradients(self) -> list[Tensor]:
        """Replace each gradient g_t by the optimistic 2 g_t - g_(t-1), and return the g_t; the first g_(t-1) is g_t itself."""
        now = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in self.parameters]
        for parameter, gradient, before in zip(self.parameters, now, self.gradients or now, strict=True):
            parameter.grad = extrapolate_gradient(gradient, self.fetch_to_device(before, gradient))
        return now

    @torch.no_grad()
    def update_average(self) -> None:
        """Move the running average a step towards the live weights."""
        if self.section.ema is not None:
            for mean, parameter in zip(self.tags["ema"], self.parameters, strict=True):
                moved = self.fetch_to_device(mean, parameter.detach()).lerp_(parameter, 1 - self.section.ema)
                self.parallel.get_local_part(mean).copy_(self.parallel.get_local_part(moved))

    def fingerprint(self) -> str:
        """A short name of the policy's start, frozen base included, to notice a resumed run whose start has changed."""
        if not self.start:
            self.start = self._hash_start(self._find_start())
        return self.start

    def _hash_start(self, start: list[Tensor]) -> str:
        frozen = {n: p.detach() for n, p in self.causal.named_parameters() if self.adapter and "lora_" not in n}
        tensors = frozen | dict(zip(self.names, start, strict=True))
        sums = [f"{n}:{bits}" for n, bits in zip(tensors, compute_bit_sums(tensors.values()), strict=True)]
        return hashlib.blake2b("\n".join(sums).encode(), digest_size=8).hexdigest()

    def flops(self, tokens: int, attended: float) -> float:
        """Floating-point operations of a forward pass: two per multiplied parameter and token, and attention over `attended`
        pairs of tokens."""
        config = self.causal.config.get_text_config()
        return 2.0 * self.matmuls * tokens + 4.0 * float(config.num_hidden_layers * config.hidden_size) * attended

    def get_state(self) -> dict[str, Tensor]:
        """The training state, on the CPU."""
        return {key: tensor.contiguous().cpu() for key, tensor in self.collect_tensors().items()}

    def collect_tensors(self) -> dict[str, Tensor]:
        """Everything that changes while training, as flat tensors: live weights, optimizer moments, other versions."""
        out = {f"live/{n}": p.detach() for n, p in zip(self.names, self.parameters, strict=True)}
        for tag, tensors in self.tags.items():
            if tag != "ref":  # the start is loaded again from where it came, and compared by its fingerprint
                out |= {f"tag:{tag}/{n}": t for n, t in zip(self.names, tensors, strict=True)}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            for key, value in self.optimizer.state.get(parameter, {}).items():
                out[f"optimizer:{key}/{name}"] = value
        return out | {f"gradient/{n}": g for n, g in zip(self.names, self.gradients or (), strict=self.gradients is not None)}

    def load_file(self, file: Path) -> None:
        """Load a training state from a file; one that is not of this policy is a `RunFolderError`."""
        try:
            self.load_state(read_state(file))
        except (*UNREADABLE, SafetensorError) as error:
            raise RunFolderError(f"'{file}' does not hold the weights of this policy: {error}") from None

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Load a training state. Snapshots that it does not have are dropped; the start stays. Tensors that are missing or have
        another shape are a `ValueError`."""
        self._check_state(state)
        self.assign([state[f"live/{n}"] for n in self.names])
        kinds = {key.partition("/")[0] for key in state}
        self.tags = {tag: tensors for tag, tensors in self.tags.items() if tag in ("ref", "ema")}
        for tag in sorted(kind.removeprefix("tag:") for kind in kinds if kind.startswith("tag:")):
            self.tags[tag] = [self.store_tensor(state[f"tag:{tag}/{n}"]) for n in self.names]
        self.gradients = [self.store_tensor(state[f"gradient/{n}"]) for n in self.names] if "gradient" in kinds else None
        self.optimizer = self.make_optimizer()
        for kind in sorted(kind for kind in kinds if kind.startswith("optimizer:")):
            for name, parameter in zip(self.names, self.parameters, strict=True):
                if f"{kind}/{name}" in state:
                    value = state[f"{kind}/{name}"]
                    # AdamW's fused form wants its step counters on the device of the parameters.
                    found = value.to(self.device).reshape(()) if kind == COUNTER else self.store_tensor(value)
                    self.optimizer.state[parameter][kind[10:]] = found

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        """Check that a state has a tensor like each parameter for every version, and all that the optimizer keeps of it or
        nothing."""
        kinds = {"live", *(key.partition("/")[0] for key in state)} - {COUNTER, *MOMENTS}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            kept = [kind for kind in (COUNTER, *MOMENTS) if f"{kind}/{name}" in state]
            for kind in sorted(kinds | {*MOMENTS} if kept else kinds):
                _check_tensor(f"{kind}/{name}", state, parameter.shape)
            if kept and (f"{COUNTER}/{name}" not in state or state[f"{COUNTER}/{name}"].numel() != 1):
                raise ValueError(f"{COUNTER}/{name} is no number")


def _check_tensor(key: str, state: Mapping[str, Tensor], shape: torch.Size) -> None:
    if key not in state:
        raise ValueError(f"{key} is missing")
    if state[key].shape != shape or not state[key].is_floating_point():
        raise ValueError(f"{key} is {list(state[key].shape)} of {state[key].dtype}, not {list(shape)} of floats")
