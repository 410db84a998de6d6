"""On a CUDA device: the sampler with kernels against the portable one on the CPU, and against the learner.

    python scripts/check_gpu.py [--out docs/results/gpu-check.json]
    python scripts/check_gpu.py --tiny      # the script itself, on a CPU: the kernels run in Triton's interpreter

Random models of the shapes that the kernels know, in float32 (same tokens, log-probabilities within 1e-4 of the CPU's) and
in bfloat16 (log-probabilities near those of a fresh forward pass); conversations whose turns go on from kept histories, too.
And `offload`: turns of two policies with and without it end in the same bits, and what it moves to the host is missed on the
device while they sample. Exit code 1 if anything is off.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if "--tiny" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # Triton must know before it is loaded, and torch loads it

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from engine_helpers import TINY, kernel_model, prompts, requests, rollout_of, section, tokenizer, train_batch
from milonga.engine import Completion, Decoding, Request
from milonga.engine.local import LocalEngine
from milonga.types import Rollouts
from shapes import conditions, keep, parse

ARCHITECTURES = ("llama", "qwen2", "qwen3")
FLOAT32, BFLOAT16 = 1e-4, 0.05
"""Of the worst token, and of the mean token."""
PARTED = 1
"""Rows of one comparison whose draw may fall between two roundings."""
LONGEST = 240
"""Tokens of a conversation here, at most."""
RESTING = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
"""A model of 150M parameters: large enough for its moments to be seen among what else is allocated."""
MISSED = 0.05
"""By how much of it the memory that is saved may differ from what was moved."""


@dataclass(frozen=True)
class Sizes:
    """How much is sampled, and where. The defaults are those of a GPU."""

    device: str = "cuda"
    layers: int = 2
    prompts: int = 24
    """Different ones; each is asked for `group` times, in batches of `rows`."""
    group: int = 4
    rows: int = 24
    longest: int = 60
    tokens: int = 48
    talks: int = 48
    """Conversations, whose cache is made for prompts of `longest_talk` tokens first."""
    longest_talk: int = LONGEST
    turns: int = 3
    few_gib: float = 1e-4
    """Too little for more slots than are decoded in."""


INTERPRETED = Sizes("cpu", 1, prompts=1, group=2, rows=1, longest=3, tokens=2, talks=2, longest_talk=6, turns=2, few_gib=1e-6)
"""The interpreter takes milliseconds for each program of a kernel."""
RESTING_TINY = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}


def use_kernels(made: LocalEngine) -> LocalEngine:
    """Let an engine on the CPU sample with the kernels too, as one on a GPU does."""
    from milonga.engine.local.cuda import sampler

    sampler.STRIDE = sampler.SMALLEST = 1
    for name, policy in made.policies.items():
        made.samplers[name] = sampler.CudaSampler(policy)
    made._get_fast_sampler = lambda policy: made.samplers[policy.name]  # type: ignore[method-assign]
    return made


def folder(root: Path, arch: str, layers: int) -> str:
    place = root / arch
    kernel_model(arch, layers).save_pretrained(place)
    tokenizer("bytes").save_pretrained(place)
    return str(place)


def engine(model: str, device: str, rows: int = 512, **options: Any) -> LocalEngine:
    made = LocalEngine({"p": section(model, **options)}, device=device, rows=rows)
    for name, parameter in zip(made.policy("p").names, made.policy("p").parameters, strict=True):
        if "lora_B" in name:  # an adapter that changes something, the same on every device
            values = np.random.default_rng(len(name)).normal(0, 0.05, tuple(parameter.shape))
            parameter.data.copy_(torch.from_numpy(values))
    return made


def compare(left: list[Completion], right: list[Completion]) -> dict[str, float]:
    """How many rows part ways, and the worst difference of log-probabilities: in rows that part ways (a draw may fall
    between two roundings) up to the token where they do."""
    parting, worst = 0, 0.0
    for a, b in zip(left, right, strict=True):
        parting += not (a.ids.tolist() == b.ids.tolist() and a.finish == b.finish and a.text == b.text)
        count = min(len(a.ids), len(b.ids))
        parted = np.flatnonzero(a.ids[:count] != b.ids[:count])
        until = int(parted[0]) if len(parted) else count
        worst = max(worst, float(np.abs(a.logprobs[:until] - b.logprobs[:until]).max(initial=0.0)))
    return {"parted": parting, "worst gap": worst}


def exact(root: Path, arch: str, lora: dict[str, Any] | None, sizes: Sizes) -> dict[str, dict[str, float]]:
    """float32: the same rows as on the CPU, in many situations."""
    model = folder(root, arch, sizes.layers)
    here, there = engine(model, "cpu", lora=lora), engine(model, sizes.device, rows=sizes.rows, lora=lora)
    if sizes.device == "cpu":
        use_kernels(there)
    many = [context for context in prompts(sizes.prompts, seed=1, longest=sizes.longest) for _ in range(sizes.group)]
    asked = requests(many)
    found = {}
    most = sizes.tokens
    cases = {
        "sampled": Decoding(most), "cold": Decoding(most - most // 6, temperature=0.5),
        "greedy": Decoding(most // 2, greedy=True), "stop strings": Decoding(most, temperature=0.8, stop=("e", "th")),
    }  # fmt: skip
    for name, decoding in cases.items():
        found[name] = compare(here.sample("p", asked, decoding), there.sample("p", asked, decoding))
    graphs = dict(there.samplers["p"].decoder.graphs)  # type: ignore[union-attr]
    for made in (here, there):
        for i, parameter in enumerate(made.policy("p").parameters):
            noise = np.random.default_rng(i).normal(1.0, 0.2, tuple(parameter.shape))
            parameter.data.mul_(torch.from_numpy(noise).to(parameter))
    found["new weights"] = compare(here.sample("p", asked, Decoding(most)), there.sample("p", asked, Decoding(most)))
    again = there.samplers["p"].decoder.graphs  # type: ignore[union-attr]
    found["graphs kept"] = required(all(again[key] is graph for key, graph in graphs.items()), len(graphs))
    few = Decoding(max(1, most // 3))
    found["start"] = compare(here.sample("p", asked, few, "ref"), there.sample("p", asked, few, "ref"))
    return found | conversed(here, there, asked, sizes)


def conversed(here: LocalEngine, there: LocalEngine, asked: list[Request], sizes: Sizes) -> dict[str, dict[str, float]]:
    """Conversations in which the CPU keeps nothing and the device its histories: groups, turns, branches, new weights, and
    slots for few histories only."""
    found = {}
    talks, tokens = sizes.talks, Decoding(max(1, sizes.tokens // 2))
    longest = requests(prompts(talks, 9, sizes.longest_talk, sizes.longest_talk))
    talked = (("talk", 1.0), ("talk again", 1.0), ("talk, few slots", sizes.few_gib))
    for name, gib in talked[::2] if sizes.device == "cpu" else talked:
        there.history_gib = gib
        if gib < 1:
            there.samplers["p"].close()  # type: ignore[union-attr]  # the next cache is made anew, within the bound
        earlier = there.open_history()
        there.sample("p", longest, tokens, "live", earlier)  # a cache that grows forgets
        earlier.close()
        history = there.open_history()
        turn, worst = asked[:talks], {"parted": 0.0, "worst gap": 0.0}
        for n in range(sizes.turns):
            last, done = turn, here.sample("p", turn, tokens)
            one = compare(done, there.sample("p", turn, tokens, "live", history))
            worst = {what: max(worst[what], one[what]) for what in worst}
            turn = following(last, done, n)
        found[name] = worst
        held = len(there.samplers["p"].kept.rows)  # type: ignore[union-attr]
        found[f"{name}, histories held"] = required(held >= talks if gib == 1 else 0 < held <= sizes.rows, held)
        some = min(16, talks)
        branches = [*following(last[:some], done[:some], 7), *following(last[:some], done[:some], 8)]
        few = Decoding(max(1, sizes.tokens // 3))
        found[f"{name}, branches"] = compare(here.sample("p", branches, few), there.sample("p", branches, few, "live", history))
        for made in (here, there):
            made.policy("p").assign([parameter * 1.01 for parameter in made.policy("p").parameters])
        found[f"{name}, new weights"] = compare(here.sample("p", turn, few), there.sample("p", turn, few, "live", history))
        history.close()
    return found


def required(met: bool, count: int) -> dict[str, float]:
    """Something that must be so, in the form of a comparison; with what was counted for it."""
    return {"parted": 0 if met else PARTED + 1, "worst gap": 0.0, "count": count}


def following(asked: list[Request], done: list[Completion], seed: int) -> list[Request]:
    """The next turn of conversations; rows that parted ways on the device go on with what the CPU wrote."""
    said = prompts(len(asked), seed, 2, 9)
    return requests([np.concatenate([r.context, d.ids, s]) for r, d, s in zip(asked, done, said, strict=True)], seed)


def rounded(root: Path, arch: str, sizes: Sizes) -> dict[str, float]:
    """bfloat16: how far sampling is from a fresh pass of the learner, and from a float32 pass on the CPU."""
    model = folder(root, arch, sizes.layers)
    there, here = engine(model, sizes.device, dtype="bfloat16"), engine(model, "cpu")
    asked = requests([context for context in prompts(16, seed=2, longest=sizes.longest) for _ in range(sizes.group)])
    done = there.sample("p", asked, Decoding(sizes.tokens))
    rollouts = Rollouts(rollout_of(r.context, d) for r, d in zip(asked, done, strict=True))
    mean = {}
    for name, made in (("learner", there), ("float32", here)):
        scores = made.score("p", rollouts)
        mean[name] = float(
            np.mean(np.concatenate([np.abs(s - t.logprobs)[t.mask] for s, t in zip(scores, rollouts, strict=True)]))
        )
    return mean


def rested(root: Path, device: str = "cuda", shape: dict[str, int] = RESTING, turns: int = 3) -> dict[str, Any]:
    """Two policies that learn in turns, twice without `offload` (is the device exact at all?) and once with it."""
    torch.manual_seed(0)
    config = LlamaConfig(**TINY | shape, num_key_value_heads=4, tie_word_embeddings=True, max_position_embeddings=256)
    LlamaForCausalLM(config).save_pretrained(root / "resting")
    tokenizer("bytes").save_pretrained(root / "resting")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what torch cannot do exactly shows in the two runs that should be alike
            plain, again, thrifty = (turned(str(root / "resting"), device, offload, turns) for offload in (False, False, True))
    finally:
        torch.use_deterministic_algorithms(False)
    saved = plain["sampling"] - thrifty["sampling"]
    return {
        "tensors": len(plain["state"]),
        "apart, both without": apart(plain["state"], again["state"]),
        "apart, with and without": apart(plain["state"], thrifty["state"]),
        "moved GiB": thrifty["moved"] / 2**30,
        "saved while sampling GiB": saved / 2**30,
        "saved of moved": saved / thrifty["moved"],
        "peak while sampling GiB": [plain["sampling"] / 2**30, thrifty["sampling"] / 2**30],
        "peak while learning GiB": [plain["learning"], thrifty["learning"]],
        "left on the device": thrifty["left"],
    }


def turned(model: str, device: str, offload: bool, turns: int) -> dict[str, Any]:
    """What some turns end in, and the most memory of the device that sampling (in the last turn) and learning took."""
    gpu = device == "cuda"
    before, learning = torch.cuda.memory_allocated() if gpu else 0, 0.0
    options: dict[str, Any] = {"dtype": "float32", "ema": 0.9, "lr": 1e-4, "offload": offload}
    made = LocalEngine({name: section(model, **options) for name in "pq"}, device=device, rows=32)
    asked = requests(prompts(16, seed=3, longest=40))
    for _ in range(turns):
        if gpu:
            torch.cuda.reset_peak_memory_stats()
        done = {name: made.sample(name, asked, Decoding(32)) for name in "pq"}
        sampling = torch.cuda.max_memory_allocated() - before if gpu else 0
        for name in "pq":
            made.sample(name, asked[:4], Decoding(8), "ema")
            rows = Rollouts(
                rollout_of(r.context, d, name=f"t{i}") for i, (r, d) in enumerate(zip(asked, done[name], strict=True))
            )
            taught = train_batch(rows, [1.0, -1.0] * 8, kl_coef=0.05)
            taught.policy = name
            learning = max(learning, made.learn(taught).peak_gib or 0.0)
            made.publish(name)
    resting = [t for p in made.policies.values() for t in (*p.list_moments(), *p.tags["ref"], *p.tags["ema"])]
    found = {
        "state": {f"{name}/{key}": tensor for name, p in made.policies.items() for key, tensor in p.get_state().items()},
        "moved": sum(tensor.nbytes for tensor in resting),
        "left": sum(tensor.is_cuda for tensor in resting),
        "sampling": sampling,
        "learning": learning,
    }
    made.close()
    del made, resting
    gc.collect()
    if gpu:
        torch.cuda.empty_cache()
    return found


def apart(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> int:
    """How many tensors are not the same bits."""
    return sum(key not in right or not torch.equal(tensor, right[key]) for key, tensor in left.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args = parse(parser)
    sizes = INTERPRETED if args.tiny else Sizes()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or its products may differ from run to run
    result: dict[str, Any] = conditions(sizes.device)
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        for arch in ARCHITECTURES[:1] if args.tiny else ARCHITECTURES:
            for lora in ({"rank": 4, "alpha": 8},) if args.tiny else (None, {"rank": 4, "alpha": 8}):
                for name, found in exact(Path(temporary), arch, lora, sizes).items():
                    result[f"{arch}{' lora' if lora else ''}, {name}"] = found
                    if found["parted"] > PARTED or found["worst gap"] > FLOAT32:
                        wrong.append(f"{arch} {name}: {found}")
            result[f"{arch}, bfloat16"] = gaps = rounded(Path(temporary), arch, sizes)
            if max(gaps.values()) > BFLOAT16:
                wrong.append(f"{arch} bfloat16: {gaps}")
        result["offload"] = rest = rested(Path(temporary), "cpu", RESTING_TINY, 1) if args.tiny else rested(Path(temporary))
        missed = not args.tiny and abs(rest["saved of moved"] - 1) > MISSED  # a CPU has nothing to move away from
        if rest["apart, with and without"] or rest["left on the device"] or missed:
            wrong.append(f"offload: {rest}")
    result["wrong"] = wrong
    keep(result, args.out)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
