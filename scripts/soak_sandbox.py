"""Ten thousand hostile programs: nothing escapes, nothing hangs, nothing is left behind. `make soak`.

    python scripts/soak_sandbox.py --out docs/results/sandbox.json
    python scripts/soak_sandbox.py --programs 300      # the script itself, in half a minute

Every attack of `sandbox_attacks.py` is repeated, in random order, so that each would meet the leftovers of every other;
those that use all their time less often. Meanwhile a secret lies in a file, in the environment, in an open descriptor and in
memory, and a port is listened on. The exit code is 1 if anything was not contained, or was left.
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
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from milonga.sandbox import Level, Limits, Sandbox
from milonga.sandbox.isolation import get_bubblewrap_version
from sandbox_attacks import ATTACKS, Attack
from sandbox_bait import Bait, children, is_alive, laid, watched

SLOW_SHARE = 8
"""An attack that uses all its time is run this many times less often than others."""
BATCH = 500


def drawn(level: Level, count: int, seed: int) -> list[Attack]:
    """So many attacks in random order, each kind at least once."""
    kinds = [each for each in ATTACKS if each.concerns(level)]
    rng = random.Random(seed)
    weights = [1 if each.slow else SLOW_SHARE for each in kinds]
    more = rng.choices(kinds, weights, k=max(0, count - len(kinds)))
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
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--level", choices=["isolated", "limited"], default="isolated")
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    opened, before = descriptors(), children(os.getpid())
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="milonga-soak-") as folder:
        files = set(os.listdir(tempfile.gettempdir()))
        with watched(0.1) as seen, laid(Path(folder)) as bait:
            with Sandbox(Limits(), asked.level, allow_weak=asked.level == "limited", workers=asked.workers) as sandbox:
                result = conditions(sandbox)
                memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
                statuses, flaws = soak(sandbox, drawn(asked.level, asked.programs, asked.seed), bait)
            untouched = bait.is_untouched()
        new = {
            name for name in set(os.listdir(tempfile.gettempdir())) - files if "escaped" in name or "milonga-sandbox" in name
        }
    left = {
        "processes": len([pid for pid in seen | (children(os.getpid()) - before) if is_left(pid)]),
        "descriptors": descriptors() - opened,
        "files": len(new) + os.path.exists("/milonga-escaped"),
    }
    result |= {
        "seconds": round(time.monotonic() - start, 1),
        "programs": sum(each.total() for each in statuses.values()),
        "kinds": len(statuses),
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
