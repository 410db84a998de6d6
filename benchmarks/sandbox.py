"""How many small programs the sandbox runs in a second, what one costs, and whether verdicts depend on load.

256 programs at each level of isolation, two at a time, several times; beside the time on the wall stands the processor's for
one program, which other work on the machine hardly lengthens. Then a thousand programs of all fates, as the machine is and with
two busy loops for each core: their statuses and values must be the same.

    python benchmarks/sandbox.py --out benchmarks/results/sandbox.json
    python benchmarks/sandbox.py --tiny      # the script itself, in seconds
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from milonga.sandbox import Level, Outcome, Program, Sandbox
from shapes import conditions, keep, parse, spread

SMALL = """
def solve(numbers):
    seen = {}
    for number in numbers:
        seen[number % 7] = seen.get(number % 7, 0) + number
    return sorted(seen.items())
"""
FATES = [
    "def f(n): return n * n",
    "def f(n): return sum(range(10 ** 6)) + n",
    "def f(n): raise ValueError(n)",
    "def f(n: return n",
    "def f(n): print('x' * 10 ** 6)",
    "def f(n): return [0] * 10 ** 9",
    "def f(n): return f",
    "import os\ndef f(n): os._exit(n % 3)",
    "import socket\ndef f(n): return socket.socket()",
    "def f(n): return f(n + 1)",
]


def seconds_of(sandbox: Sandbox, programs: list[Program]) -> tuple[float, float]:
    """On the wall for all, and of the processor for one."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    own, start = time.process_time(), time.perf_counter()
    outcomes = sandbox.run(programs)
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert all(outcome.status == "ok" for outcome in outcomes), Counter(o.reason for o in outcomes)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + time.process_time() - own
    return wall, used / len(programs)


def throughput(level: Level, count: int, repeats: int) -> dict[str, Any]:
    programs = [Program(SMALL, "solve", (([n, n + 1, 3 * n],), ([*range(n % 50)],))) for n in range(count)]
    with Sandbox(isolation=level, allow_weak=level == "limited", workers=2) as sandbox:
        sandbox.run(programs[:4])
        pairs = [seconds_of(sandbox, programs) for _ in range(repeats)]
    walls, processor = zip(*pairs, strict=True)
    return {
        "seconds": spread(list(walls)),
        "programs_per_second": spread([count / wall for wall in walls]),
        "processor_ms_per_program": spread([1000 * each for each in processor]),
    }


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """All cores at work on something else."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def verdicts(count: int) -> dict[str, Any]:
    """How many programs have another verdict on a busy machine."""
    programs = [Program(FATES[n % len(FATES)], "f", ((n,),)) for n in range(count)]
    with Sandbox(workers=2) as sandbox:
        calm = sandbox.run(programs)
        with busy():
            loaded = sandbox.run(programs)
    differ = sum(said(one) != said(other) for one, other in zip(calm, loaded, strict=True))
    return {"programs": count, "statuses": dict(Counter(o.status for o in calm)), "that_differ_under_load": differ}


def said(outcome: Outcome) -> tuple[Any, ...]:
    return outcome.status, outcome.results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=256)
    parser.add_argument("--fates", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parse(parser, programs=4, fates=10, repeats=1)
    levels: tuple[Level, ...] = ("isolated", "limited")
    result = conditions("cpu") | {
        "cores": os.cpu_count(),
        "load_at_start": round(os.getloadavg()[0], 1),
        "programs": asked.programs,
    }
    result |= {level: throughput(level, asked.programs, asked.repeats) for level in levels}
    keep(result | {"verdicts": verdicts(asked.fates)}, asked.out)


if __name__ == "__main__":
    main()
