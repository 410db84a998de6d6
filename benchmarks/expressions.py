"""How many short programs of the tiny dialect the interpreter evaluates in a second of one core.

python benchmarks/expressions.py
"""

from __future__ import annotations

import time

from milonga.tasks.expressions import evaluate

PROGRAMS = 20_000
ARGUMENTS = {"a": [3, 1, 4, 1, 5]}


def rate(sources: list[str]) -> float:
    """Evaluations in a second of CPU time, so that what else the machine does has no part in it."""
    began = time.process_time()
    for source in sources:
        assert evaluate(source, ARGUMENTS).status == "ok"
    return len(sources) / (time.process_time() - began)


def main() -> None:
    distinct = [f"sum([x*{n % 9}+{n} for x in a if x>{n % 5}])" for n in range(PROGRAMS)]
    steps = evaluate(distinct[0], ARGUMENTS).steps
    print(f"programs of about {steps} steps, such as {distinct[0]}")
    print(f"each read once and run once: {rate(distinct):,.0f} a second")
    print(f"one of them run again and again: {rate(distinct[:1] * PROGRAMS):,.0f} a second")


if __name__ == "__main__":
    main()
