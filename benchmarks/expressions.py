"""How many short programs of the tiny dialect the interpreter evaluates in a second of one core.

python benchmarks/expressions.py
python benchmarks/expressions.py --tiny      # the script itself
"""

from __future__ import annotations

import argparse
import time

from milonga.tasks.expressions import evaluate
from shapes import conditions, keep, parse

ARGUMENTS = {"a": [3, 1, 4, 1, 5]}


def rate(sources: list[str]) -> float:
    """Evaluations in a second of CPU time, so that what else the machine does has no part in it."""
    began = time.process_time()
    for source in sources:
        assert evaluate(source, ARGUMENTS).status == "ok"
    return len(sources) / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=20_000)
    args = parse(parser, programs=20)
    distinct = [f"sum([x*{n % 9}+{n} for x in a if x>{n % 5}])" for n in range(args.programs)]
    result = conditions("cpu") | {
        "programs": args.programs,
        "an example": distinct[0],
        "its steps": evaluate(distinct[0], ARGUMENTS).steps,
        "a second, each read once and run once": rate(distinct),
        "a second, one of them run again and again": rate(distinct[:1] * args.programs),
    }
    keep(result, args.out)


if __name__ == "__main__":
    main()
