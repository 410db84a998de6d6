"""What batching is worth to the service: the same requests one after the other, and from many clients at once.

Each request asks for one answer, the best of eight, over real HTTP to `milonga serve` as it is. The answers must be the same.

    milonga run tango --turns 6 --out runs/served
    python benchmarks/serve.py runs/served --out benchmarks/results/serve.json
    python benchmarks/serve.py --tiny      # the script itself, with a run of one turn that it makes
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import milonga
from shapes import conditions, keep, parse, spread


def ask(port: int, question: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    body = json.dumps({"problems": [{"question": question}], "best_of": 8})
    connection.request("POST", "/solve", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    found = json.loads(answer.read())
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{answer.status}: {found}")
    return found


def timed(port: int, questions: list[str], clients: int) -> tuple[float, list[Any]]:
    """Seconds for all questions, from so many clients at once, and the answers."""
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = list(pool.map(lambda question: ask(port, question), questions))
    return time.perf_counter() - start, answers


def measure(run: Path, questions: list[str], clients: int, repeats: int) -> dict[str, Any]:
    """Start the service, and ask it all questions from one client and from many, in turn."""
    command = [sys.executable, "-m", "milonga", "serve", str(run), "--port", "0", "--rate", "1000000"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        port = int(server.stderr.readline().partition(";")[0].rpartition(":")[2])
        ask(port, questions[0])
        pairs = [(timed(port, questions, 1), timed(port, questions, clients)) for _ in range(repeats)]
    finally:
        server.terminate()
        server.wait()
    alone, together = ([len(questions) / side[0] for side in sides] for sides in zip(*pairs, strict=True))
    return {
        "what": f"{len(questions)} requests for the best of 8 each, one client and {clients}",
        **conditions("cpu"),
        "load": os.getloadavg()[1],
        "requests_per_s": {"one_by_one": spread(alone), "together": spread(together)},
        "together_over_one_by_one": spread([b / a for a, b in zip(alone, together, strict=True)]),
        "same_answers": all(a[1] == b[1] for a, b in pairs),
    }


def make_run(folder: Path) -> Path:
    """A run of one short turn, for the tiny mode."""
    tiny = {"batch": {"problems": 2, "rollouts": 2}, "eval": {"problems": 2, "samples": 1, "bench": 0}, "task": {"ops": 1}}
    milonga.run("tango", turns=1, out=folder, settings=tiny | {"options": {"warmup": 0, "n_generator": 1}}, quiet=True)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, nargs="?", help="a run folder with a generator and a verifier")
    parser.add_argument("--questions", type=int, default=64)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    args = parse(parser, questions=2, clients=2, repeats=1)
    if args.run is None and not args.tiny:
        parser.error("name a run folder to serve, or give --tiny")
    questions = [f"{n}+7*3-5*4+9*2%100" for n in range(args.questions)]
    with tempfile.TemporaryDirectory() as scratch:
        keep(measure(args.run or make_run(Path(scratch) / "run"), questions, args.clients, args.repeats), args.out)


if __name__ == "__main__":
    main()
