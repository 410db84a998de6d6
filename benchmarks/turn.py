"""Whole turns on one GPU: sampling, reading, grading, credit and learning.

GRPO of Milonga beside TRL's GRPOTrainer with its default generation (transformers' `generate`, no vLLM): the same model, the
same prompts, as many rollouts of as many tokens with no early end, advantages that are never zero, so that the same number of
tokens is trained. And a Tango turn beside a GRPO turn: the same generator work, and a verification of every solution that is
as long as it; the verifier's own turn (one solution and eight verifications of each problem) is timed beside it.
Where each turn's time goes is read off its timeline.

    pip install '.[bench]'
    python benchmarks/turn.py --out benchmarks/results/turn.json
    python benchmarks/turn.py --tiny      # the script itself, on a CPU; without TRL where that is not installed
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from milonga.api import make_engine
from milonga.engine.local import LocalEngine
from milonga.loop import Loop
from milonga.resolve import resolve
from milonga.runfolder.console import LiveView
from milonga.runfolder.folder import RunFolder
from milonga.types import TrainBatch
from shapes import conditions, has_trl, keep, parse, spread, timed


def write_problems(path: Path, count: int) -> None:
    """Questions of one length, about sums."""
    rng = random.Random(0)
    with path.open("w") as file:
        for _ in range(count):
            a, b, c = (rng.randrange(10, 100) for _ in range(3))
            text = f"A baker has {a} loaves and bakes {b} more. Then {c} are sold at the market. How many loaves are left?"
            file.write(json.dumps({"question": text, "answer": str(a + b - c)}) + "\n")


class Milonga:
    """One turn of a recipe after another, through the loop; nothing is measured or saved."""

    def __init__(self, recipe: str, args: argparse.Namespace, scratch: Path, stack: ExitStack) -> None:
        policies = {"generator": {"model": args.model, "lr": 1e-6}}
        if recipe == "tango":
            policies["verifier"] = dict(policies["generator"])
        settings = {
            "recipe": recipe,
            "turns": 10_000,
            "device": args.device,
            "policies": policies,
            "task": {"name": "jsonl", "path": str(scratch / "problems.jsonl")},
            "batch": {"problems": args.problems, "rollouts": args.rollouts},
            "sampling": {"max_tokens": args.new, "rows": args.problems * args.rollouts},
            "options": {"warmup": 0, "n_generator": 1, "n_verifier": 1} if recipe == "tango" else {},
            "eval": {"problems": 2, "samples": 1, "bench": 0, "every": 100_000},
            "keep": {"rollouts_every": 0, "checkpoint_every": 100_000},
        }
        plan = resolve([settings])
        folder = stack.enter_context(RunFolder(scratch / recipe, 1))
        view = stack.enter_context(LiveView("", None, quiet=True))
        engine = make_engine(plan)
        assert isinstance(engine, LocalEngine)
        for policy in engine.policies.values():
            policy.eos = []  # nothing ends early: no end of sequence, and no stop strings
        sample = engine.sample
        # Verifications may be twice as long as solutions; here they are as long, so that the work of both can be compared.
        whole = {"stop": (), "max_tokens": args.new}
        engine.sample = lambda p, r, d, *rest: sample(p, r, replace(d, **whole), *rest)  # type: ignore[method-assign]
        self.loop = Loop(plan, engine, folder, view)
        credit = self.loop.recipe.credit
        self.loop.recipe.credit = lambda *turn: map(tossed, credit(*turn))  # type: ignore[method-assign]

    def turn(self, device: str) -> tuple[str, float, dict[str, float]]:
        """Who learned, how long it took, and where the time went."""
        seconds = timed(self.loop.run_turn, device)
        return self.loop.rows[-1]["learner"], seconds, self.loop.folder.timing.rows()[-1]

    def prompts(self, count: int) -> list[str]:
        """What TRL is given: the prompts of the generator, letter by letter."""
        run_context = self.loop.run_context
        encode = [
            run_context.engine.encode(run_context.policies["generator"], run_context.roles["generator"].prompt(problem, None))
            for problem in run_context.task.draw_problems("train", 0, count)
        ]
        engine = run_context.engine
        assert isinstance(engine, LocalEngine)
        return [engine.policy("generator").codec.tokenizer.decode(ids) for ids in encode]


def tossed(train_batch: TrainBatch) -> TrainBatch:
    """The same rows with advantages of plus or minus one: what a random model earns would leave nothing to learn."""
    rng = np.random.default_rng(0)
    advantages = [rng.choice([-1.0, 1.0]) * rollout.mask for rollout in train_batch.rollouts]
    return replace(train_batch, advantages=advantages)


class Trl:
    """GRPOTrainer, one optimizer step for each generation; its rows are learned in micro-batches that fit."""

    def __init__(self, args: argparse.Namespace, prompts: list[str], scratch: Path) -> None:
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        from milonga.engine.local.models import resolve_model_path

        rows = args.problems * args.rollouts
        micro = min(args.micro, rows)
        on_cpu = args.device == "cpu"
        settings = GRPOConfig(
            output_dir=str(scratch / "trl"), per_device_train_batch_size=micro, gradient_accumulation_steps=rows // micro,
            num_generations=args.rollouts, max_completion_length=args.new, generation_kwargs={"min_new_tokens": args.new},
            temperature=1.0, learning_rate=1e-6, beta=0.0, bf16=not on_cpu, use_cpu=on_cpu, report_to=[], loss_type="grpo",
            gradient_checkpointing=False, save_strategy="no", logging_strategy="no", disable_tqdm=True, shuffle_dataset=False,
            max_steps=args.repeats + 2, lr_scheduler_type="constant",
        )  # fmt: skip
        tokenizer = AutoTokenizer.from_pretrained(resolve_model_path(args.model))
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        rng = random.Random(0)
        self.trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(resolve_model_path(args.model), dtype=torch.float32),
            reward_funcs=lambda completions, **_: [rng.random() for _ in completions],
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": prompts * (args.repeats + 2)}),
            processing_class=tokenizer,
        )

    def steps(self, device: str) -> list[float]:
        """Seconds of each optimizer step with its generation, from the trainer's own loop; the first warms up."""
        from transformers import TrainerCallback

        moments: list[float] = []

        class Watch(TrainerCallback):
            def on_step_end(self, *_: Any, **__: Any) -> None:
                timed(lambda: None, device)
                moments.append(time.perf_counter())

        self.trainer.add_callback(Watch())
        self.trainer.train()
        return [after - before for before, after in pairwise(moments)]


def middle_line(lines: list[dict[str, float]]) -> dict[str, float]:
    """The median of each kind of work, and of the share of the turn in which nothing computed."""
    kinds = dict.fromkeys(key for line in lines for key in line if key.endswith("_s"))
    out = {kind: statistics.median(line.get(kind, 0.0) for line in lines) for kind in kinds}
    return out | {"idle share": statistics.median(line["idle_s"] / line["turn_s"] for line in lines)}


def measure(args: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        scratch = Path(temporary)
        write_problems(scratch / "problems.jsonl", 8 * args.problems + 40)
        seconds: dict[str, list[float]] = {}
        for recipe, agents in (("grpo", ["generator"]), ("tango", ["generator", "verifier"])):
            side = Milonga(recipe, args, scratch, stack)
            for _ in agents:
                side.turn(args.device)
            turns = [side.turn(args.device) for _ in range(args.repeats * len(agents))]
            for agent in agents:
                name = recipe if agent == "generator" else f"{recipe}, the verifier's turn"
                seconds[name] = [took for learner, took, _ in turns if learner == agent]
                yield f"{name}: timeline", middle_line([line for learner, _, line in turns if learner == agent])
            if recipe == "grpo":
                prompts = side.prompts(args.problems)
            del side
        if not args.alone:
            seconds["trl"] = Trl(args, prompts, scratch).steps(args.device)
        yield "seconds", {name: spread(values) for name, values in seconds.items()}
        middle = {name: statistics.median(values) for name, values in seconds.items()}
        yield "tango over grpo", middle["tango"] / middle["grpo"]
        if not args.alone:
            yield "trl over milonga", middle["trl"] / middle["grpo"]
        tokens = args.problems * args.rollouts * args.new
        # In each of these turns as many rows of as many tokens are learned: solutions, or verifications.
        yield "trained tokens/s", {name: tokens / value for name, value in middle.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--problems", type=int, default=64)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--micro", type=int, default=64, help="rows of TRL's micro-batches")
    parser.add_argument("--alone", action="store_true", help="without TRL")
    args = parse(parser, model="embedded", problems=2, rollouts=2, new=4, repeats=1, alone=not has_trl())
    args.device = "cuda" if torch.cuda.is_available() and not args.tiny else "cpu"
    given = {key: getattr(args, key) for key in ("model", "problems", "rollouts", "new", "micro")}
    result = conditions(args.device) | given
    try:
        for what, found in measure(args):
            result[what] = found
    finally:
        keep(result, args.out)  # what was measured until then, should the other side fail


if __name__ == "__main__":
    main()
