r"""What it is worth to keep the keys and values of conversations: the same turns with and without, in turn.

Recipes: the sampling of one turn (`rollout`: prompts, sampling, reading, grading; no learning) on the embedded model. Shapes:
random weights, rows with long histories, several turns with no early end; `--groups` of rows may share their first prompt. What
the prompts of the later turns cost without it is measured too, by asking for a single token each. Both sides must write the
same ids. Processor time stands beside the wall's, for machines that are busy with other work.

    python benchmarks/conversation.py --recipes score maporl --problems 4 --rollouts 4 --repeats 3 \
        --out benchmarks/results/conversation-embedded.json
    python benchmarks/conversation.py --shape smollm2-135m --rows 2 --turns 2 --new 16 --repeats 3 \
        --out benchmarks/results/conversation-smollm2-135m.json
    python benchmarks/conversation.py --tiny      # the script itself, on a CPU
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from milonga.api import make_engine
from milonga.context import Context
from milonga.engine import Completion, Decoding, Request
from milonga.engine.local import LocalEngine
from milonga.loop import Loop
from milonga.resolve import resolve
from milonga.runfolder.console import LiveView
from milonga.runfolder.folder import RunFolder
from shapes import SHAPES, conditions, keep, make_policy, parse, spread, timed

Calls = list[tuple[str, list[Request], Decoding, str]]
"""What an engine was asked for: policy, requests, decoding, tag."""


class Talks:
    """Turns of conversations that can be played again and again, with what is kept and without."""

    def __init__(self, engine: LocalEngine, rollout: Callable[[], list[list[int]]], gib: float) -> None:
        self.engine, self.rollout, self.gib = engine, rollout, gib
        self.calls: Calls = []
        self.sample = engine.sample
        engine.sample = self.noted  # type: ignore[method-assign]

    def noted(self, policy: str, requests: Any, decoding: Decoding, tag: str = "live", history: Any = None) -> list[Completion]:
        self.calls.append((policy, list(requests), decoding, tag))
        return self.sample(policy, requests, decoding, tag, history)

    def once(self, kept: bool, device: str) -> tuple[float, float, list[list[int]]]:
        """Seconds of all turns, those of the processor, and the ids that were written."""
        self.engine.history_gib = self.gib if kept else 0.0
        self.calls = []
        found: list[list[int]] = []
        began = time.process_time()
        seconds = timed(lambda: found.extend(self.rollout()), device)
        return seconds, time.process_time() - began, found

    def parsed(self, device: str) -> float:
        """Seconds for the prompts of all turns but the first, each read from its start."""
        seen: set[bytes] = set()
        later = []
        for policy, requests, decoding, tag in self.calls:
            heads = {policy.encode() + r.context[:8].tobytes() for r in requests}
            if heads <= seen:
                later.append((policy, requests, replace(decoding, max_tokens=1), tag))
            seen |= heads
        return sum(timed(lambda call=call: self.sample(*call), device) for call in later)  # type: ignore[misc]


def recipe_talks(name: str, args: argparse.Namespace, stack: ExitStack) -> Talks:
    """The conversations of one turn of a recipe, always the same turn."""
    scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    batch = {"problems": args.problems, "rollouts": args.rollouts}
    plan = resolve([{"recipe": name, "device": args.device, "batch": batch, "options": {"formats": 0}}])
    engine = make_engine(plan)
    folder = stack.enter_context(RunFolder(scratch / "run", 1))
    loop = Loop(plan, engine, folder, stack.enter_context(LiveView("", None, quiet=True)))
    return Talks(
        engine,
        lambda: [rollout.ids.tolist() for rollout in loop.recipe.rollout(Context(loop.run_context, 1, "generator"))],
        args.gib,
    )


def shape_talks(args: argparse.Namespace) -> Talks:
    """Rows of a model of a real shape: first prompts of about `prompt` tokens, then what is said is appended."""
    policy = make_policy(args.shape, args.device)
    policy.eos = []
    engine = LocalEngine({}, args.device, rows=args.rows)
    engine.policies = {"p": policy}
    vocabulary = policy.causal.config.vocab_size

    def rollout() -> list[list[int]]:
        rng = np.random.default_rng(0)
        lengths = rng.integers(int(0.9 * args.prompt), int(1.1 * args.prompt), args.rows // args.groups)
        rows = [context for n in lengths for context in [rng.integers(3, vocabulary, n)] * args.groups]
        history = engine.open_history()
        for turn in range(args.turns):
            asked = [Request(ids, 7919 * i + turn) for i, ids in enumerate(rows)]
            done = engine.sample("p", asked, Decoding(args.new), "live", history)
            rows = [
                np.concatenate([ids, d.ids, rng.integers(3, vocabulary, args.said)]) for ids, d in zip(rows, done, strict=True)
            ]
        history.close()
        return [ids.tolist() for ids in rows]

    return Talks(engine, rollout, args.gib)


def measure(talks: Talks, device: str, repeats: int) -> dict[str, Any]:
    """Interleaved; a pair that is not counted comes first."""
    pairs = [(talks.once(False, device), talks.parsed(device), talks.once(True, device)) for _ in range(repeats + 1)][1:]
    same = [float(np.mean([a == b for a, b in zip(off[2], on[2], strict=True)])) for off, _, on in pairs]
    return {
        "without": spread([off[0] for off, _, _ in pairs]),
        "with": spread([on[0] for _, _, on in pairs]),
        "without over with, pair by pair": spread([off[0] / on[0] for off, _, on in pairs]),
        "the same of processor time": spread([off[1] / on[1] for off, _, on in pairs]),
        "prompts of later turns, read anew": spread([parsed for _, parsed, _ in pairs]),
        "their share of the time without": spread([parsed / off[0] for off, parsed, _ in pairs]),
        "same rows": min(same),
        "tokens of all prompts": sum(len(r.context) for _, requests, _, _ in talks.calls for r in requests),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipes", nargs="*", default=[])
    parser.add_argument("--problems", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--shape", choices=list(SHAPES))
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--groups", type=int, default=1, help="rows that share a first prompt")
    parser.add_argument("--prompt", type=int, default=500, help="tokens of the first prompt, within a tenth")
    parser.add_argument("--said", type=int, default=24, help="tokens said between turns")
    parser.add_argument("--new", type=int, default=32, help="tokens written in a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--gib", type=float, default=4.0, help="sampling.history_gib of the side that keeps")
    parser.add_argument("--repeats", type=int, default=5)
    sizes = {"rows": 2, "prompt": 20, "said": 3, "new": 2, "turns": 2, "repeats": 1}
    args = parse(parser, recipes=["score"], problems=1, rollouts=2, shape="tiny", **sizes)
    args.device = "cuda" if torch.cuda.is_available() and not args.tiny else "cpu"
    hidden = ("out", "shape" if args.recipes else "recipes")
    result: dict[str, Any] = conditions(args.device) | {"load": os.getloadavg()[0]}
    result |= {key: value for key, value in vars(args).items() if key not in hidden}
    with ExitStack() as stack:
        for name in args.recipes:
            result[name] = measure(recipe_talks(name, args, stack), args.device, args.repeats)
        if args.shape:
            result[args.shape] = measure(shape_talks(args), args.device, args.repeats)
    keep(result, args.out)


if __name__ == "__main__":
    main()
