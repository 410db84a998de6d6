"""Loading Hugging Face causal models: the embedded one, SmolLM2, a folder, or a hub name. Safetensors only; no remote code."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from milonga.config import is_embedded
from milonga.engine.local import smollm
from milonga.errors import ConfigError, suggest_name

SMALL = 50_000_000
"""Models with fewer parameters compute in float32 everywhere: nothing is gained by rounding them."""


UNLOADABLE = (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError)
"""What a missing, foreign or damaged model raises, in all the ways there are."""


def resolve_model_path(name: str) -> str:
    """Where a model's files are: embedded ones are folders inside the package, SmolLM2 is one in the user's cache."""
    if is_embedded(name):
        return str(embedded_folder() / (name.partition("/")[2] or "base"))
    if name == smollm.SMOLLM:
        return str(smollm.smollm_folder())
    return str(Path(name).expanduser()) if name.startswith("~") else name


def embedded_folder() -> Path:
    return Path(str(resources.files("milonga") / "embedded"))


def load_model(name: str) -> nn.Module:
    """A causal language model in float32 (the master weights); computing in bfloat16 is the policy's business."""
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            resolve_model_path(name), dtype=torch.float32, use_safetensors=True, trust_remote_code=False
        )
    except UNLOADABLE as error:
        raise ConfigError(f"model '{name}' cannot be loaded: {first_line(error)}") from None
    return model


def load_tokenizer(name: str) -> Any:
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_model_path(name), trust_remote_code=False)
    except UNLOADABLE as error:
        raise ConfigError(f"tokenizer of '{name}' cannot be loaded: {first_line(error)}") from None
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"tokenizer of '{name}' has no end-of-sequence token; nothing could ever stop")
    return tokenizer


def first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def check_model(name: str) -> None:
    """Fail early, before anything is loaded, where a folder is clearly not a model, or a model's package is missing."""
    if name == smollm.SMOLLM:
        smollm.check_installed()
        return
    if is_embedded(name):
        known = [f"embedded/{folder.name}" for folder in embedded_folder().iterdir() if (folder / "config.json").is_file()]
        if name not in ("embedded", *known):
            raise ConfigError(f"there is no model '{name}' in the package: {suggest_name(name, known)}")
        return
    if not (name.startswith((".", "/", "~")) or Path(name).exists()):
        return
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"model folder '{name}' does not exist")
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ConfigError(
            f"'{name}' is an adapter, not a model: name its base as the model and set policies.SEAT.adapter to it, "
            "or merge it with 'milonga export'"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model folder '{name}' has no config.json: not a Hugging Face model")


def find_eos_ids(model: nn.Module, tokenizer: Any) -> list[int]:
    """All tokens that end an output: the model's own list and the tokenizer's."""
    found = {int(tokenizer.eos_token_id)}
    generation: Any = getattr(model, "generation_config", None)
    listed = getattr(generation, "eos_token_id", None)
    if listed is not None:
        found |= {int(i) for i in (listed if isinstance(listed, list) else [listed])}
    return sorted(found)


def count_matmul_parameters(model: nn.Module, own: Iterable[nn.Parameter]) -> int:
    """Parameters that are multiplied for every token: all of them but an embedding table that is not also the head, and
    the adapters of other policies on the same base."""
    mine = {id(p) for p in own}
    total = sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n or id(p) in mine)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    tied = head is not None and embedding.weight is head.weight
    return total - (0 if tied else embedding.weight.numel())
