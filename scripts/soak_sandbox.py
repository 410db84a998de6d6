"""Ten thousand hostile programs: nothing escapes, nothing hangs, nothing is left behind. `make soak`.

    python scripts/soak_sandbox.py --out docs/results/soak/programs.json
    python scripts/soak_sandbox.py --count 300      # the script itself, in half a minute

Every attack of `sandbox_attacks.py` is repeated, in random order, so that each would meet the leftovers of every other;
those that use all their time less often. One program in ten forges its result by a line that is drawn at random, and ten lines
for each program are read without a process. Meanwhile a secret lies in a file, in the environment, in an open descriptor
and in memory, and a port is listened on. The exit code is 1 if anything was not contained, or was left.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from milonga.sandbox import Level, Limits, Program, Sandbox, verdict
from milonga.sandbox.folders import PREFIX
from milonga.sandbox.isolation import get_bubblewrap_version
from sandbox_attacks import ATTACKS, SAID, Attack, forged_at_random
from sandbox_bait import Bait, children, is_alive, laid, watched
from sandbox_forgery import forge_line

SLOW_SHARE = 8
"""An attack that uses all its time is run this many times less often than others."""
FORGED_SHARE = 10
"""One in so many programs forges its result by a line drawn at random."""
LINES = 10
"""Forged lines that are read for each program, without a process."""
BATCH = 500


def drawn(level: Level, count: int, seed: int) -> list[Attack]:
    """So many attacks in random order, each kind at least once."""
    kinds = [each for each in ATTACKS if each.concerns(level)]
    rng = random.Random(seed)
    weights = [1 if each.slow else SLOW_SHARE for each in kinds]
    more = rng.choices(kinds, weights, k=max(0, count - len(kinds)))
    for place in range(0, len(more), FORGED_SHARE):
        more[place] = replace(forged_at_random(rng.randrange(1 << 32)), name="forged at random")
    chosen = [*kinds, *more][:count]
    rng.shuffle(chosen)
    return chosen


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def conditions(sandbox: Sandbox) -> dict[str, Any]:
    """What it was run on, with what, when and how."""
    return {
        "hardware": f"{processor()}, {os.cpu_count()} cores",
        "load_at_start": round(os.getloadavg()[0], 1),
        "versions": {
            "kernel": platform.release().partition("-")[0],
            "bubblewrap": get_bubblewrap_version(),
            "python": platform.python_version(),
        },
        "date": datetime.now(UTC).date().isoformat(),
        "command": "python " + " ".join(sys.argv),
        "level": sandbox.level,
        "workers": sandbox.workers,
        "limits": sandbox.limits.model_dump(),
    }


def soak(sandbox: Sandbox, attacks: list[Attack], bait: Bait) -> tuple[dict[str, Counter[str]], list[dict[str, str]]]:
    """Statuses by attack, and what was not contained."""
    statuses: dict[str, Counter[str]] = defaultdict(Counter)
    flaws: list[dict[str, str]] = []
    for start in range(0, len(attacks), BATCH):
        batch = attacks[start : start + BATCH]
        for attack, outcome in zip(batch, sandbox.run([each.program(bait.words()) for each in batch]), strict=True):
            statuses[attack.name][outcome.status] += 1
            if not attack.is_contained(outcome):
                flaws.append({"attack": attack.name, "status": outcome.status, "reason": outcome.reason[:200]})
        print(f"{start + len(batch)} of {len(attacks)}, {len(flaws)} not contained", file=sys.stderr, flush=True)
    return statuses, flaws


def read_lines(count: int, seed: int) -> tuple[Counter[str], list[dict[str, str]]]:
    """Statuses of forged lines, from bytes to outcome, and those that raised, or were taken for something else."""
    program, rng = Program("", "f", ((), ())), random.Random(seed)
    statuses: Counter[str] = Counter()
    flaws: list[dict[str, str]] = []
    for _ in range(count):
        line = forge_line(rng, "token", len(program.calls))
        ended = verdict.Ended(0, 0.0, "", True, stdout=line, stderr=line, result=line)
        try:
            status: str = verdict.judge_outcome(program, "isolated", Limits(), "token", 0.0, ended).status
        except Exception as error:
            status = type(error).__name__
        statuses[status] += 1
        if status not in SAID:
            flaws.append({"attack": "line", "status": status, "reason": repr(line)[:200]})
    return statuses, flaws


def is_left(pid: int) -> bool:
    """Whether a process that we saw is still there; its number may belong to somebody else by now."""
    try:
        return is_alive(pid) and b"child.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--level", choices=["isolated", "limited"], default="isolated")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    opened, before = descriptors(), children(os.getpid())
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="milonga-soak-") as folder:
        files = set(os.listdir(tempfile.gettempdir()))
        tempfile.tempdir = folder  # whatever is left there is ours
        with watched(0.1) as seen, laid(Path(folder)) as bait:
            with Sandbox(Limits(), asked.level, allow_weak=asked.level == "limited", workers=asked.workers) as sandbox:
                result = conditions(sandbox)
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                statuses, flaws = soak(sandbox, drawn(asked.level, asked.count, asked.seed), bait)
            untouched = bait.is_untouched()
        tempfile.tempdir = None
        new = {name for name in set(os.listdir(tempfile.gettempdir())) - files if "escaped" in name}
        new |= {name for name in os.listdir(folder) if name.startswith(PREFIX)}
    lines, misread = read_lines(LINES * asked.count, asked.seed)
    flaws += misread
    left = {
        "processes": len([pid for pid in seen | (children(os.getpid()) - before) if is_left(pid)]),
        "descriptors": descriptors() - opened,
        "files": len(new) + os.path.exists("/milonga-escaped"),
    }
    result |= {
        "seconds": round(time.monotonic() - start, 1),
        "programs": sum(each.total() for each in statuses.values()),
        "kinds": len(statuses),
        "seed": asked.seed,
        "forged_lines": dict(lines.most_common()),
        "not_contained": flaws,
        "bait_untouched": untouched,
        "left_behind": left,
        "memory_growth_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024, 1),
        "statuses": dict(sum(statuses.values(), Counter()).most_common()),
        "by_attack": {name: dict(counts.most_common()) for name, counts in sorted(statuses.items())},
    }
    text = json.dumps(result, indent=1) + "\n"
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(text)
    print(text)
    sys.exit(1 if flaws or any(left.values()) or not untouched else 0)


if __name__ == "__main__":
    main()
