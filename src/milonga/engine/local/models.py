"""Loading Hugging Face causal models: the embedded one, a folder, a GGUF file, or a hub name. No pickles, no remote code."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from milonga.config import is_embedded
from milonga.errors import ConfigError, MissingExtra, UserError, suggest_name
from milonga.reading import RESULT, STATE, UNREADABLE, WEIGHTS, check_regular, explain_unreadable, open_regular, read_object

SMALL = 50_000_000
"""Models with fewer parameters compute in float32 everywhere: nothing is gained by rounding them."""


GGUF = ".gguf"
MOST_LAYERS = 10_000
"""Layers, or experts, of a model: all are made before its weights are looked at."""


@contextmanager
def explain_unloadable(what: str) -> Iterator[None]:
    """Raise whatever a missing, foreign or damaged model raises, in all the ways there are, as a `ConfigError`. Panics of the
    libraries below, which are in Rust, are no `Exception`."""
    try:
        yield
    except (UserError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise ConfigError(f"{what} cannot be loaded: {first_line(error)}") from None


def resolve_model_path(name: str) -> str:
    """Where a model's files are: embedded ones are folders inside the package."""
    if is_embedded(name):
        return str(_embedded_folder() / (name.partition("/")[2] or "base"))
    return str(Path(name).expanduser()) if name.startswith("~") else name


def make_source(name: str) -> dict[str, Any]:
    """What `from_pretrained` is told about a model's place. Of a GGUF file it wants the folder, or hub name, and the file."""
    path = resolve_model_path(name)
    if not path.endswith(GGUF):
        return {"pretrained_model_name_or_path": path, "trust_remote_code": False}
    folder, _, file = path.rpartition("/")
    return {"pretrained_model_name_or_path": folder or ("/" if path.startswith("/") else "."), "gguf_file": file}


def _embedded_folder() -> Path:
    return Path(str(resources.files("milonga") / "embedded"))


def load_model(name: str) -> nn.Module:
    """A causal language model in float32 (the master weights); computing in bfloat16 is the policy's business."""
    source = make_source(name)
    kind: dict[str, Any] = {"use_safetensors": True}
    if "gguf_file" in source:
        # Unpacked: packed weights cannot be trained. Releases without this class always unpack.
        kind = {"quantization_config": transformers.GgufConfig(dequantize=True)} if hasattr(transformers, "GgufConfig") else {}
    with explain_unloadable(f"model '{name}'"):
        model = AutoModelForCausalLM.from_pretrained(**source, **kind, dtype=torch.float32)
    quantizer = getattr(model, "hf_quantizer", None)
    if "gguf_file" in source and quantizer is not None:
        quantizer.remove_quantization_config(model)  # a mark alone: with it the plain weights could not be saved
    found: nn.Module = model
    return found


def load_tokenizer(name: str) -> Any:
    """The tokenizer beside the weights. A GGUF file only names the rule by which text is split, and transformers does not
    follow all of them: a tokenizer.json in the same folder is preferred to the one inside the file."""
    source = make_source(name)
    if "gguf_file" in source and (Path(source["pretrained_model_name_or_path"]) / "tokenizer.json").is_file():
        del source["gguf_file"]
    with explain_unloadable(f"tokenizer of '{name}'"):
        tokenizer = AutoTokenizer.from_pretrained(**source)
    if tokenizer.eos_token_id is None:
        raise ConfigError(f"tokenizer of '{name}' has no end-of-sequence token; nothing could ever stop")
    return tokenizer


def first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def check_model(name: str) -> None:
    """Fail early, before anything is loaded, where a folder or file is clearly not a model, or what reads it is missing."""
    if is_embedded(name):
        known = [f"embedded/{folder.name}" for folder in _embedded_folder().iterdir() if (folder / "config.json").is_file()]
        if name not in ("embedded", *known):
            raise ConfigError(f"there is no model '{name}' in the package: {suggest_name(name, known)}")
        return
    if name.endswith(GGUF) and any(importlib.util.find_spec(package) is None for package in ("gguf", "accelerate")):
        raise MissingExtra(f"model '{name}'", "gguf")
    if not (name.startswith((".", "/", "~")) or Path(name).exists()):
        return
    folder = Path(name).expanduser()
    if name.endswith(GGUF):
        _check_gguf(folder)
        return
    if not folder.is_dir():
        raise ConfigError(f"model folder '{name}' does not exist")
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        raise ConfigError(
            f"'{name}' is an adapter, not a model: name its base as the model and set policies.NAME.adapter to it, "
            "or merge it with 'milonga export'"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model folder '{name}' has no config.json: not a Hugging Face model")
    _check_files(folder)


def _check_files(folder: Path) -> None:
    """Refuse a folder in which something is no regular file, or a JSON file larger than any: the libraries that load a model
    open whatever has the right name, and make as many layers as its config asks for."""
    for file in sorted(folder.iterdir()):
        try:
            if file.exists() and not file.is_dir():
                check_regular(file, STATE if file.suffix == ".json" else WEIGHTS)
            if file.name == "config.json":
                _check_layers(read_object(file, RESULT))
        except UNREADABLE as error:
            raise ConfigError(f"model folder '{folder}': {file.name} cannot be read: {explain_unreadable(error)}") from None


def _check_layers(config: Mapping[str, Any]) -> None:
    for key, value in config.items():
        if isinstance(value, Mapping):
            _check_layers(value)
        elif isinstance(value, int) and ("layers" in key or "experts" in key) and value > MOST_LAYERS:
            raise ValueError(f"{key} is {value}; no model has more than {MOST_LAYERS}")


def _check_gguf(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"model file '{path}' does not exist")
    with open_regular(path, WEIGHTS) as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"model file '{path}' is not a GGUF file")


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
