"""Make a base model: tokenizer, small Llama, noisy demonstrations in the roles of its tasks.

Deterministic on one machine: data is keyed by (seed, step), weights by the seed. Without `--out` the result replaces the folder
`src/milonga/embedded/NAME`; the README there tells what was used for those that are shipped. The bases of the study (`study`,
`judge…`) are not shipped, and come in four sizes.

    python scripts/make_base.py --device cuda
    python scripts/make_base.py --base search --warm src/milonga/embedded/base --device cuda
    python scripts/make_base.py --base bugs --warm src/milonga/embedded/base --device cuda --workers 12
    python scripts/make_base.py --base code --warm src/milonga/embedded/base --device cuda --workers 12
    python scripts/make_base.py --base study --size 7M --out bases/generator-7M --device cuda --workers 12
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: its matrix products are then repeatable


import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import base_bugs
import base_code
import base_search
import base_study
from milonga.randomness import keyed_rng
from milonga.roles import StepSolver, StepVerifier
from milonga.roles.demonstrate import Example, make_solver_example, make_verifier_example
from milonga.systems.search_self_play.demonstrations import Talk
from milonga.tasks import Chain, LastLetter, Task
from milonga.tasks.chain import ChainOptions
from milonga.tasks.last_letter import LastLetterOptions
from milonga.types import Prompt

PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
FLIP = 0.15
MIX: list[tuple[Task, float, float]] = [
    # task, share of the data, how often a step of the demonstrator is wrong
    (Chain(ChainOptions(min_ops=1, ops=13, mod=100, seed=1)), 0.5, 0.25),
    # The weak start of the guessable regime: a demonstrator who is mostly wrong.
    (Chain(ChainOptions(min_ops=1, ops=13, mod=20, seed=1)), 0.2, 0.6),
    (LastLetter(LastLetterOptions(min_words=2, max_words=10, seed=1)), 0.3, 0.2),
]
SOLVER, VERIFIER = StepSolver("terse"), StepVerifier("terse")
Row = list[tuple[str, bool]]
"""Pieces of a text, each with whether it is learned; behind a learned piece stands the end-of-sequence token."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """One token per byte: any text can be written, nothing is ever unknown, and a newcomer can read the ids."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([PAD, BOS, EOS, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, bos_token=BOS, eos_token=EOS)


SIZES = {"0.4M": (96, 3), "1.8M": (192, 4), "7M": (320, 6), "28M": (576, 7)}
"""Width and layers; a head has 32 of the width, the inner layer eight thirds of it, in whole blocks of 32."""


def make_model(vocab: int, size: str) -> LlamaForCausalLM:
    width, layers = SIZES[size]
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=width, intermediate_size=8 * width // 3 // 32 * 32, num_hidden_layers=layers,
        num_attention_heads=width // 32, num_key_value_heads=width // 32, max_position_embeddings=512, tie_word_embeddings=True,
        attn_implementation="eager", pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def base_row(rng: random.Random, step: int, number: int) -> Example:
    """The first base: solutions and verifications of chains and last letters."""
    task, _, slip = rng.choices(MIX, [share for _, share, _ in MIX])[0]
    problem = task.problem("train", number)
    if rng.random() < 0.5:
        return make_solver_example(task, problem, SOLVER, slip, rng)
    return make_verifier_example(task, problem, (SOLVER, VERIFIER), FLIP, rng)


ROWS: dict[str, Callable[[random.Random, int, int], Example | Talk]] = {
    "base": base_row,
    "bugs": base_bugs.row,
    "code": base_code.row,
    "search": base_search.row,
    "study": base_study.solver_row,
    **base_study.JUDGES,
}
"""What each base is made of: a row from a random source, the step and the row's number."""


def row_of(shown: Example | Talk) -> Row:
    turns = ((shown.completion, ()),) if isinstance(shown, Example) else shown.turns
    out: Row = [(spelt(shown.prompt), False)]
    for said, heard in turns:
        out += [(said, True), (spelt(heard), False)]
    return out


def spelt(prompt: Prompt) -> str:
    return "".join(part.text for part in prompt)


def examples(job: tuple[str, int, int, int]) -> list[Row]:
    """The rows of one step; a pure function of (base, seed, step, rows)."""
    base, seed, step, rows = job
    rng = keyed_rng("warm", seed, step)
    return [row_of(ROWS[base](rng, step, step * rows + row)) for row in range(rows)]


def batch(rows: list[Row], device: str, bucket: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Rows sorted by length and cut into buckets, so that little padding is computed. Only learned pieces are targets."""
    ids = [encoded(row) for row in rows]
    ids.sort(key=lambda pair: len(pair[0]))
    out = []
    for at in range(0, len(ids), bucket):
        part = ids[at : at + bucket]
        longest = max(len(row) for row, _ in part)
        tokens = torch.zeros(len(part), longest, dtype=torch.long)
        targets = torch.full((len(part), longest), -100)
        for i, (row, learned) in enumerate(part):
            tokens[i, : len(row)] = torch.tensor(row)
            targets[i, : len(row)] = torch.where(torch.tensor(learned), tokens[i, : len(row)], -100)
        out.append((tokens.to(device), targets.to(device)))
    return out


def encoded(row: Row) -> tuple[list[int], list[bool]]:
    """The ids of a row, and which of them are learned."""
    table, ids, learned = _byte_ids(), list[int](), list[bool]()
    for text, wanted in row:
        more = [table[b] for b in text.encode()] + [2] * wanted
        ids, learned = ids + more, learned + [wanted] * len(more)
    return ids, learned


def _byte_ids() -> dict[int, int]:
    if not _BYTES:
        tokenizer = make_tokenizer()
        for byte in range(128):
            _BYTES[byte] = tokenizer.encode(chr(byte), add_special_tokens=False)[0]
    return _BYTES


_BYTES: dict[int, int] = {}


def train(args: argparse.Namespace) -> LlamaForCausalLM:
    torch.manual_seed(args.seed)
    tokenizer = make_tokenizer()
    model = make_model(len(tokenizer), args.size)
    if args.warm is not None:
        start = LlamaForCausalLM.from_pretrained(args.warm, dtype=torch.float32)
        model.load_state_dict(start.state_dict())
    model.to(args.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01)
    began = time.time()
    with ProcessPoolExecutor(args.workers) as pool:
        jobs = ((args.base, args.seed, step, args.rows) for step in range(args.stop + 1))
        for step, rows in enumerate(pool.map(examples, jobs, chunksize=4)):
            warm, left = min(1.0, (step + 1) / 100), (args.steps - step) / args.steps
            for group in optimizer.param_groups:
                group["lr"] = args.lr * warm * (0.05 + 0.95 * 0.5 * (1 - math.cos(math.pi * left)))
            parts = batch(rows, args.device, args.rows // args.buckets)
            count = sum(int((targets >= 0).sum()) for _, targets in parts)
            total = 0.0
            for tokens, targets in parts:
                logits = model(input_ids=tokens, attention_mask=(tokens != 0).long()).logits[:, :-1]
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1), targets[:, 1:].flatten(), ignore_index=-100, reduction="sum"
                )
                (loss / count).backward()
                total += float(loss.detach())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step % 50 == 0 or step == args.stop:
                print(f"step {step:5d}  loss {total / count:.4f}  {time.time() - began:6.0f} s", flush=True)
            if step % 100 == 99 or step == args.stop:  # what is interrupted leaves something
                save(model, tokenizer, args.out, args.size)
    return model


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, out: Path, size: str) -> None:
    """bfloat16 on disk (half the size); every user loads the same rounded weights and computes in float32."""
    out.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().cpu().to(torch.bfloat16) for name, tensor in model.state_dict().items()}
    copy = make_model(len(tokenizer), size).to(torch.bfloat16)
    copy.load_state_dict(state)
    copy.save_pretrained(out)
    tokenizer.save_pretrained(out)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", choices=sorted(ROWS), default="base", help="which one: what it is taught")
    parser.add_argument("--out", type=Path, help="folder; by default that of the base in src/milonga/embedded")
    parser.add_argument("--size", choices=SIZES, default="1.8M", help="number of parameters")
    parser.add_argument("--warm", type=Path, help="a base to start from, rather than from nothing")
    parser.add_argument("--steps", type=int, default=4500, help="steps of the learning-rate schedule")
    parser.add_argument("--stop", type=int, default=3000, help="stop after this step")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--buckets", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1)
    args = parser.parse_args(argv)
    args.out = args.out or Path("src/milonga/embedded") / args.base
    torch.use_deterministic_algorithms(True)
    train(args)


if __name__ == "__main__":
    main()
