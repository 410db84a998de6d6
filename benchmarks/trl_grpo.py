r"""GRPO by TRL's GRPOTrainer, with the work and the pay of `milonga run grpo`: the other side of a comparison of whole runs.

It trains a LoRA adapter, writes each update's reward, lengths and seconds, and saves the adapter in peft's format, so that the
same evaluation measures both sides. What is the same as in a run of ours:

- the problems of each update and their order, which are the task's own; the text of the prompts; rollouts and their limit;
- the reward: 1 or 0 by the task's grader, for the last box of a text, else for its last number. A completion that the grader
  cannot judge has no advantage, and its group's baseline leaves it out;
- advantages: group mean and unbiased standard deviation (TRL adds 1e-4 to it, we 1e-6); no KL; clipping at 0.2;
- the loss: our preset `grpo` takes the mean over the tokens of each sequence, then over all sequences
  (`aggregate="sequence_mean"`). That is TRL's `loss_type="grpo"`, not its default;
- one optimizer step of AdamW for each batch of rollouts, its betas, clipping and warm-up;
- the adapter: on all linear layers but the head, from the same seed, in float32 on a base in bfloat16 (which rounds its start).

What is not: TRL's old policy is the learner's own forward pass, ours the sampler's; it encodes question and instruction as
one text, we as two, so that a token may differ where they meet; and the random numbers. Of a text that was cut at the limit,
the last number counts there, and nothing here. And the sampler:

- without `--vllm`, it is transformers' `generate`, TRL's default;
- with `--vllm SHARE`, it is vLLM in the same process, with CUDA graphs and this share of the GPU's memory. For each update TRL
  merges the adapter into the learner's weights, gives vLLM the sum and takes the adapter out again. In bfloat16 both steps
  round: vLLM samples from a rounded adapter, and the base under the adapter does not come back exactly. By default TRL would
  also drop sequences that are three times as likely under the learner as under vLLM
  (`vllm_importance_sampling_correction`). That is off here: plain GRPO, as without vLLM.

    pip install '.[bench,lora,math]'
    python benchmarks/trl_grpo.py --model FOLDER --data problems.jsonl --out benchmarks/results/trl-0.json
    python benchmarks/trl_grpo.py --vllm 0.15 --model FOLDER --data problems.jsonl --out benchmarks/results/trl-vllm-0.json
    python benchmarks/trl_grpo.py --tiny      # the script itself, on a CPU
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback, set_seed

from milonga.config import parse_settings
from milonga.engine.local.models import resolve_model_path
from milonga.errors import UserError
from milonga.roles import StepSolver
from milonga.tasks import Task, make_task
from milonga.types import Problem, Solution
from shapes import SHAPES, conditions, has_trl, keep, parse, wait, write
from turn import write_problems

SOLVER = StepSolver("plain")
LOGGED = {
    "reward": "reward",
    "groups without a signal": "frac_reward_zero_std",
    "mean length": "completions/mean_length",
    "shortest": "completions/min_length",
    "longest": "completions/max_length",
    "truncated": "completions/clipped_ratio",
    "gradient norm": "grad_norm",
    "learning rate": "learning_rate",
}
"""What is kept of an update, and what TRL calls it."""
PROMPT = 1536
"""Tokens of a prompt that vLLM has room for."""


def read_answer(task: Task, problem: Problem, text: str) -> str | None:
    """Read the answer as a run of ours does: the last box, else what the task finds."""
    return SOLVER.parse(text).get(Solution).answer or task.extract(text, problem)


def make_reward(task: Task, problems: Sequence[Problem]) -> Callable[..., list[float | None]]:
    """Make TRL's reward function of the task's own grades; None where the grader could not tell."""

    def correct(completions: Sequence[Sequence[dict[str, str]]], problem: Sequence[int], **_: Any) -> list[float | None]:
        asked = [problems[at] for at in problem]
        texts = [messages[-1]["content"] for messages in completions]
        answers = [read_answer(task, one, text) for one, text in zip(asked, texts, strict=True)]
        grades = task.grade_all([(one, answer, ()) for one, answer in zip(asked, answers, strict=True)])
        return [None if grade.correct is None else float(grade.correct) for grade in grades]

    return correct


class Watch(TrainerCallback):
    """Keeps a line for each update, and writes the result after each: a run that is cut off leaves its curve."""

    def __init__(self, result: dict[str, Any], out: Path | None, device: str) -> None:
        self.result, self.out, self.device = result, out, device
        result["curve"] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        wait(self.device)
        now = time.perf_counter()
        self.seconds, self.began = now - self.began, now

    def on_log(self, *_: Any, logs: dict[str, float], **__: Any) -> None:
        if "reward" not in logs:
            return  # the summary at the end
        line = {name: logs[key] for name, key in LOGGED.items()}
        self.result["curve"].append(line | {"seconds": self.seconds})
        write(self.result, self.out)


def make_adapted_model(args: argparse.Namespace) -> Any:
    """Load the base and add an adapter, with the layers and the seed of our own."""
    import peft

    dtype = torch.float32 if args.device == "cpu" else torch.bfloat16
    base = AutoModelForCausalLM.from_pretrained(str(args.model), dtype=dtype).to(args.device)
    torch.manual_seed(0)
    lora = peft.LoraConfig(
        r=args.lora_rank, lora_alpha=args.lora_alpha, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(base, lora)


def make_optimizer(args: argparse.Namespace, model: Any) -> tuple[torch.optim.Optimizer, Any]:
    """Make AdamW and its schedule. Warm-up is ours: its step number `warmup` is the first whole one; transformers' begins at
    zero, and would give away an update."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=args.lr, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / max(1, args.warmup)))
    return optimizer, schedule


def make_sampler(args: argparse.Namespace) -> dict[str, Any]:
    """Make the settings of TRL that choose its sampler; none for transformers' `generate`."""
    if args.vllm is None:
        return {}
    return {
        "use_vllm": True,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": args.vllm,
        "vllm_max_model_length": PROMPT + args.max_tokens,
        "vllm_importance_sampling_correction": False,
    }


def make_trainer(args: argparse.Namespace, task: Task, watch: Watch, scratch: Path) -> Any:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rows = args.problems * args.rollouts
    settings = GRPOConfig(
        output_dir=str(scratch / "trl"), seed=args.seed, max_steps=args.updates, shuffle_dataset=False,
        per_device_train_batch_size=args.micro, gradient_accumulation_steps=rows // args.micro, generation_batch_size=rows,
        num_generations=args.rollouts, num_iterations=1, max_completion_length=args.max_tokens,
        temperature=1.0, top_p=1.0, top_k=0, beta=0.0, epsilon=0.2, scale_rewards="group", loss_type="grpo", max_grad_norm=1.0,
        bf16=args.device != "cpu", use_cpu=args.device == "cpu", gradient_checkpointing=args.recompute,
        report_to=[], save_strategy="no", logging_steps=1, disable_tqdm=True,
        **make_sampler(args),
    )  # fmt: skip
    problems = task.draw_problems("train", 0, args.updates * args.problems)
    texts = ["".join(part.text for part in SOLVER.prompt(problem)) for problem in problems]
    prompts = [[{"role": "user", "content": text}] for text in texts]
    model = make_adapted_model(args)
    return GRPOTrainer(
        model=model,
        reward_funcs=make_reward(task, problems),
        args=settings,
        train_dataset=Dataset.from_dict({"prompt": prompts, "problem": list(range(len(problems)))}),
        processing_class=AutoTokenizer.from_pretrained(args.model, padding_side="left"),
        optimizers=make_optimizer(args, model),
        callbacks=[watch],
    )


def measure(args: argparse.Namespace, result: dict[str, Any], scratch: Path) -> None:
    """Train, and save the adapter where the arguments say. The result grows with every update."""
    task = make_task({"name": args.task, "path": str(args.data), **parse_settings(args.options)})
    task.make_ready()
    trainer = make_trainer(args, task, Watch(result, args.out, args.device), scratch)
    if args.vllm is not None:
        set_seed(args.seed)  # vLLM shares the process, and has set its own seed: 0, whatever TRL's is
    trainer.train()
    trainer.model.save_pretrained(args.adapter)
    result["seconds"] = sum(line["seconds"] for line in result["curve"])


def make_tiny_inputs(scratch: Path) -> tuple[Path, Path]:
    """A random model with a chat template, and a file of problems."""
    model, data = scratch / "model", scratch / "problems.jsonl"
    torch.manual_seed(0)
    SHAPES["tiny"]().save_pretrained(model)
    tokenizer = AutoTokenizer.from_pretrained(resolve_model_path("embedded"))
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
    tokenizer.save_pretrained(model)
    write_problems(data, 40)
    return model, data


def parse_arguments(scratch: Path) -> argparse.Namespace:
    """Parse the command line; one line says what is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a Hugging Face folder with a chat template")
    parser.add_argument("--data", type=Path, help="the problems, as the task reads them")
    parser.add_argument("--task", default="jsonl", help="the task that reads them, such as gsm8k")
    parser.add_argument("--options", default="", help="of the task: answer_after=####,seed=1")
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--warmup", type=int, default=0, help="optimizer steps of linear warm-up")
    parser.add_argument("--lora-rank", type=int, default=16)
    parser.add_argument("--lora-alpha", type=float, default=32)
    parser.add_argument("--seed", type=int, default=0, help="of TRL's sampling")
    parser.add_argument("--micro", type=int, default=32, help="rows of a micro-batch")
    parser.add_argument("--recompute", action="store_true", help="gradient checkpointing, where a micro-batch does not fit")
    parser.add_argument("--vllm", type=float, metavar="SHARE", help="sample with vLLM, in this share of the GPU's memory")
    parser.add_argument("--adapter", type=Path, help="the folder for the adapter; by default that of --out, less its ending")
    args = parse(parser, updates=2, problems=2, rollouts=2, max_tokens=8, micro=2, lora_rank=2, warmup=2)
    if not has_trl():
        parser.error("TRL is not installed: pip install '.[bench,lora,math]'")
    if args.tiny:
        tiny = make_tiny_inputs(scratch)
        args.model, args.data = args.model or tiny[0], args.data or tiny[1]
    elif args.model is None or args.data is None or args.out is None:
        parser.error("--model, --data and --out are needed")
    if not args.model.is_dir():
        parser.error(f"--model {args.model} is not a folder")
    if args.problems * args.rollouts % args.micro:
        parser.error(f"--micro {args.micro} does not divide {args.problems} problems with {args.rollouts} rollouts")
    args.adapter = args.adapter or (args.out.with_suffix("") if args.out else scratch / "adapter")
    args.device = "cuda" if torch.cuda.is_available() and not args.tiny else "cpu"
    args.sampler = "transformers" if args.vllm is None else "vllm"
    if args.vllm is not None:
        check_vllm(parser, args)
    return args


def check_vllm(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Say what keeps vLLM from sampling here, before a model is loaded."""
    if not 0 < args.vllm < 1:
        parser.error(f"--vllm {args.vllm} is not a share of the memory, such as 0.15")
    if args.device != "cuda":
        parser.error("--vllm needs a GPU")
    if importlib.util.find_spec("vllm") is None:
        parser.error("vLLM is not installed: pip install vllm")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        args = parse_arguments(Path(temporary))
        result = conditions(args.device)
        used = ("trl", "peft") if args.vllm is None else ("trl", "peft", "vllm")
        result["versions"] |= {name: version(name) for name in used}
        result["settings"] = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
        try:
            measure(args, result, Path(temporary))
        except UserError as error:
            raise SystemExit(f"error: {error}") from None
        keep(result, args.out)


if __name__ == "__main__":
    main()
