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
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

from milonga.config import is_embedded, is_hub_name
from milonga.errors import ConfigError, MissingExtra, UserError, suggest_name
from milonga.loading import expand_home
from milonga.reading import (
    RESULT,
    STATE,
    UNREADABLE,
    WEIGHTS,
    check_regular,
    explain_unreadable,
    open_regular,
    read_json,
    read_object,
)

SMALL = 50_000_000
"""Models with fewer parameters compute in float32 everywhere: nothing is gained by rounding them."""


GGUF = ".gguf"
ADAPTER = "adapter_config.json"
INDEX = ".safetensors.index.json"
KERNELS = ("attn_implementation", "experts_implementation")
"""Fields of a config.json by which transformers fetches code from the hub: its kernels for attention and experts."""
PLAIN_KERNELS = (None, "eager", "sdpa", "flex_attention")
"""Their values that need nothing but torch."""
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
    return str(expand_home(name)) if name.startswith("~") else name


def make_source(name: str) -> dict[str, Any]:
    """What `from_pretrained` is told about a model's place. Of a GGUF file it wants the folder, or hub name, and the file."""
    path = resolve_model_path(name)
    # Files here are read from here alone, whatever else they name.
    closed: dict[str, Any] = {"trust_remote_code": False, "local_files_only": not is_hub_name(name)}
    if not path.endswith(GGUF):
        return {"pretrained_model_name_or_path": path, **closed}
    folder, _, file = path.rpartition("/")
    return {"pretrained_model_name_or_path": folder or ("/" if path.startswith("/") else "."), "gguf_file": file, **closed}


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
    if (bad := find_not_finite(dict(found.named_parameters()))) is not None:
        raise ConfigError(f"model '{name}' cannot be used: its weights '{bad}' are not finite")
    return found


def find_not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Find weights with a NaN or an infinity; None if all are finite. One pass, and no copy."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and tensor.numel():
            low, high = torch.aminmax(tensor.detach())
            if not (torch.isfinite(low) and torch.isfinite(high)):
                return name
    return None


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
    if is_hub_name(name):
        return
    folder = expand_home(name)
    if name.endswith(GGUF):
        _check_gguf(folder)
        return
    if not folder.is_dir():
        raise ConfigError(f"model folder '{name}' does not exist")
    if (folder / ADAPTER).exists():  # beside a model too: transformers would load what that file names
        raise ConfigError(
            f"'{name}' is an adapter, not a model: name its base as the model and set policies.NAME.adapter to it, "
            "or merge it with 'milonga export'"
        )
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model folder '{name}' has no config.json: not a Hugging Face model")
    _check_files(folder)
    _check_model_folder(name, folder)


def _check_model_folder(name: str, folder: Path) -> None:
    """Refuse what transformers would load from elsewhere, or by pickle, because a file of the folder says so."""
    named: list[Any] = []
    for key, value in _iterate_fields(_read_fields(folder / "config.json")):
        if key.lstrip("_") in KERNELS and value not in PLAIN_KERNELS:
            raise ConfigError(f"model '{name}' asks for the kernel {value!r:.80} in its config.json; remove '{key}' from it")
        if key == "transformers_weights" and value is not None:
            named.append(str(value).removesuffix(".index.json"))  # all indexes of the folder are looked into
    for index in folder.glob(f"*{INDEX}"):
        maps = [value for key, value in _iterate_fields(_read_fields(index)) if key == "weight_map" and isinstance(value, dict)]
        named += [file for files in maps for file in files.values()]
    for file in named:
        if not str(file).endswith(".safetensors") or Path(str(file)).name != file:
            raise ConfigError(f"model '{name}' names the weights {file!r:.80}: they are .safetensors files beside its config")
    if not any(folder.glob("*.safetensors")) and (pickled := [*folder.glob("*.bin"), *folder.glob("*.pt*")]):
        raise ConfigError(
            f"model '{name}' has weights in {pickled[0].name}, a pickle, which can run code: it is not loaded; "
            "convert it to safetensors"
        )


def _read_fields(file: Path) -> Any:
    """Read a JSON file of a model; None if there is none, or it cannot be read: transformers then says why."""
    try:
        return read_json(file, STATE)
    except UNREADABLE:
        return None


def _iterate_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over all fields of nested JSON, however deep."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        yield from value.items() if isinstance(value, dict) else ()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


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
    if path.with_name(ADAPTER).exists():
        raise ConfigError(f"model file '{path}' has an {ADAPTER} beside it, which would be loaded too; move one of them")
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
