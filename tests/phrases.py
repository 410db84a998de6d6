"""A tiny random model whose tokens are whole phrases: what it writes can be read, so that judges and proposers in free text run
from end to end in seconds. Its weights are random; which phrase it writes depends on what it was asked."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from engine_helpers import SMALL, tokenizer

PHRASES = (
    "Two and two are four.\n\n",
    "It is about apples and pears.\n\n",
    "The final answer is \\boxed{4}.\n",
    "The final answer is \\boxed{6}.\n",
    "Question: How many apples does Ana have in all?\nSolution: She has 2 and 2, so \\boxed{4}.\n",
    "Question: How many pears has Bo eaten since May?\nSolution: He ate 3 and 3, so \\boxed{6}.\n",
    "Score: 2\n",
    "Score: 5\n",
    "Final verdict: CORRECT\n",
    "Final verdict: INCORRECT\n",
    "[[A]]\n",
    "[[B]]\n",
)


def phrase_model(root: Path) -> str:
    """Save the model as an ordinary folder with a chat template."""
    folder = root / "phrases"
    tokenizer("chat").save_pretrained(folder)
    words = PreTrainedTokenizerFast.from_pretrained(folder)
    words.add_tokens(list(PHRASES))
    torch.manual_seed(0)
    more = {"num_key_value_heads": 2, "tie_word_embeddings": False, "max_position_embeddings": 4096}
    model = Qwen2ForCausalLM(Qwen2Config(**SMALL | more))
    likely = [words.eos_token_id, *words.convert_tokens_to_ids(list(PHRASES))]
    with torch.no_grad():
        # All tokens have a direction in common, and along it phrases are likelier than letters.
        model.model.embed_tokens.weight.mul_(10.0)[:, 0] = 0.5
        model.lm_head.weight.zero_()[likely] = 0.25 * torch.randn(len(likely), 32)
        model.lm_head.weight[likely, 0] = 2.5
        model.lm_head.weight[words.eos_token_id, 0] = 3.0
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return str(folder)


def model_of_phrases(folder: Path, phrases: Sequence[str], seed: int = 0) -> str:
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


def write_questions(path: Path, answers: bool = True, shift: int = 0) -> str:
    """Write a file of questions in words, with answers or without; those with a shift are wrong."""
    rows = [{"question": f"Ana has {n} apples and Bo has {n}. How many are there?"} for n in range(40)]
    rows = [row | {"answer": str(2 * n + shift)} for n, row in enumerate(rows)] if answers else rows
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)
