"""A tiny random model that writes in whole phrases: what it says can be read now and then, as a weak model's."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from engine_helpers import SMALL, tokenizer


def phrase_model(folder: Path, phrases: Sequence[str], seed: int = 0) -> str:
    """Make an ordinary Hugging Face folder with a chat template. Its tokenizer reads any text. Its head prefers phrases, and
    after one of them the end: two features of its residual stream, which no layer changes, speak for these alone."""
    words = copy.deepcopy(tokenizer("chat"))
    words.add_tokens(list(phrases))
    words.save_pretrained(folder)
    torch.manual_seed(seed)
    shape = {**SMALL, "vocab_size": len(words), "num_key_value_heads": 2, "max_position_embeddings": 4096}
    model = Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=False))
    with torch.no_grad():
        own = slice(len(words) - len(phrases), len(words))
        model.model.embed_tokens.weight.mul_(15.0)[:, :2] = torch.tensor([1.0, 0.0])
        model.model.embed_tokens.weight[own, 1] = 1.0
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight[:2] = layer.mlp.down_proj.weight[:2] = 0.0
        model.lm_head.weight[own, 0] = 3.0
        model.lm_head.weight[words.eos_token_id, :2] = torch.tensor([0.0, 4.5])
    model.save_pretrained(folder)
    return str(folder)
