"""A GGUF file as a model: the numbers of the same weights in a safetensors folder, its tokenizer, and what it leaves behind."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from milonga.api import make_engine
from milonga.cli.app import run_guarded
from milonga.engine import Decoding, Request
from milonga.engine.local.models import check_model, load_model, load_tokenizer
from milonga.engine.ray.layout import compute_size
from milonga.errors import ConfigError
from milonga.resolve import resolve
from milonga.types import Part

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *(chr(i) for i in range(33, 127)), "Ġ", "Ċ", "th"]
HEADS, SHARED, SIZE, INNER, LAYERS = 4, 2, 32, 64, 2
NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}


def make_llama() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=SIZE, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=SHARED, max_position_embeddings=512, rms_norm_eps=float(np.float32(1e-5)), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weights in model.parameters():  # of a size at which wrong positions or layers are seen, and exact in float16
            weights.copy_((weights + 0.3 * torch.randn_like(weights)).half())
    return model


def pair_rows(weights: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """GGUF rotates neighbouring rows of a head together; transformers rotates those half a head apart."""
    rows, columns = weights.shape
    return weights.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_gguf(path: Path, model: LlamaForCausalLM, kind: gguf.GGMLQuantizationType) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(SHARED)
    writer.add_rope_dimension_count(SIZE // HEADS)
    writer.add_rope_freq_base(500.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    for name, weights in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        values = weights.numpy()
        if name not in OUTER:
            _, _, layer, inner = name.split(".", 3)
            short = NAMES[inner.removesuffix(".weight")]
            values = pair_rows(values, {"attn_q": HEADS, "attn_k": SHARED}[short]) if short in ("attn_q", "attn_k") else values
            name = f"blk.{layer}.{short}.weight"
        held = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(OUTER.get(name, name), gguf.quants.quantize(values, held), raw_dtype=held)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return make_llama()


@pytest.fixture(scope="module")
def file(model: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", model, gguf.GGMLQuantizationType.F16)


def logits(model: Any) -> torch.Tensor:
    rows = torch.randint(3, len(TOKENS), (2, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=rows).logits
    return found


@pytest.mark.parametrize("kind", ["F32", "F16"])
def test_logits_are_those_of_the_same_weights_in_a_folder(model: LlamaForCausalLM, tmp_path: Path, kind: str) -> None:
    """Both kinds hold these weights exactly. What is left is the order of float32 sums: some roundings of SIZE products."""
    model.save_pretrained(tmp_path / "folder")
    file = write_gguf(tmp_path / "a.gguf", model, gguf.GGMLQuantizationType[kind])
    found, wanted = logits(load_model(str(file))), logits(load_model(str(tmp_path / "folder")))
    bound = float(8 * SIZE * torch.finfo(torch.float32).eps * wanted.abs().max())
    assert bound < 1e-2 < wanted.std()
    assert torch.allclose(found, wanted, rtol=0, atol=bound)


def test_quantised_weights_are_unpacked_to_their_values(model: LlamaForCausalLM, tmp_path: Path) -> None:
    found = load_model(str(write_gguf(tmp_path / "a.gguf", model, gguf.GGMLQuantizationType.Q8_0))).state_dict()
    for name, weights in model.state_dict().items():
        assert found[name].dtype == torch.float32
        step = weights.abs().max() / 127  # of a block, at most
        assert (found[name] - weights).abs().max() <= step * (0.5 + 2**-4), name  # the step itself is rounded to float16


def test_a_loaded_file_is_an_ordinary_model(file: Path, tmp_path: Path) -> None:
    loaded = load_model(str(file))
    assert all(weights.requires_grad for weights in loaded.parameters())
    loaded.save_pretrained(tmp_path / "saved")  # type: ignore[operator]
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "saved")), logits(loaded))


def test_its_tokenizer_is_read_from_the_file_unless_one_lies_beside_it(file: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(file))
    assert tokenizer.tokenize("the a") == ["th", "e", "Ġ", "a"] and tokenizer.eos_token_id == 2
    assert tokenizer.decode(tokenizer.encode("the x=1\n")) == "the x=1\n"
    beside = tmp_path / "model.gguf"
    beside.write_bytes(file.read_bytes())
    load_tokenizer("embedded").save_pretrained(tmp_path)
    assert load_tokenizer(str(beside)).get_vocab() == load_tokenizer("embedded").get_vocab()


def test_a_run_samples_from_it(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    policy = {"model": file.name}
    plan = resolve([{"recipe": "grpo", "device": "cpu", "threads": 1, "policies": {"generator": policy}}])
    engine = make_engine(plan)
    context = engine.encode("generator", (Part("what is 1+1?"),))
    assert engine.policy("generator").codec.decode_ids(context).startswith("<|im_start|>")
    (done,) = engine.sample("generator", [Request(context, 0)], Decoding(4, 1.0, (), True))
    assert 1 <= len(done.ids) <= 4
    assert compute_size(plan.config.policies["generator"]).total == sum(p.numel() for p in load_model(file.name).parameters())


def test_what_is_wrong_is_said_in_one_line(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check_model(str(file))
    other, cut = tmp_path / "other.gguf", tmp_path / "cut.gguf"
    other.write_bytes(b"not a model")
    cut.write_bytes(file.read_bytes()[:900])
    for path, what in ((other, "is not a GGUF file"), (tmp_path / "none.gguf", "does not exist")):
        assert run_guarded(lambda path=path: check_model(str(path))) == 2  # type: ignore[misc]
        (line,) = capsys.readouterr().err.splitlines()
        assert what in line and path.name in line
    for load in (load_model, load_tokenizer):
        with pytest.raises(ConfigError, match=r"cut\.gguf' cannot be loaded"):
            load(str(cut))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run_guarded(lambda: check_model(str(file))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert ".[gguf]" in line and file.name in line
