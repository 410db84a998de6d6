"""LoRA adapters as folders: `adapter_config.json` and `adapter_model.safetensors`, as peft writes a single one.

Invariant: what `export` writes, `load` reads back into a policy of the same shape, and into no other.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import peft
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from milonga.engine.local.models import find_not_finite
from milonga.errors import ConfigError
from milonga.reading import SETTINGS, UNREADABLE, read_object

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def load(shared: Any, name: str, folder: Path) -> None:
    """Load a saved adapter. Another rank, scale or choice of layers is an error, never a silent change."""
    for file in (WEIGHTS, CONFIG):
        if not (folder / file).is_file():
            raise ConfigError(f"adapter folder '{folder}' has no {file}")
    try:
        saved, tensors = read_object(folder / CONFIG, SETTINGS), load_file(folder / WEIGHTS)
    except (*UNREADABLE, SafetensorError) as error:
        raise ConfigError(f"adapter folder '{folder}' cannot be read: {error}") from None
    config = shared.peft_config[name]
    for key, wanted in (("r", config.r), ("lora_alpha", config.lora_alpha), ("use_rslora", False), ("use_dora", False)):
        if saved.get(key, wanted) != wanted:
            raise ConfigError(f"adapter '{folder}' has {key} = {saved[key]}, but policies.{name}.lora has {wanted}")
    if (bad := find_not_finite(tensors)) is not None:
        raise ConfigError(f"adapter '{folder}' cannot be used: its weights '{bad}' are not finite, or too large")
    if _get_shapes(tensors) != _get_shapes(_get_adapter_weights(shared, name)):
        raise ConfigError(f"adapter '{folder}' adapts other layers than policies.{name}.lora, or another model's")
    peft.set_peft_model_state_dict(shared, tensors, adapter_name=name)


def export(shared: Any, name: str, folder: Path) -> None:
    """Write one adapter so that `peft.PeftModel.from_pretrained(base, folder)` reads it."""
    save_file({key: t.contiguous().cpu() for key, t in _get_adapter_weights(shared, name).items()}, folder / WEIGHTS)
    config = copy.copy(shared.peft_config[name])
    config.inference_mode = True
    config.save_pretrained(str(folder))


def merge_adapter(shared: Any, name: str) -> Any:
    """Merge one adapter into a copy of the base: a plain model. The base and its other adapters stay."""
    model = copy.deepcopy(shared)
    model.set_adapter(name)
    return model.merge_and_unload(adapter_names=[name])


def _get_adapter_weights(shared: Any, name: str) -> dict[str, Tensor]:
    found: dict[str, Tensor] = peft.get_peft_model_state_dict(shared, adapter_name=name, save_embedding_layers=False)
    return found


def _get_shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(tensor.shape) for key, tensor in tensors.items()}
