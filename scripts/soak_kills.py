"""A hundred SIGKILLs at random moments over ten recipes: every run ends in the bytes of one that nobody killed. `make soak`.

    python scripts/soak_kills.py --out docs/results/soak/kills.json
    python scripts/soak_kills.py --count 4 --only grpo      # the script itself, in half a minute

Each recipe is run once in peace. Then it is begun, killed after a random share of the time that this took, resumed, killed
again, and so on; a run that comes to its end is compared, file by file, with the first, and the next one is begun. One recipe
is run on Ray too, where the victim is the driver or one of its workers; one runs programs in the sandbox; some keep rollouts,
pairs or a buffer. The exit code is 1 if a run did not end, or if any file differs.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from milonga import api
from milonga.config import merge
from milonga.resolve import resolve
from milonga.runfolder.seals import METRICS, read_rows

PROCESSES = multiprocessing.get_context("forkserver")
PRELOADED = ["milonga.loop", "milonga.engine.local", "transformers.models.llama.modeling_llama", "peft"]
"""What a fork server loads once, so that a start takes a fraction of a second."""
APART = {"timing.jsonl", "machine.jsonl", "lock", "report.html"}
"""Files that hold times or the folder's name. Of report.json only that name is left out."""
WORK = 8.0
"""Seconds that the workers of a run on Ray live, or more."""
MOST_STARTS = 60
"""A run that was started so often without coming to its end does not end."""
TINY: dict[str, Any] = {
    "device": "cpu",
    "threads": 1,
    "task": {"name": "chain", "ops": 2},
    "batch": {"problems": 4, "rollouts": 4},
    "eval": {"problems": 4, "samples": 1, "every": 2, "bench": 4, "checks": 1, "greedy": False},
    "keep": {"checkpoint_every": 1, "checkpoints": 2, "rollouts_every": 2},
    "stop_without_signal": 0,
}
CODE = {"name": "code", "level": 1}
RUNS: dict[str, dict[str, Any]] = {
    "tango": {"turns": 3, "options": {"warmup": 1, "n_generator": 1, "n_verifier": 1}},
    "grpo": {"turns": 4, "keep": {"checkpoint_every": 2, "rollouts_every": 1}, "policies": {"generator": {"ema": 0.9}}},
    "sft": {"turns": 3},
    "ttrl": {"turns": 3, "binding": "lora"},
    "spin": {"turns": 4, "options": {"round_turns": 2}},
    "self_rewarding": {"turns": 3, "options": {"seed_turns": 1, "round_turns": 2, "judge": "oracle"}},
    "lets_verify": {"turns": 3},
    "prime": {"turns": 3},
    "absolute_zero": {"turns": 2, "task": CODE, "options": {"measured": 2, "seeds": 1, "seed_rounds": 2}},
    "tango_code": {"turns": 2, "task": CODE, "options": {"warmup": 0, "n_generator": 1}},
    "grpo_ray": {"recipe": "grpo", "turns": 4, "engine": "ray", "placement": {"cpus": 0.1, "samplers": 1}},
}
"""Eleven runs of ten recipes, a few seconds each: alternating agents, kept rollouts and means of weights, imitation, adapters,
pairs of two kinds, a value head, an implicit reward model, a buffer of programs that are run in the sandbox, programs as
solutions, and workers of Ray."""


@dataclass
class Tally:
    """What became of the runs of one recipe."""

    seconds: float
    """How long the run takes that nobody kills."""
    kills: int = 0
    workers_killed: int = 0
    """How many of these were of a worker of Ray, whose driver went on."""
    ended: int = 0
    """Runs that were killed at least once, and came to their end."""
    most_kills: int = 0
    """Of one run."""
    turns: dict[int, int] = field(default_factory=dict)
    """Kills by the last turn that had its row; -1: none had."""
    failures: list[str] = field(default_factory=list)


def live(folder: Path, config: dict[str, Any]) -> None:
    """What a process does: begin, or go on."""
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    if (folder / "config.toml").exists():
        api.resume(folder, quiet=True)
    else:
        api.start(resolve([config]), folder, quiet=True)


def begin(folder: Path, config: dict[str, Any]) -> Any:
    process = PROCESSES.Process(target=live, args=(folder, config))
    process.start()
    return process


def compare(found: Path, expected: Path) -> list[str]:
    """List the files that differ, or that only one of two runs has."""
    one, other = (
        {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file() and path.name not in APART}
        for folder in (found, expected)
    )
    both = one.keys() & other.keys()
    return sorted((one.keys() ^ other.keys()) | {name for name in both if read_content(one[name]) != read_content(other[name])})


def read_content(path: Path) -> bytes:
    """Read a file, without the name of its run."""
    return (
        path.read_bytes().replace(json.dumps(str(path.parent)).encode(), b"")
        if path.name == "report.json"
        else path.read_bytes()
    )


def list_workers(driver: int) -> list[int]:
    """List the processes of our workers under Ray among the descendants of a driver; Ray's own helpers are none."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except (ValueError, OSError):
            continue
    found, family = list[int](), {driver}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    for pid in family - {driver}:
        try:
            found += [pid] * Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Worker")
        except OSError:
            continue
    return sorted(found)


def await_workers(process: Any, rng: random.Random) -> list[int]:
    """Wait until a run has workers, and then for a random part of the time that they need: a run on Ray is mostly starting."""
    while process.is_alive() and not list_workers(process.pid):
        time.sleep(0.1)
    process.join(rng.uniform(0, WORK))
    return list_workers(process.pid)


def strike(process: Any, config: dict[str, Any], rng: random.Random) -> bool:
    """Kill a run, or under Ray perhaps one of its workers; True if it was a worker, and the run goes on."""
    workers = await_workers(process, rng) if config.get("engine") == "ray" and rng.random() < 0.5 else []
    if workers:
        try:
            os.kill(rng.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True
    process.kill()
    process.join()
    return False


def kill_until(tally: Tally, folder: Path, expected: Path, config: dict[str, Any], kills: int, rng: random.Random) -> None:
    """Kill runs so many times, at random moments, and resume them; compare each that comes to its end."""
    while tally.kills < kills and not tally.failures:
        shutil.rmtree(folder, ignore_errors=True)
        before = tally.kills
        for _ in range(MOST_STARTS):
            process = begin(folder, config)
            while process.is_alive():
                process.join(rng.uniform(0, tally.seconds) if tally.kills < kills else None)
                if process.is_alive():
                    rows = read_rows(folder / METRICS, None).kept
                    is_worker = strike(process, config, rng)
                    died = is_worker or process.exitcode == -signal.SIGKILL
                    tally.kills += died
                    tally.workers_killed += is_worker
                    last = rows[-1]["turn"] if rows else -1
                    tally.turns[last] = tally.turns.get(last, 0) + died
            if process.exitcode != -signal.SIGKILL:
                break
        if process.exitcode != 0:
            tally.failures.append(f"a run ended with {process.exitcode} after {tally.kills - before} kills")
        elif tally.kills > before:
            tally.ended += 1
            tally.most_kills = max(tally.most_kills, tally.kills - before)
            tally.failures += compare(folder, expected)
        print(f"{config['recipe']}: {tally.kills} of {kills} kills", file=sys.stderr, flush=True)


def soak(name: str, kills: int, seed: int, scratch: Path) -> Tally:
    """Run a recipe in peace, and then with so many kills."""
    config = merge(merge(TINY, {"recipe": name}), RUNS[name])
    expected, folder = scratch / "expected", scratch / "run"
    for each in (expected, folder):
        shutil.rmtree(each, ignore_errors=True)
    began = time.monotonic()
    process = begin(expected, config)
    process.join()
    tally = Tally(round(time.monotonic() - began, 2))
    if process.exitcode != 0:
        tally.failures.append(f"the run that nobody kills ended with {process.exitcode}")
        return tally
    kill_until(tally, folder, expected, config, kills, random.Random(f"{seed}/{name}"))
    return tally


def start_fork_server() -> None:
    """Start the server, so that the first run is not the one that waits for it."""
    PROCESSES.set_forkserver_preload(PRELOADED)
    ready = PROCESSES.Process(target=int)
    ready.start()
    ready.join()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="kills, over all recipes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=RUNS, default=list(RUNS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    start_fork_server()
    began, tallies = time.monotonic(), dict[str, Tally]()
    with tempfile.TemporaryDirectory(prefix="milonga-soak-") as scratch:
        for number, name in enumerate(asked.only):
            share = asked.count * (number + 1) // len(asked.only) - asked.count * number // len(asked.only)
            tallies[name] = soak(name, share, asked.seed, Path(scratch))
            done = tallies[name]
            print(f"{name}: {done.kills} kills, {done.ended} runs ended, {len(done.failures)} failures", file=sys.stderr)
    failures = [f"{name}: {what}" for name, tally in tallies.items() for what in tally.failures]
    result = {
        "seed": asked.seed,
        "kills": sum(tally.kills for tally in tallies.values()),
        "runs_ended": sum(tally.ended for tally in tallies.values()),
        "failures": failures,
        "seconds": round(time.monotonic() - began, 1),
        "date": datetime.now(UTC).date().isoformat(),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": f"python scripts/soak_kills.py --count {asked.count} --seed {asked.seed}",
        "recipes": {name: asdict(tally) for name, tally in tallies.items()},
    }
    text = json.dumps(result, indent=1) + "\n"
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text)
    print(text)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
