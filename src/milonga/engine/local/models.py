"""Loading Hugging Face causal models: the embedded one, a folder, a GGUF file, or a hub name. No pickles, no remote code."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

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
FLASH = re.compile(r"flash_attention_\d")
"""Attention by a package of its own, which people leave in a config; it is computed by torch."""
COUNTS = re.compile(r"(layer|expert|block|stage|depth)s?$|^(n|num)_.*(layer|expert|block|stage|depth)|expert_num")
"""Fields of a config.json that say how many of something are made; not how large one is (`vocab_size_per_layer_input`)."""
MOST_LAYERS = 10_000
"""Layers, or experts, of a model: all are made before its weights are looked at."""
MOST_MODULES = 200_000
"""Modules of a model, whatever its config calls them. DeepSeek-V3 with each of its 15,000 experts apart has 80,000."""
LARGEST_ID = 1 << 31


@contextmanager
def explain_unloadable(what: str) -> Iterator[None]:
    """Raise whatever a missing, foreign or damaged model raises, in all the ways there are, as a `ConfigError`. Panics of the
    libraries below, which are in Rust, are no `Exception`."""
    try:
        yield
    except (UserError, MemoryError, torch.OutOfMemoryError, KeyboardInterrupt, SystemExit):
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
    else:
        kind |= _choose_attention(name, source)
    with explain_unloadable(f"model '{name}'"), _count_modules():
        model = AutoModelForCausalLM.from_pretrained(**source, **kind, dtype=torch.float32)
    quantizer = getattr(model, "hf_quantizer", None)
    if "gguf_file" in source and quantizer is not None:
        quantizer.remove_quantization_config(model)  # a mark alone: with it the plain weights could not be saved
    found: nn.Module = model
    if (bad := find_not_finite(dict(found.named_parameters()))) is not None:
        raise ConfigError(f"model '{name}' cannot be used: its weights '{bad}' are not finite, or too large")
    return found


def _choose_attention(name: str, source: Mapping[str, Any]) -> dict[str, Any]:
    """Choose how attention is computed where a config asks for `FLASH`, which takes no float32: as in a config that asks for
    nothing. Return what `from_pretrained` is to be told besides."""
    with explain_unloadable(f"model '{name}'"):
        config = AutoConfig.from_pretrained(**source)
        parts = [config, *(getattr(config, key, None) for key in config.sub_configs)]
        if not any(FLASH.match(str(getattr(part, "_attn_implementation", None))) for part in parts):
            return {}
        config._attn_implementation = None  # of its parts too
    return {"config": config}


@contextmanager
def _count_modules() -> Iterator[None]:
    """Stop a model that is made of more modules than any; the weights that it has not are not asked for before."""
    made = 0

    def count(module: nn.Module, name: str, inner: nn.Module | None) -> None:
        nonlocal made
        made += 1
        if made > MOST_MODULES:
            raise ValueError(f"its config asks for more than {MOST_MODULES:,} modules; no model has as many")

    handle = register_module_module_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


def find_not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Find weights with a NaN, an infinity, or a number whose square is infinite in float32: a norm, which squares, would turn
    what it is given into zeros. None if there are none. One pass, and no copy."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and tensor.numel():
            ends = torch.stack(torch.aminmax(tensor.detach())).float()
            if not ends.square().isfinite().all():
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
        if key.lstrip("_") in KERNELS and value not in PLAIN_KERNELS and not FLASH.fullmatch(str(value)):
            raise ConfigError(f"model '{name}' asks for the kernel {value!r:.80} in its config.json; remove '{key}' from it")
        if key == "transformers_weights" and value is not None:
            named.append(str(value).removesuffix(".index.json"))  # all indexes of the folder are looked into
    unread: list[ConfigError] = []
    for index in sorted(folder.glob(f"*{INDEX}")):
        try:
            found = _read_fields(index)
        except ConfigError as error:
            unread.append(error)  # it may be what another names, which says more
            continue
        maps = [value for key, value in _iterate_fields(found) if key == "weight_map" and isinstance(value, dict)]
        named += [file for files in maps for file in files.values()]
    for file in named:
        if not str(file).endswith(".safetensors") or Path(str(file)).name != file:
            raise ConfigError(f"model '{name}' names the weights {file!r:.80}: they are .safetensors files beside its config")
    if unread:
        raise unread[0]
    if not any(folder.glob("*.safetensors")) and (pickled := [*folder.glob("*.bin"), *folder.glob("*.pt*")]):
        raise ConfigError(
            f"model '{name}' has weights in {pickled[0].name}, a pickle, which can run code: it is not loaded; "
            "convert it to safetensors"
        )


def _read_fields(file: Path) -> dict[str, Any]:
    """Read a JSON file of a model that says what is loaded. One that we cannot read is refused: transformers reads more than we
    do, and would follow what nobody has looked at. Infinity is a value of some configs."""
    is_config = file.name == "config.json"
    try:
        found = read_object(file, RESULT if is_config else STATE, finite=not is_config)
        if is_config:
            _check_counts(found)
    except UNREADABLE as error:
        raise ConfigError(f"model folder '{file.parent}': {file.name} cannot be read: {explain_unreadable(error)}") from None
    return found


def _iterate_fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over all fields of nested JSON, however deep."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        yield from value.items() if isinstance(value, dict) else ()
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _check_files(folder: Path) -> None:
    """Refuse a folder in which something is no regular file, or a JSON file larger than any: the libraries that load a model
    open whatever has the right name."""
    for file in sorted(folder.iterdir()):
        try:
            if file.exists() and not file.is_dir():
                check_regular(file, STATE if file.suffix == ".json" else WEIGHTS)
        except UNREADABLE as error:
            raise ConfigError(f"model folder '{folder}': {file.name} cannot be read: {explain_unreadable(error)}") from None


def _check_counts(config: Mapping[str, Any]) -> None:
    """Raise a `ValueError` where a config asks for more layers than any model has: as many are made as it asks for."""
    for key, value in _iterate_fields(config):
        for count in value if isinstance(value, list) else [value]:
            if COUNTS.search(key) and isinstance(count, int) and count > MOST_LAYERS:
                raise ValueError(f"{key} is {count}; no model has more than {MOST_LAYERS}")


def _check_gguf(path: Path) -> None:
    if not path.is_file():
        raise ConfigError(f"model file '{path}' does not exist")
    if path.with_name(ADAPTER).exists():
        raise ConfigError(f"model file '{path}' has an {ADAPTER} beside it, which would be loaded too; move one of them")
    with open_regular(path, WEIGHTS) as file:
        if file.read(4) != b"GGUF":
            raise ConfigError(f"model file '{path}' is not a GGUF file")


def find_eos_ids(model: nn.Module, tokenizer: Any) -> list[int]:
    """All tokens that end an output: the model's own list and the tokenizer's. What is no id of a token is a `ValueError`."""
    generation: Any = getattr(model, "generation_config", None)
    listed = getattr(generation, "eos_token_id", None)
    found = [tokenizer.eos_token_id, *(listed if isinstance(listed, list) else [] if listed is None else [listed])]
    for token in found:
        if type(token) is not int or abs(token) >= LARGEST_ID:
            raise ValueError(f"its eos_token_id is {str(token)[:40]!r}, which is no id of a token")
    return sorted(set(found))


def count_matmul_parameters(model: nn.Module, own: Iterable[nn.Parameter]) -> int:
    """Parameters that are multiplied for every token: all of them but an embedding table that is not also the head, and
    the adapters of other policies on the same base."""
    mine = {id(p) for p in own}
    total = sum(p.numel() for n, p in model.named_parameters() if "lora_" not in n or id(p) in mine)
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()  # type: ignore[operator]
    tied = head is not None and embedding.weight is head.weight
    return total - (0 if tied else embedding.weight.numel())
