"""Models of real shapes with random weights, as policies; and what the device can do: its bandwidth and its matrix peak."""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from milonga.config import PolicySection
from milonga.engine.local.codec import Codec
from milonga.engine.local.models import resolve_model_path
from milonga.engine.local.policy import Policy

QWEN = {
    "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12,
    "num_key_value_heads": 2, "max_position_embeddings": 32768, "rope_theta": 1e6, "tie_word_embeddings": True,
}  # fmt: skip
QWEN_HALF = QWEN | {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
}  # fmt: skip
QWEN_7B = QWEN | {
    "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}  # fmt: skip
SMOLLM = {
    "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
    "num_key_value_heads": 3, "max_position_embeddings": 8192, "rope_theta": 1e5, "tie_word_embeddings": True,
}  # fmt: skip
TINY = SMOLLM | {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1,
}  # fmt: skip
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHAPES: dict[str, Callable[[], Any]] = {
    "qwen2.5-0.5b": lambda: Qwen2ForCausalLM(Qwen2Config(**QWEN_HALF, **ENDS)),
    "qwen2.5-1.5b": lambda: Qwen2ForCausalLM(Qwen2Config(**QWEN, **ENDS)),
    "qwen2.5-7b": lambda: Qwen2ForCausalLM(Qwen2Config(**QWEN_7B, **ENDS)),
    "smollm2-135m": lambda: LlamaForCausalLM(LlamaConfig(**SMOLLM, **ENDS)),
    "tiny": lambda: LlamaForCausalLM(LlamaConfig(**TINY, **ENDS)),
}


def make_policy(shape: str, device: str, **options: Any) -> Policy:
    """Random weights; the embedded tokenizer, whose text does not matter here."""
    torch.manual_seed(0)
    with torch.device(device):
        model = SHAPES[shape]().float().eval()
    tokenizer = AutoTokenizer.from_pretrained(resolve_model_path("embedded"))
    section = PolicySection(model=shape, **options)
    return Policy("p", section, model, Codec(tokenizer, section.chat), adapter=None)


def load_policy(model: str, device: str, **options: Any) -> Policy:
    """A policy of a shape, or of a model in a folder."""
    if model in SHAPES:
        return make_policy(model, device, **options)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).to(device).eval()
    section = PolicySection(model=model, **options)
    return Policy("p", section, loaded, Codec(AutoTokenizer.from_pretrained(model), section.chat), adapter=None)


def make_config(model: str) -> Any:
    """The configuration of a shape, or of a model in a folder."""
    if model not in SHAPES:
        return AutoConfig.from_pretrained(model)
    with torch.device("meta"):
        made = SHAPES[model]()
    made.config.architectures = [type(made).__name__]
    return made.config


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], Any], device: str) -> float:
    """Seconds of one call."""
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def repeated(work: Callable[[], Any], device: str, repeats: int) -> list[float]:
    """Seconds of each of several calls, after one that is not counted."""
    return [timed(work, device) for _ in range(repeats + 1)][1:]


def peaks(device: str, tiny: bool = False) -> dict[str, float]:
    """What the hardware gives: TFLOP/s of a large product of random numbers, GB/s of a large copy (read and written bytes)."""
    size, dtype = (8192, torch.bfloat16) if device == "cuda" else (64 if tiny else 1024, torch.float32)
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = 20 if device == "cuda" else 3
    product = statistics.median(repeated(lambda: [left @ right for _ in range(times)], device, 5)) / times
    source = torch.empty(1 << (31 if device == "cuda" else 16 if tiny else 25), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = statistics.median(repeated(lambda: [target.copy_(source) for _ in range(times)], device, 5)) / times
    return {"tflops": 2 * size**3 / product / 1e12, "gb_per_s": 2 * source.numel() / copy / 1e9}


def parse(parser: argparse.ArgumentParser, **tiny: Any) -> argparse.Namespace:
    """Parse the arguments of a benchmark, with `--out` and `--tiny`. `tiny` are the defaults of the latter: the whole script
    in seconds on a CPU. What is given on the command line wins."""
    parser.add_argument("--tiny", action="store_true", help="the script itself in seconds: smallest sizes, one repetition")
    parser.add_argument("--out", type=Path, help="write the result to this file too")
    if parser.parse_args().tiny:
        parser.set_defaults(**tiny)
    return parser.parse_args()


def has_trl() -> bool:
    """Whether TRL is installed, beside which some of the benchmarks measure."""
    return importlib.util.find_spec("trl") is not None


def conditions(device: str) -> dict[str, Any]:
    """What a result was measured on, with what, when and how."""
    return {
        "hardware": torch.cuda.get_device_name() if device == "cuda" else f"CPU, {torch.get_num_threads()} threads",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version()},
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python " + " ".join(sys.argv),
    }


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "least": min(values), "most": max(values)}


def keep(result: dict[str, Any], out: Path | None) -> None:
    """Print a result, and write it where it was asked for."""
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    write(result, out)


def write(result: dict[str, Any], out: Path | None) -> None:
    """Write a result, as far as it has come, where it was asked for."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(result, indent=1) + "\n")
