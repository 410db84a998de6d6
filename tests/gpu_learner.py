"""The learner on a GPU against float32 on the CPU: `python tests/gpu_learner.py` (exit code 1 where something is off).

Not a part of the test suite, which runs without a GPU. The exact side is the model's own forward pass over padded rows on the
CPU. Rounding to bfloat16 has its own size: the padded pass under autocast on the same GPU shows it, and the packed one may be
1.5 times as far from float32. `--device cpu` runs the same checks without a GPU.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from engine_helpers import TINY, gap, gradients, mixed_rows, section, stirred, tokenizer, train_batch
from milonga.engine.local import LocalEngine, learner, packed
from milonga.engine.local.shapes import explain_misfit
from milonga.errors import MissingExtra
from milonga.types import TrainBatch

SHAPE = {**TINY, "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 3, "num_attention_heads": 4}
MODELS: dict[str, Any] = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, num_key_value_heads=4, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, num_key_value_heads=2, tie_word_embeddings=False)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, num_key_value_heads=2, head_dim=128, tie_word_embeddings=True)),
}
EXACT = 1e-3
"""Allowed gap of float32 on both devices."""


def folder_of(root: Path, name: str) -> str:
    folder = root / name
    if not folder.exists():
        torch.manual_seed(0)
        model = MODELS[name]()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(2.0)
        model.save_pretrained(folder)
        tokenizer("bytes").save_pretrained(folder)
    return str(folder)


def taught() -> TrainBatch:
    rows = mixed_rows(24, 200)
    return train_batch(rows, [(-1.0) ** i * (0.5 + i / 20) for i in range(len(rows))], entropy_coef=0.01, kl_coef=0.1)


def found(model: str, device: str, packs: bool, **options: Any) -> list[torch.Tensor]:
    """Gradients of one step, on the CPU."""
    engine = stirred(LocalEngine({"p": section(model, grad_clip=1e9, **options)}, device=device), 0.03)
    learner.make_working_weights = packed.make_working_weights if packs else lambda policy: None
    assert explain_misfit(engine.policy("p")) is None
    try:
        return [gradient.cpu() for gradient in gradients(engine, taught())]
    finally:
        learner.make_working_weights = packed.make_working_weights


def check(name: str, root: Path, device: str, lora: dict[str, Any] | None) -> bool:
    """Print what was found for one model, and say whether all of it is near enough."""
    model, half = folder_of(root, name), {"lora": lora, "dtype": "bfloat16"}
    exact = found(model, "cpu", False, lora=lora, dtype="float32")
    allowed = 1.5 * gap(found(model, device, False, **half), exact)
    whole = found(model, device, True, **half)
    gaps = {
        "float32": (gap(found(model, device, True, lora=lora, dtype="float32"), exact), EXACT),
        "bfloat16": (gap(whole, exact), allowed),
        "bfloat16, recomputed": (gap(found(model, device, True, recompute=True, **half), exact), allowed),
        "bfloat16, cut against whole": (gap(found(model, device, True, micro_tokens=700, **half), whole), allowed),
    }
    for what, (distance, limit) in gaps.items():
        verdict = "ok" if distance < limit else "TOO FAR"
        sys.stdout.write(f"{name}{' lora' if lora else ''}, {what}: gap {distance:.2e}, allowed {limit:.2e}: {verdict}\n")
    return all(distance < limit for distance, limit in gaps.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    device = parser.parse_args().device
    warnings.filterwarnings("error", message=".*cannot be compiled.*")
    good = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in MODELS:
            for lora in (None, {"rank": 8, "alpha": 16.0}):
                try:
                    good.append(check(name, Path(scratch), device, lora))
                except MissingExtra as missing:
                    sys.stdout.write(f"{name} lora: not checked: {missing}\n")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
