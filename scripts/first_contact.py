"""First contact: real instruct models on GSM8K, MATH and MBPP, as docs/results/first-contact.md describes it.

    python scripts/first_contact.py run OUT --data FOLDER --model 0.5b=FOLDER --only grpo-0.5b --minutes 9
    python scripts/first_contact.py table OUT
    python scripts/first_contact.py keep OUT       # into docs: h200.json, and the picture of all curves in it

`run` takes the jobs whose names begin with one of `--only`, as many at once as `--at-once` says. At the time limit it
interrupts what still runs; called again, it goes on with what is not finished. Each job has a log and a folder in OUT. `table`
reads them, and the runs that `milonga sweep docs/results/first-contact/study.toml --out OUT/sweep` left (its folder may also
be OUT itself), and writes `first-contact.json` there; `keep` takes that file into the results, where it replaces jobs of the
same name.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from milonga.charts import Series, line_chart, make_standalone

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "first-contact"
SEEDS = (0, 1, 2)
TURNS = 60
RATE = 1e-4
"""Of adapters, on both sides; chosen on dev problems (docs/results/first-contact.md)."""
MICRO_TOKENS = 8_192
"""Of a forward and backward pass: with 16,384, three runs of Tango on the 0.5B do not fit 140 GB side by side."""
VLLM_SHARE = 0.3
"""Of the GPU's memory, for vLLM under TRL."""
TEST = 1319
"""Problems of GSM8K's test split: all of them."""


@dataclass(frozen=True)
class Job:
    """One command. It is finished when the file `done` exists in its folder."""

    name: str
    command: tuple[str, ...]
    done: str
    printed: bool = False
    """Whether that file is what the command prints."""


def list_jobs(models: Mapping[str, str], data: Path, out: Path) -> Iterator[Job]:
    """List all jobs of these models."""
    tasks = {
        "gsm8k": ("--task", "gsm8k", "--set", f"task.path={data / 'gsm8k'}"),
        "math": ("--task", "jsonl", "--set", f"task.path={data / 'math' / 'train.jsonl'}", "--set", "task.unreadable=skip"),
        # The machine is thrown away after the probe: programs of MBPP run there without bubblewrap.
        "mbpp": ("--task", "code", "--set", "task.dialect=python", "--set", f"task.path={data / 'mbpp' / 'mbpp.jsonl'}",
                 "--set", "task.allow_weak_isolation=true"),
    }  # fmt: skip
    for size, model in models.items():
        both = ("--generator", model)
        for task, named in tasks.items():
            recipe = "grpo" if task == "mbpp" else "tango"
            command = ("probe", recipe, *named, *both, "--set", "binding=lora", "--rollouts", "8", "--json")
            yield Job(f"probe-{size}-{task}", (sys.executable, "-m", "milonga", *command), "probe.json", printed=True)
        for recipe in ("grpo", "tango"):
            for seed in SEEDS:
                yield make_run(f"{recipe}-{size}-{seed}", recipe, seed, (*tasks["gsm8k"], *both), out)
        more = ("--set", "bootstrap=10", "--set", "options.warmup=0", "--turns", "1")
        yield make_run(f"bootstrap-{size}", "tango", 0, (*tasks["gsm8k"], *both, *more), out)
        for seed in SEEDS:
            yield make_trl(f"trl-{size}-{seed}", seed, model, data, out)


def make_run(name: str, recipe: str, seed: int, more: Sequence[str], out: Path) -> Job:
    """Make a training run: 32 problems with 8 rollouts, all test problems before and after it."""
    agents = ("generator",) if recipe == "grpo" else ("generator", "verifier")
    settings = {
        "eval.split": "test",
        "eval.problems": TEST,
        "eval.samples": 1,
        "eval.every": 10_000,
        "eval.bench": 0,
        "keep.rollouts_every": 0,
        "keep.checkpoint_every": 15,
    } | {f"policies.{agent}.micro_tokens": MICRO_TOKENS for agent in agents}
    flags = ("--lora", "--lr", str(RATE), "--problems", "32", "--rollouts", "8", "--max-tokens", "512", "--no-probe")
    sets = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    turns = () if "--turns" in more else ("--turns", str(TURNS))
    command = ("run", recipe, *more, *turns, "--seed", str(seed), *flags, *sets, "--out", str(out / name))
    return Job(name, (sys.executable, "-m", "milonga", *command), "report.json")


def make_trl(name: str, seed: int, model: str, data: Path, out: Path) -> Job:
    """Make the same training by TRL, with vLLM on the same GPU. A run of ours that starts from its adapter measures it: its
    turn 0."""
    script = str(Path(__file__).parent.parent / "benchmarks" / "trl_grpo.py")
    options = ("--task", "gsm8k", "--data", str(data / "gsm8k"), "--updates", str(TURNS), "--lr", str(RATE), "--warmup", "5")
    folder = out / name
    sampler = ("--vllm", str(VLLM_SHARE), "--micro", "16")
    command = ("--model", model, *options, *sampler, "--seed", str(seed), "--adapter", str(folder / "adapter"))
    return Job(name, (sys.executable, script, *command, "--out", str(folder / "trl.json")), "adapter/adapter_config.json")


def run_jobs(jobs: Sequence[Job], out: Path, at_once: int, minutes: float) -> None:
    """Run jobs side by side until all are finished or the time is up."""
    until = time.monotonic() + 60 * minutes
    waiting = [job for job in jobs if not is_done(job, out)]
    running: dict[str, subprocess.Popen[bytes]] = {}
    while (waiting or running) and time.monotonic() < until:
        while waiting and len(running) < at_once:
            job = waiting.pop(0)
            running[job.name] = start(job, out)
            print(f"{job.name}: started", flush=True)
        for name, process in list(running.items()):
            if process.poll() is not None:
                print(f"{name}: ended with {process.returncode}", flush=True)
                del running[name]
        time.sleep(0.5)
    for process in running.values():
        process.send_signal(signal.SIGINT)
    for name, process in running.items():
        print(f"{name}: interrupted, ended with {process.wait()}", flush=True)


def is_done(job: Job, out: Path) -> bool:
    file = out / job.name / job.done
    return file.exists() and file.stat().st_size > 0


def start(job: Job, out: Path) -> subprocess.Popen[bytes]:
    """Start a job, or go on with a run that was interrupted."""
    folder = out / job.name
    begun = (folder / "config.toml").exists()
    command = (sys.executable, "-m", "milonga", "resume", str(folder)) if begun else job.command
    if job.done != "report.json":
        folder.mkdir(parents=True, exist_ok=True)
    log = (out / f"{job.name}.log").open("ab")
    printed = (folder / job.done).open("wb") if job.printed else log
    return subprocess.Popen(command, stdout=printed, stderr=log, start_new_session=True)


def read_results(out: Path) -> dict[str, Any]:
    """Read what the jobs left: probes as they are, of runs the first and last evaluation, the curve and the seconds."""
    found: dict[str, Any] = {}
    for folder in sorted(path for path in out.iterdir() if path.is_dir()):
        if (folder / "probe.json").exists() and (folder / "probe.json").stat().st_size:
            found[folder.name] = json.loads((folder / "probe.json").read_text())
        elif (folder / "trl.json").exists():
            found[folder.name] = json.loads((folder / "trl.json").read_text())
        elif (folder / "metrics.jsonl").exists():
            found[folder.name] = read_run(folder)
    for sweep in (out, out / "sweep"):
        if (sweep / "runs.jsonl").exists():
            found |= dict(read_sweep(sweep))
    return found


def read_sweep(sweep: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the finished runs of this study in a sweep, each named as a job is: recipe, block of the study, seed."""
    blocks = [block["name"] for block in tomllib.loads((RESULTS / "study.toml").read_text())["runs"]]
    for line in (sweep / "runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        block = run["name"].partition("/")[0]
        if run["finished"] and block in blocks:
            yield f"{run['recipe']}-{block}-{run['seed']}", read_run(sweep / run["name"])


def read_run(folder: Path) -> dict[str, Any]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times = [json.loads(line) for line in (folder / "timing.jsonl").read_text().splitlines()]
    measured = [{key: value for key, value in row.items() if key.startswith("eval/")} for row in rows]
    evaluated = [(row["turn"], figures) for row, figures in zip(rows, measured, strict=True) if figures]
    kept = ("generator/accuracy", "generator/length", "generator/truncated_rate", "verifier/invalid_rate")
    curve = [
        {"turn": row["turn"], "learner": row["learner"]} | {key: row.get(f"rollouts/{key}") for key in kept} for row in rows[1:]
    ]
    return {"evaluations": dict(evaluated), "curve": curve, "timing": times}


def keep_results(out: Path) -> None:
    """Take the results of OUT into the kept ones, and draw all curves again."""
    kept = json.loads((RESULTS / "h200.json").read_text())
    kept |= json.loads((out / "first-contact.json").read_text())
    lines = [f"{json.dumps(name)}: {json.dumps(found)}" for name, found in kept.items()]
    (RESULTS / "h200.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    (RESULTS / "curves.svg").write_text(make_standalone(draw_curves(kept)))


def draw_curves(results: Mapping[str, Any]) -> str:
    """Draw the training accuracy of each arm: the mean of its seeds over ten turns of the generator, with the range of the
    seeds as its band. A run without a curve, or with fewer turns than its arm's longest, is left out."""
    arms: dict[str, list[list[float]]] = {}
    for name, found in results.items():
        turns = [row["generator/accuracy"] for row in found.get("curve", ()) if row.get("learner") == "generator"]
        if len(turns) == TURNS:
            arms.setdefault(name.rpartition("-")[0], []).append([mean(turns[at : at + 10]) for at in range(0, TURNS, 10)])
    middle = [5.5 + at for at in range(0, TURNS, 10)]
    series = []
    for arm, runs in sorted(arms.items()):
        blocks = list(zip(*runs, strict=True))
        low, high = [min(block) for block in blocks], [max(block) for block in blocks]
        series.append(Series(f"{arm}, {len(runs)} seeds", middle, [mean(block) for block in blocks], low, high))
    return line_chart("Training accuracy, GSM8K", series, x_label="turns of the generator", y_label="right, sampled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("run", "table", "keep"))
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, default=Path("data"), help="a folder with gsm8k, math and mbpp")
    parser.add_argument("--model", action="append", default=[], metavar="SIZE=FOLDER")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PREFIX", help="jobs whose names begin so; all by default"
    )
    parser.add_argument("--at-once", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=9.0)
    args = parser.parse_args()
    if args.command == "keep":
        keep_results(args.out)
        return
    if args.command == "run":
        args.out.mkdir(parents=True, exist_ok=True)
        jobs = list_jobs(dict(pair.split("=", 1) for pair in args.model), args.data, args.out)
        chosen = [job for job in jobs if not args.only or job.name.startswith(tuple(args.only))]
        run_jobs(chosen, args.out, args.at_once, args.minutes)
    results = read_results(args.out)
    (args.out / "first-contact.json").write_text(json.dumps(results, indent=1) + "\n")
    print(f"{len(results)} results in {args.out / 'first-contact.json'}")


if __name__ == "__main__":
    main()
