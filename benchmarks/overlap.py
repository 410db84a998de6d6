"""Turns with and without overlap: GRPO on the embedded model, one learner and one sampler of the engine `ray` on this machine.

Runs of the same length with staleness 0, 1 and 2, one after another, again and again; nothing is evaluated or saved in
between. A turn is what the run waits for and learns; where its seconds go, and how much of its playing lay behind learning, is
read off `timing.jsonl`, the age of its samples off `metrics.jsonl`. What can be gained is the shorter of playing and learning,
at most; and where cores are missing, nothing. Runs of one repeat lie next to each other: where other work shares the cores, the
ratios of their turns say more than the seconds. What one train batch costs is measured in this process, in seconds of its CPU:
as it is; as one from older samples, which are weighed as they are learned; and with a pass that scores them before.

    python benchmarks/overlap.py --out benchmarks/results/overlap.json
    python benchmarks/overlap.py --tiny      # the script itself
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from milonga.api import make_engine, run
from milonga.config import PlacementSection
from milonga.context import Context, RunContext
from milonga.engine.ray import cluster
from milonga.resolve import resolve
from milonga.runfolder.files import JsonLines
from milonga.types import Rollouts
from shapes import conditions, keep, parse, spread

WORK = ("turn", "sample", "learn", "publish", "overlap")
AGE = ("staleness", "stale_weight", "stale_truncated")


def settings(args: argparse.Namespace, staleness: int) -> dict[str, Any]:
    return {
        "engine": "ray",
        "device": args.device,
        "threads": args.threads,
        "staleness": staleness,
        "placement": {"samplers": 1, "cpus": 0.5} | ({"gpus": 0.5} if args.device == "cuda" else {}),
        "batch": {"problems": args.problems, "rollouts": args.rollouts},
        "eval": {"every": 10**6, "problems": 2 if args.tiny else 64, "samples": 4, "greedy": False, "bench": 0},
        "keep": {"checkpoint_every": 10**6, "rollouts_every": 0},
    }


def turns(args: argparse.Namespace, staleness: int, folder: Path) -> dict[str, Any]:
    """Medians over the turns of a run in which all that may overlap does: without the first ones, which wait for nothing."""
    report = run("grpo", turns=args.turns, out=folder, settings=settings(args, staleness), quiet=True)
    timing = [row for row in JsonLines(folder / "timing.jsonl").rows() if row["turn"] > 1]
    rows = [row for row in JsonLines(folder / "metrics.jsonl").rows() if row["turn"] > 1]
    found: dict[str, Any] = {f"{work}_s": spread([row.get(f"{work}_s", 0.0) for row in timing])["median"] for work in WORK}
    found["mean_turn_s"] = sum(row["turn_s"] for row in timing) / len(timing)
    found |= {name: sum(row.get(f"learn/generator/{name}", 0.0) for row in rows) / len(rows) for name in AGE if staleness}
    return found | {"accuracy": report["generator"]["accuracy"], "load": os.getloadavg()[0]}


def train_batch_cpu(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """CPU seconds of one train batch of the same size, learned again and again, one way after the other."""
    plan = resolve([{"recipe": "grpo"}, settings(args, 0), {"engine": "local"}])
    engine, config = make_engine(plan), plan.config
    ctx = Context(
        RunContext(engine, plan.task, plan.roles, plan.agents, config.sampling, config.seed, args.problems), 1, "generator"
    )
    (train_batch,) = plan.recipe.credit(ctx, plan.recipe.rollout(ctx))
    credited = Rollouts(t for t, a in zip(train_batch.rollouts, train_batch.advantages or [], strict=True) if a.any())
    engine.learn(train_batch)  # what is made once
    ways: dict[str, Callable[[], Any]] = {
        "as it is": lambda: engine.learn(train_batch),
        "weighed as it is learned": lambda: engine.learn(replace(train_batch, stale_cap=2.0)),
        "scored before": lambda: (engine.score("generator", credited), engine.learn(train_batch)),
    }
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(2 * args.repeats):
        for way, learn in ways.items():
            began = time.process_time()
            learn()
            found[way].append(time.process_time() - began)
    return {way: spread(seconds) for way, seconds in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--problems", type=int, default=32)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="with cuda both workers share one GPU")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--lags", type=int, nargs="+", default=[0, 1, 2])
    args = parse(parser, turns=2, repeats=1, problems=2, rollouts=2, lags=[1])
    found: dict[str, list[dict[str, Any]]] = {str(lag): [] for lag in args.lags}
    cluster.connect(PlacementSection(), 0)
    with tempfile.TemporaryDirectory() as scratch:
        for repeat in range(args.repeats):
            for lag in args.lags:
                found[str(lag)].append(turns(args, lag, Path(scratch) / f"{repeat}-{lag}"))
                print(repeat, lag, found[str(lag)][-1], flush=True)
    means = {lag: spread([one["mean_turn_s"] for one in runs]) for lag, runs in found.items()}
    first = [one["mean_turn_s"] for one in found[str(args.lags[0])]]
    ratios = {
        lag: spread([one["mean_turn_s"] / base for one, base in zip(runs, first, strict=True)]) for lag, runs in found.items()
    }
    whole = {"turn_s": means, "turn_to_first": ratios, "train_batch_cpu_s": train_batch_cpu(args), "runs": found}
    keep(whole | conditions(args.device), args.out)


if __name__ == "__main__":
    main()
