"""One GRPO step of Milonga and of TRL on the same completions: forward, backward, clipping, optimizer.

Same tiny model, the same 256 completions of 64 tokens with no early end, random non-zero advantages, equal trained tokens, same
dtype and threads, interleaved in one process; and the floor of the forward and backward passes alone. Peak memory is
measured in processes of their own, one for each side.

    pip install '.[bench]'
    python benchmarks/step.py --out benchmarks/results/step.json
    python benchmarks/step.py --tiny      # the script itself; without TRL where that is not installed
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from milonga.config import PolicySection
from milonga.engine.local import LocalEngine
from milonga.engine.local.learner import compute_token_logprobs, make_micro_batches
from milonga.engine.local.models import resolve_model_path
from milonga.engine.local.packed import make_working_weights
from milonga.objectives import make_objective
from milonga.types import Parsed, Problem, Rollout, Rollouts, Segment, Solution, TrainBatch
from shapes import has_trl, keep, parse

LEARNING_RATE = 1e-5


def make_model(folder: Path, width: int) -> None:
    """A Llama of four layers with the embedded tokenizer: 0.9M parameters at width 128, 1.8M at 192."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model_path("embedded"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=4,
        num_attention_heads=width // 32, num_key_value_heads=width // 32, max_position_embeddings=512,
        tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


class Size(NamedTuple):
    """Completions in the step, and the tokens of each."""

    rows: int
    prompt: int
    completion: int


def make_rows(size: Size) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (no specials, so that nothing ends early) and advantages that are never zero."""
    rng = np.random.default_rng(0)
    ids = rng.integers(3, 259, (size.rows, size.prompt + size.completion))
    advantages = rng.choice([-1.0, 1.0], size.rows) * rng.uniform(0.5, 1.5, size.rows)
    return ids, advantages


class Milonga:
    """The engine's own `learn`."""

    def __init__(self, folder: Path, size: Size) -> None:
        section = PolicySection(model=str(folder), lr=LEARNING_RATE)
        self.engine = LocalEngine({"generator": section}, device="cpu")
        ids, advantages = make_rows(size)
        problem, parsed = Problem("p", "", ""), Parsed(Solution((), (), None), 1.0)
        segments = (Segment("prompt", 0, size.prompt), Segment("g", size.prompt, ids.shape[1], "generator", 0, trained=True))
        rollouts = Rollouts(
            Rollout(str(i), "generator", problem, row, segments, np.zeros(len(row)), "", parsed) for i, row in enumerate(ids)
        )
        for rollout, logprobs in zip(rollouts, self.engine.score("generator", rollouts), strict=True):
            rollout.logprobs = logprobs
        per_token = [a * t.mask for a, t in zip(advantages, rollouts, strict=True)]
        self.train_batch = TrainBatch("generator", make_objective("grpo").loss, rollouts, advantages=per_token)

    def step(self) -> float:
        report = self.engine.learn(self.train_batch)
        assert report.tokens == sum(t.length for t in self.train_batch.rollouts) and report.skipped is None
        return report.loss

    def passes(self) -> float:
        """The floor: one forward and one backward over the same tokens, and nothing else."""
        policy = self.engine.policy("generator")
        total = 0.0
        ready = make_working_weights(policy)
        for batch in make_micro_batches(policy, self.train_batch.rollouts, None, ready):
            assert batch is not None  # an empty micro-batch only keeps workers of a group in step
            logp, _ = compute_token_logprobs(policy, batch, ready)
            logp.sum().backward()
            total += float(logp.detach().sum())
        policy.optimizer.zero_grad(set_to_none=True)
        return total


class Trl:
    """TRL's GRPOTrainer on prepared completions: its training step, then clipping and the optimizer as its loop does."""

    def __init__(self, folder: Path, scratch: Path, size: Size) -> None:
        from datasets import Dataset
        from trl import GRPOConfig, GRPOTrainer

        arguments = GRPOConfig(
            output_dir=str(scratch), per_device_train_batch_size=size.rows, num_generations=2 if size.rows % 8 else 8,
            max_completion_length=size.completion,
            learning_rate=LEARNING_RATE, beta=0.0, use_cpu=True, bf16=False, fp16=False, report_to=[], max_grad_norm=1.0,
            gradient_checkpointing=False, loss_type="grpo", save_strategy="no", logging_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.trainer = GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=arguments,
            train_dataset=Dataset.from_dict({"prompt": ["a"] * size.rows}),
            processing_class=AutoTokenizer.from_pretrained(folder),
        )
        self.trainer.create_optimizer()
        ids, advantages = make_rows(size)
        tokens = torch.from_numpy(ids)
        self.inputs: dict[str, Any] = {
            "prompt_ids": tokens[:, : size.prompt],
            "prompt_mask": torch.ones(size.rows, size.prompt, dtype=torch.long),
            "completion_ids": tokens[:, size.prompt :],
            "completion_mask": torch.ones(size.rows, size.completion, dtype=torch.long),
            "advantages": torch.from_numpy(advantages).float(),
            "num_items_in_batch": torch.tensor(size.rows * size.completion),
        }
        # The completions are given: what generation would have prepared is handed over as it is.
        self.trainer._prepare_inputs = lambda inputs: inputs
        self.trainer.current_gradient_accumulation_steps = 1  # set by its training loop otherwise
        self.trainer.model.train()

    def step(self) -> float:
        trainer = self.trainer
        loss = trainer.training_step(trainer.model, self.inputs, self.inputs["num_items_in_batch"])
        torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), trainer.args.max_grad_norm)
        trainer.optimizer.step()
        trainer.optimizer.zero_grad()
        return float(loss)


def timed(action: Callable[[], float]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def summary(seconds: list[float]) -> dict[str, float]:
    return {"median_s": statistics.median(seconds), "least_s": min(seconds), "most_s": max(seconds)}


def peak_memory(side: str, folder: Path, threads: int, size: Size) -> float:
    """MiB that one side's process needs at most, its imports included."""
    command = [sys.executable, __file__, "--side", side, "--model", str(folder), "--threads", str(threads)]
    command += [part for name, value in size._asdict().items() for part in (f"--{name}", str(value))]
    out = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ})
    return float(out.stdout.strip().splitlines()[-1])


def own_peak() -> float:
    """MiB at the peak of this process alone: `ru_maxrss` would count what the parent had at the fork."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM"))


def measure(args: argparse.Namespace, size: Size) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "model"
        make_model(folder, args.width)
        ours = Milonga(folder, size)
        sides = {"milonga": ours.step, "passes": ours.passes}
        if not args.alone:
            sides["trl"] = Trl(folder, Path(scratch) / "trl", size).step
        for action in sides.values():
            action()
        seconds: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(args.repeats):
            for name, action in sides.items():
                seconds[name].append(timed(action))
        memory = {side: peak_memory(side, folder, args.threads, size) for side in sides if side != "passes"}
        parameters = sum(p.numel() for p in ours.engine.policy("generator").parameters)
    result = {
        "what": f"one GRPO step, {size.rows} completions of {size.completion} tokens after {size.prompt}, float32",
        "command": f"python benchmarks/step.py --width {args.width} --threads {args.threads} --repeats {args.repeats}",
        "date": time.strftime("%Y-%m-%d"),
        "parameters": parameters,
        "hardware": {"cpu": cpu_name(), "threads": args.threads},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "seconds": {name: summary(values) for name, values in seconds.items()},
        "milonga_over_passes": statistics.median(seconds["milonga"]) / statistics.median(seconds["passes"]),
        "peak_memory_mib": memory,
    }
    return result if args.alone else result | compare_with_trl(seconds)


def compare_with_trl(seconds: dict[str, list[float]]) -> dict[str, Any]:
    """TRL's time over ours, pair by pair, and its version."""
    ratios = [t / m for t, m in zip(seconds["trl"], seconds["milonga"], strict=True)]
    return {
        "trl": version("trl"),
        "trl_over_milonga": {"median": statistics.median(ratios), "least": min(ratios), "most": max(ratios)},
    }


def cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--rows", type=int, default=256, help="completions")
    parser.add_argument("--prompt", type=int, default=16, help="tokens before a completion")
    parser.add_argument("--completion", type=int, default=64, help="tokens of a completion")
    parser.add_argument("--alone", action="store_true", help="without TRL")
    parser.add_argument("--side", choices=("milonga", "trl"), help=argparse.SUPPRESS)
    parser.add_argument("--model", type=Path, help=argparse.SUPPRESS)
    args = parse(parser, width=32, threads=1, repeats=1, rows=4, prompt=4, completion=4, alone=not has_trl())
    size = Size(args.rows, args.prompt, args.completion)
    torch.set_num_threads(args.threads)
    if args.side:
        with tempfile.TemporaryDirectory() as scratch:
            side = Milonga(args.model, size) if args.side == "milonga" else Trl(args.model, Path(scratch), size)
            for _ in range(2):
                side.step()
        sys.stdout.write(f"{own_peak():.0f}\n")
        return
    keep(measure(args, size), args.out)


if __name__ == "__main__":
    main()
